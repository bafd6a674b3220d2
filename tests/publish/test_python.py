"""The Python module: publishing paths and states from torch, numpy and a `transformers` Trainer,
read back bit for bit by a mount and by the library."""

import ctypes
import gc
import io
import shutil
import sys

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import transformers

from lib import models, mounted, publishing

sys.path.insert(0, str(mounted.TOP / "tools"))
import weightfs  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture(autouse=True)
def program(monkeypatch, scratch):
    """The binary under test, and a home of its own for states."""
    monkeypatch.setenv("WEIGHTFS", str(mounted.BINARY))
    monkeypatch.setenv("XDG_STATE_HOME", str(scratch / "state-home"))


def raw(tensor):
    """A tensor's bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_shown(folder, state):
    """The directory's safetensors files have exactly these tensors."""
    have = {}
    for path in folder.glob("*.safetensors"):
        have.update(safetensors.torch.load_file(path))
    assert sorted(have) == sorted(state)
    for name, tensor in state.items():
        assert (have[name].dtype, have[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw(have[name]) == raw(tensor), name


def every_kind():
    """A state with all that torch can have: dtypes, views, shared memory, nothing, scalars."""
    torch.manual_seed(31)
    base = torch.randn(70, 31)
    embedding = torch.randn(300, 64).bfloat16()
    state = {str(dtype): base.to(dtype) for dtype in (
        torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
        torch.bool, torch.complex64)}
    return {**state, "embedding": embedding, "tied": embedding, "transposed": base.t(),
            "strided": embedding[3:99:7, ::5], "expanded": base[:1].expand(4, 31),
            "scalar": torch.tensor(float("nan")), "nothing": torch.empty(0, 5),
            "parameter": torch.nn.Parameter(base), "zero": torch.tensor([-0.0, 0.0])}


def test_stream():
    """What is written is a safetensors file as the library reads it."""
    state, out = every_kind(), io.BytesIO()
    weightfs.stream(state, out.write)
    have = safetensors.torch.load(out.getvalue())
    assert sorted(have) == sorted(state)
    for name, tensor in state.items():
        assert have[name].dtype == tensor.dtype and have[name].shape == tensor.shape
        assert raw(have[name]) == raw(tensor), name


def test_numpy_arrays():
    """Arrays in any order and with any byte order."""
    arrays = {"c": np.arange(12.0).reshape(3, 4), "f": np.asfortranarray(np.eye(3, 5, dtype="f4")),
              "big": np.arange(7, dtype=">i4"), "part": np.arange(20, dtype="u2")[::3],
              "half": np.float16([1, np.inf]), "flags": np.array([True, False])}
    out = io.BytesIO()
    weightfs.stream(arrays, out.write)
    have = safetensors.torch.load(out.getvalue())
    for name, array in arrays.items():
        assert np.array_equal(have[name].numpy(), array), name


def test_publish_states(bucket):
    """Two lines, then a mount."""
    state = every_kind()
    with mounted.Mount(bucket) as mount:
        first = weightfs.publish(state, bucket)
        assert (first.version, first.kind) == (1, "anchor") and first.bytes > 0
        assert weightfs.wait(mount.at, version=1, timeout=mounted.WAIT) == 1
        assert_shown(mount.dot / "versions" / "1", state)
        with torch.no_grad():
            state["embedding"][5, :3] += 1
            state["torch.float8_e4m3fn"] = state["torch.float8_e4m3fn"].clone()
            state["torch.float8_e4m3fn"][9, 9] = 2
        second = weightfs.publish(state, bucket, version=7, encoding="wfp1")
        assert (second.version, second.kind, second.anchor) == (7, "delta", False)
        assert second.changed == 3 + 3 + 1  # the tied one, too
        assert weightfs.wait(mount.at, after=1, timeout=mounted.WAIT) == 7
        assert weightfs.version(mount.at) == 7
        assert_shown(mount.dot / "versions" / "7", state)
        with pytest.raises(weightfs.Timeout):
            weightfs.wait(mount.at, after=7, timeout=0.1)


def test_publish_paths(bucket, scratch):
    """A checkpoint's directory, as a Path and as text."""
    states = models.states(32, 2, models.SMALL)
    one = publishing.write_checkpoint(scratch / "one", states[0])
    two = publishing.write_checkpoint(scratch / "two", states[1])
    assert weightfs.publish(one, bucket).version == 1
    assert weightfs.publish(str(two), str(bucket), anchor_every=9, quiet=True).kind == "delta"
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_errors(bucket, scratch, monkeypatch):
    """The program's sentence, or the module's."""
    with pytest.raises(weightfs.Error, match="does not exist") as e:
        weightfs.publish(scratch / "nowhere", bucket)
    assert e.value.code == 1 and not str(e.value).startswith("weightfs: ")
    with pytest.raises(weightfs.Error, match="--encoding: there is none"):
        weightfs.publish({"a": torch.zeros(3)}, bucket, encoding="best")
    with pytest.raises(weightfs.Error, match="anchor_evry|anchor-evry"):
        weightfs.publish({"a": torch.zeros(3)}, bucket, anchor_evry=3)
    with pytest.raises(weightfs.Error, match='"a" is no tensor'):
        weightfs.publish({"a": [1, 2]}, bucket)
    with pytest.raises(weightfs.Error, match="no tensors"):
        weightfs.publish({}, bucket)
    with pytest.raises(weightfs.Error, match="is no mount"):
        weightfs.version(scratch)
    for state, word in (({"a": torch.zeros(3).to_sparse()}, '"a" is not dense'),
                        ({"a": torch.zeros(3, device="meta")}, '"a" has no data'),
                        ({1: torch.zeros(3), "1": torch.zeros(3)}, "two keys"),
                        ({"__metadata__": torch.zeros(3)}, "no name"),
                        ({"\ud800": torch.zeros(3)}, "no name")):
        with pytest.raises(weightfs.Error, match=word):
            weightfs.publish(state, bucket)
    assert not (bucket / "weightfs.json").exists()
    # The program ends before it has read all that is fed to it.
    big = {"a": torch.zeros(3 << 20)}
    with pytest.raises(weightfs.Error, match="there is none"):
        weightfs.publish(big, bucket, encoding="best")
    monkeypatch.setenv("WEIGHTFS", str(scratch / "no-program"))
    with pytest.raises(weightfs.Error, match="cannot be run"):
        weightfs.publish(big, bucket)
    monkeypatch.setenv("WEIGHTFS", shutil.which("true"))
    with pytest.raises(weightfs.Error, match="printed no report"):
        weightfs.publish(big, bucket)


def test_no_copy():
    """Tensors go out from where they lie, in pieces; only what is not contiguous is copied."""
    big = torch.zeros((20 << 20) + 1, dtype=torch.uint8)
    state = {"big": big, "half": big[5:9], "array": np.ones((3, 4)), "strided": big[::2]}
    seen = []

    def put(piece):
        if isinstance(piece, memoryview):
            seen.append((ctypes.addressof(ctypes.c_char.from_buffer(piece)), len(piece)))

    weightfs.stream(state, put)
    at = big.data_ptr()
    assert {(at, 8 << 20), (at + (8 << 20), 8 << 20), (at + (16 << 20), (4 << 20) + 1),
            (at + 5, 4), (state["array"].ctypes.data, 96)} <= set(seen)
    assert sum(length for _, length in seen) == sum(
        t.nbytes for t in (big, big[5:9], state["array"], big[::2]))


class PublishCallback(transformers.TrainerCallback):
    """Publishes the policy after every optimizer step."""

    def __init__(self, dest):
        self.dest, self.published = dest, {}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        done = weightfs.publish(model.state_dict(), self.dest, version=state.global_step)
        self.published[done.version] = {name: t.clone() for name, t in model.state_dict().items()}


def test_trainer(bucket, scratch):
    """A tiny model, three steps on the CPU; every version as it was."""
    torch.manual_seed(33)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).bfloat16()
    rows = [{"input_ids": torch.arange(i, i + 16) % 64, "labels": torch.arange(i, i + 16) % 64}
            for i in range(12)]
    callback = PublishCallback(bucket)
    arguments = transformers.TrainingArguments(
        output_dir=str(scratch / "out"), max_steps=3, per_device_train_batch_size=4,
        learning_rate=1e-3, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
    transformers.Trainer(model=model, args=arguments, train_dataset=rows,
                         callbacks=[callback]).train()
    assert sorted(callback.published) == [1, 2, 3]
    config.save_pretrained(bucket)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(3)
        assert_shown(mount.at, callback.published[3])
        loaded = transformers.AutoModelForCausalLM.from_pretrained(mount.at, dtype="bfloat16")
        for name, tensor in loaded.state_dict().items():
            assert raw(tensor) == raw(callback.published[3][name]), name
        del loaded, tensor  # they may be maps of the mount's files
        gc.collect()
    have = publishing.read_run(bucket)
    for version, state in callback.published.items():
        assert {n: t.data.tobytes() for n, t in have[version].items()} == {
            n: raw(t) for n, t in state.items()}
