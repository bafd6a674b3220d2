"""Real loaders by plain path while versions arrive: what each of them gets is one version, bit for
bit, and the next load gets a later one.

Libraries that run without a GPU do so here: safetensors (torch and numpy), transformers, mlx-lm,
fastsafetensors, Run:ai's streamer.  Of llama.cpp, InstantTensor (which refuses anything but CUDA)
and vLLM's prefetch drive_loads makes the system calls.
"""

import contextlib
import gc
import importlib
import json
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest

from lib import models, mounted, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount, wait_until

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

DRIVER = mounted.TOP / "build" / mounted.VARIANT / "drive" / "drive_loads"
INDEX = "model.safetensors.index.json"
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY, LAYERS = 384, 1024, 6, 3, 64, 2374, 2
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD, "intermediate_size": INNER, "vocab_size": VOCABULARY, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "attention_bias": False,
    "attention_dropout": 0.0, "max_position_embeddings": 512, "initializer_range": 0.02,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "use_cache": True,
}


def spec(dtype="BF16"):
    """The tensors of that model."""
    out = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        out |= {f"{at}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
                f"{at}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
                f"{at}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
                f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
                f"{at}.self_attn.q_norm.weight": (HEAD,), f"{at}.self_attn.k_norm.weight": (HEAD,),
                f"{at}.mlp.gate_proj.weight": (INNER, HIDDEN),
                f"{at}.mlp.up_proj.weight": (INNER, HIDDEN),
                f"{at}.mlp.down_proj.weight": (HIDDEN, INNER),
                f"{at}.input_layernorm.weight": (HIDDEN,),
                f"{at}.post_attention_layernorm.weight": (HIDDEN,)}
    return {name: (dtype, shape) for name, shape in out.items()}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A directory with a tokenizer that goes with it."""
    top = tmp_path_factory.mktemp("tokenizer")
    mounted.run("simulate", top, "--model", "qwen3-0.6b/500", "--steps", 1, "--every", 0,
                "--companions")
    return top


class Training(threading.Thread):
    """Publishes a version every moment; `states` has them all by number.  It does not get further
    than AHEAD beyond what was loaded last: on a slow machine there would be no end of them."""

    AHEAD = 40

    def __init__(self, bucket, dtype="BF16"):
        super().__init__()
        self.run_, self.rng = trl.Run(bucket, "v3", interval=20), np.random.default_rng(7)
        _, state = models.start(7, spec(dtype))
        self.states, self.over, self.loaded = {}, threading.Event(), 0
        self.publish(state)

    def publish(self, state):
        """One version; its state is known before anybody can see it."""
        self.states[self.run_.number + 1] = state
        self.run_.sync(state)

    def run(self):
        """Moves a hundredth of each tensor, again and again."""
        while not self.over.wait(0.25):
            if self.run_.number > self.loaded + self.AHEAD:
                continue
            state = {}
            for name, t in self.states[self.run_.number].items():
                data = t.data.copy()
                at = self.rng.integers(0, data.size, max(1, data.size // 100))
                data[at] ^= 1
                state[name] = st.Tensor(t.dtype, t.shape, data)
            self.publish(state)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def version_of(self, got):
        """The one version that all these tensors (name: bytes) are of."""
        some = "model.layers.0.mlp.up_proj.weight"
        number = next((n for n, state in list(self.states.items())
                       if state[some].data.tobytes() == got[some]), None)
        assert number is not None, f"{some} is of no version"
        want = self.states[number]
        assert set(got) == set(want)
        for name, blob in got.items():
            assert blob == want[name].data.tobytes(), f"{name} is not of version {number}"
        self.loaded = number
        return number


def shards(top):
    """The shards that the index names, as engines find them."""
    index = json.loads(reading.read_file(top / INDEX))
    return [str(top / name) for name in sorted(set(index["weight_map"].values()))]


def torch_bytes(tensor):
    """A torch tensor's bytes."""
    torch = importlib.import_module("torch")
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# ---- the loaders: a directory -> {name: bytes} ----


def by_safetensors_torch(top):
    """vLLM's and SGLang's default loop."""
    from safetensors import safe_open
    out = {}
    for path in shards(top):
        with safe_open(path, framework="pt") as f:
            out |= {name: torch_bytes(f.get_tensor(name)) for name in f.keys()}
    return out


def by_safetensors_numpy(top):
    """Without torch (which BF16 needs, so the run is F32)."""
    from safetensors.numpy import load_file
    out = {}
    for path in shards(top):
        out |= {name: array.tobytes() for name, array in load_file(path).items()}
    return out


def by_transformers(top):
    """from_pretrained with its threads."""
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(top, dtype="bfloat16")
    assert "lm_head.weight" in model.state_dict()  # tied to the embedding
    return {name: torch_bytes(t) for name, t in model.state_dict().items()
            if name != "lm_head.weight"}


def by_fastsafetensors(top):
    """Headers of all files, then data of all files, into memory of its own."""
    fast = importlib.import_module("fastsafetensors")
    loader = fast.SafeTensorsFileLoader(fast.SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: shards(top)})
    buffer = loader.copy_files_to_device()
    try:
        return {name: torch_bytes(buffer.get_tensor(name)) for name in loader.get_keys()}
    finally:
        buffer.close()
        loader.close()


def by_runai(top):
    """Sixteen threads over all files as one."""
    runai = importlib.import_module("runai_model_streamer")
    with runai.SafetensorsStreamer() as streamer:
        streamer.stream_files(shards(top))
        return {name: torch_bytes(t) for name, t in streamer.get_tensors()}


def by_mlx(top):
    """mlx itself: pread in pieces from the threads that evaluate."""
    mx = importlib.import_module("mlx.core")
    out = {}
    for path in shards(top):
        for name, array in mx.load(path).items():
            out[name] = np.array(array.view(mx.uint16)).tobytes()
    return out


def by_driver(how):
    """A program that makes an engine's calls."""
    def load(top):
        paths = shards(top)
        done = subprocess.run([DRIVER, how, *paths], capture_output=True, check=False,
                              timeout=mounted.WAIT)
        assert done.returncode == 0, done.stderr
        out, at = {}, 0
        for path in paths:
            size = os.stat(path).st_size
            tensors, _ = st.load(done.stdout[at:at + size])
            out |= {name: t.data.tobytes() for name, t in tensors.items()}
            at += size
        assert at == len(done.stdout)
        return out
    return load


# What each needs, imported before versions begin to arrive.
LOADERS = {
    "safetensors torch": (by_safetensors_torch, ["torch", "safetensors"]),
    "safetensors numpy": (by_safetensors_numpy, ["safetensors.numpy"]),
    "transformers": (by_transformers, ["torch", "transformers.models.qwen3"]),
    "fastsafetensors": (by_fastsafetensors, ["torch", "fastsafetensors"]),
    "runai streamer": (by_runai, ["torch", "runai_model_streamer"]),
    "mlx": (by_mlx, ["mlx.core"]),
    "llama.cpp": (by_driver("populate"), []),
    "InstantTensor": (by_driver("libaio"), []),
    "vLLM prefetch": (by_driver("prefetch"), []),
}


def need(modules):
    """Imports them, or skips with the name of the one that is not installed."""
    return [pytest.importorskip(name, reason=f"{name} is not installed (tools/requirements.txt "
                                             f"has it where there is a wheel)")
            for name in modules]


@contextlib.contextmanager
def training(bucket, tokenizer, dtype="BF16", settle=600):
    """(mount, training) with three shards and the default --max-hold.  No load ends by a pause of
    its own that is shorter than `settle`."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, bucket / name)
    (bucket / "config.json").write_text(json.dumps(CONFIG))
    size = sum(st.numel(shape) for _, shape in spec().values()) * (4 if dtype == "F32" else 2)
    with Training(bucket, dtype) as t, Mount(bucket, shard_size=size // 2, settle=settle) as m:
        wait_until(m.version, "no version")
        yield m, t


def later(m, number):
    """Lets the plain paths go, and waits until they are past this version."""
    gc.collect()
    m.control("release")
    wait_until(lambda: m.version() > number, "no later version")


@pytest.mark.parametrize("name", LOADERS)
def test_loader(name, bucket, tokenizer):
    """Two loads while versions arrive."""
    load, modules = LOADERS[name]
    need(modules)
    with training(bucket, tokenizer, "F32" if "numpy" in name else "BF16") as (m, t):
        assert len(shards(m.at)) >= 2
        last = 0
        for _ in range(2):
            number = t.version_of(load(m.at))
            assert number > last
            last = number
            later(m, last)


MLX_LM = ["mlx.core", "mlx_lm", "mlx.utils"]


def token_and_logits(top):
    """What mlx-lm makes of a directory: one generated token, the logits before it, the weights."""
    mx, mlx_lm, utils = need(MLX_LM)
    model, tokenizer = mlx_lm.load(str(top))
    prompt = tokenizer.encode("weights move")
    step = next(mlx_lm.stream_generate(model, tokenizer, prompt=prompt, max_tokens=1))
    logits = np.array(model(mx.array([prompt]))[0, -1].astype(mx.float32)).tobytes()
    weights = {name: np.array(array.view(mx.uint16)).tobytes()
               for name, array in utils.tree_flatten(model.parameters())}
    return (step.token, logits), weights


def test_mlx_lm(bucket, tokenizer, tmp_path):
    """A token before and after an update, the same as from a plain copy of that version."""
    need(MLX_LM)
    answers = []
    with training(bucket, tokenizer, settle=6) as (m, t):
        for i in range(2):
            answer, weights = token_and_logits(m.at)
            number = t.version_of(weights)
            del weights
            m.control(f"pin {number}")
            copy = tmp_path / str(i)
            shutil.copytree(m.tree(number), copy)
            plain, weights = token_and_logits(copy)
            assert t.version_of(weights) == number and plain == answer
            answers.append(answer)
            later(m, number)
            # It does not read the index, which would begin the next load.
            wait_until(lambda: not m.status()["loads"], "a load without an end")
    assert answers[0][1] != answers[1][1]
