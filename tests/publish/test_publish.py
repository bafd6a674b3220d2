"""`weightfs publish` into a directory, read back by a reader that knows the specifications only."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from lib import models, mounted, publishing
from lib import safetensors_py as st

# Every dtype that a file can have, also those whose elements are less than a byte.
EVERY = {f"t.{name.lower()}": (name, (4, 6) if st.DTYPES[name] < 8 else (5, 7))
         for name in st.DTYPES}


def random_bits(rng, spec):
    """A state of arbitrary bits: NaNs with payloads, signed zeros, infinities."""
    out = {}
    for name, (dtype, shape) in spec.items():
        count = st.numel(shape) * st.DTYPES[dtype] // 8 // st.width(dtype)
        raw = rng.integers(0, 256, count * st.width(dtype), dtype=np.uint8)
        out[name] = st.Tensor(dtype, shape, raw.view(st.carrier(dtype)))
    return out


@pytest.fixture
def publisher(bucket, scratch):
    """Into a directory."""
    return publishing.Publisher(bucket, scratch / "state")


def test_thirty_steps(publisher, bucket):
    """Versions with and without changes, across anchors, each beside its delta."""
    states = models.states(1, 30, models.MIXED, density=0.002, same=(7, 12))
    want = {}
    for i, state in enumerate(states):
        report = publisher.publish(state, "--anchor-every", 8)
        want[i + 1] = state
        assert report["version"] == i + 1
        assert report["kind"] == ("anchor" if i == 0 else
                                  "unchanged" if i in (7, 12) else "delta")
        assert report["anchor"] == (i % 8 == 0)
    publishing.check(bucket, want)
    assert not publishing.strays(bucket)


def test_adaptive_anchors(publisher, bucket):
    """Dense deltas soon add up to half an anchor."""
    states = models.states(2, 12, models.SMALL, density=0.2)
    kinds = [publisher.publish(state)["anchor"] for state in states]
    assert kinds[0] and 2 <= sum(kinds) <= 6 and not kinds[1], kinds
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_every_dtype_and_any_bits(publisher, bucket):
    """Bit for bit, whatever the bits are."""
    rng = np.random.default_rng(3)
    states = [random_bits(rng, EVERY) for _ in range(2)]
    sparse = dict(states[-1])
    for name in list(sparse)[::2]:
        data = sparse[name].data.copy()
        data[-1] ^= data.dtype.type(0x80)
        sparse[name] = sparse[name]._replace(data=data)
    states.append(sparse)
    for state in states:
        publisher.publish(state)
    assert publisher.publish(states[-1])["kind"] == "unchanged"
    publishing.check(bucket, dict(enumerate([*states, states[-1]], 1)))


def test_special_values(publisher, bucket):
    """Zero to minus zero, NaN to another NaN, infinity: all are changes."""
    spec = {"w": ("BF16", (600,)), "none": ("F32", (0, 3)), "scalar": ("F64", ())}
    _, state = models.start(4, spec)
    bits = [[0x0000, 0x7FC0, 0x7F80, 0xFF80, 0x0001, 0x3F80],
            [0x8000, 0x7FC1, 0xFF80, 0x7F80, 0x8001, 0x3F80]]
    states = [{**state, "w": st.make("BF16", (600,), np.array(b + [0] * 594, "<u2"))}
              for b in bits]
    publisher.publish(states[0])
    assert publisher.publish(states[1])["changed"] == 5
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_shards(publisher, bucket, scratch):
    """Shards keep their names and bytes; a delta follows them, and other shards of the same."""
    states = models.states(5, 4, models.TINY)
    for i, (state, shards) in enumerate(zip(states, (3, 3, 2, 1))):
        path = publishing.write_checkpoint(scratch / f"c{i}", state, shards)
        args = ["--anchor"] if i == 2 else []
        report = publisher.publish(path, *args)
        assert report["kind"] == ("anchor" if i == 0 else "delta")
        if report["anchor"]:
            entry = next(e for e in publishing.pointer(bucket)["steps"]
                         if e["version"] == i + 1 and e["kind"] == "anchor")
            names = [f"model-{k + 1:05d}-of-{shards:05d}.safetensors" for k in range(shards)]
            assert [o["file"] for o in entry["objects"]] == names
            for one in entry["objects"]:
                assert (bucket / one["key"]).read_bytes() == (path / one["file"]).read_bytes()
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_one_file_and_stream(publisher, bucket, scratch):
    """A path to a file, and standard input."""
    states = models.states(6, 4, models.SMALL)
    file = scratch / "some name.safetensors"
    for i, state in enumerate(states):
        file.write_bytes(st.dump(state, {"format": "pt"}))
        if i % 2:
            with open(file, "rb") as f:
                assert json.loads(publisher.run("-", stdin=f).stdout)["version"] == i + 1
        else:
            publisher.publish(file)
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_companions(publisher, bucket, scratch):
    """What loaders want goes along, when it has changed; weights in other formats do not."""
    states = models.states(7, 3, models.MINI)
    path = publishing.write_checkpoint(scratch / "c", states[0])
    assert publisher.publish(path)["companions"] == 4
    there = publishing.Objects(bucket).keys()
    assert {"config.json", "tokenizer.json", "empty.txt", "1_Pooling/config.json"} <= there
    assert not {k for k in there if k.endswith((".bin", ".pt", ".gguf", ".h5", ".onnx"))}
    (path / "model.safetensors").write_bytes(st.dump(states[1], {"format": "pt"}))
    assert publisher.publish(path)["companions"] == 0
    (path / "config.json").write_text('{"model_type": "other"}')
    (path / "model.safetensors").write_bytes(st.dump(states[2], {"format": "pt"}))
    assert publisher.publish(path)["companions"] == 1
    assert (bucket / "config.json").read_text() == '{"model_type": "other"}'
    index = json.loads((bucket / "index.json").read_text())["objects"]
    assert {o["key"]: o["size"] for o in index} == {
        k: (bucket / k).stat().st_size for k in publishing.Objects(bucket).keys()
        if k != "index.json"}


def test_new_tensors_make_an_anchor(publisher, bucket):
    """Another set of tensors, another shape, another dtype."""
    _, state = models.start(8, models.SMALL)
    versions = [state, {**state, "z": state["b.weight"]},
                {**state, "z": state["b.weight"]._replace(shape=(1, 41))},
                {**state, "z": state["b.weight"]._replace(dtype="F16")}, state]
    reasons = [publisher.publish(s)["reason"] for s in versions]
    assert '"z" is new' in reasons[1] and '"z" is gone' in reasons[4], reasons
    assert all("dtype or shape" in r for r in reasons[2:4]), reasons
    publishing.check(bucket, dict(enumerate(versions, 1)))


def test_numbers(publisher, bucket):
    """--version may leave some out, and goes up."""
    states = models.states(9, 4, models.MINI)
    publisher.publish(states[0], "--version", 10)
    publisher.publish(states[1], "--version", 20)
    assert publisher.publish(states[2])["version"] == 21
    # A script that runs again after it had worked.
    assert publisher.publish(states[2], "--version", 21)["kind"] == "already there"
    assert "published already, with other weights" in publisher.refused(
        states[3], "--version", 21)
    assert "below the newest" in publisher.refused(states[3], "--version", 20)
    publishing.check(bucket, {10: states[0], 20: states[1], 21: states[2]})


def test_against(bucket, scratch):
    """No copy is kept: what was published last is read from where it is."""
    publisher = publishing.Publisher(bucket, scratch / "state", ["--no-state"])
    states = models.states(10, 4, models.SMALL)
    paths = [publishing.write_checkpoint(scratch / f"c{i}", s) for i, s in enumerate(states)]
    publisher.publish(paths[0])
    assert "no copy" in publisher.publish(paths[1])["reason"]
    assert publisher.publish(paths[2], "--against", paths[1])["kind"] == "delta"
    report = publisher.publish(paths[3], "--against", paths[0])
    assert report["kind"] == "anchor" and "not version 3" in report["note"], report
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_against_a_source(bucket, scratch):
    """Nor is there a checkpoint: the newest version is read from the run itself, or a copy."""
    publisher = publishing.Publisher(bucket, scratch / "state", ["--no-state"])
    states = models.states(16, 4, models.SMALL)
    publisher.publish(states[0])
    assert publisher.publish(states[1], "--against", bucket)["kind"] == "delta"
    shutil.copytree(bucket, scratch / "copy")
    assert publisher.publish(states[2], "--against", scratch / "copy")["kind"] == "delta"
    assert "--against: version 3 is not in this run" in publisher.refused(
        states[3], "--against", scratch / "copy")
    assert publisher.publish(states[3], "--against", bucket)["kind"] == "delta"
    publishing.check(bucket, dict(enumerate(states, 1)))
    assert not list((scratch / "state").rglob("against*"))


def test_dry_run(publisher, bucket):
    """Says what would be done and does nothing."""
    states = models.states(11, 2, models.SMALL)
    publisher.publish(states[0])
    before = publishing.Objects(bucket).keys()
    report = publisher.publish(states[1], "--dry-run")
    assert report["version"] == 2 and report["kind"] == "delta" and report["bytes"] > 0
    assert publishing.Objects(bucket).keys() == before
    assert publisher.publish(states[1])["version"] == 2
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_summary(publisher, scratch):
    """One line for people."""
    states = models.states(12, 2, models.SMALL)
    lines = []
    for i, state in enumerate(states):
        path = publishing.write_checkpoint(scratch / f"c{i}", state)
        words = [w for w in publisher.command(path) if w != "--json"]
        lines.append(subprocess.run(words, capture_output=True, text=True, check=True,
                                    timeout=mounted.WAIT).stdout)
    assert all(line.count("\n") == 1 for line in lines)
    assert lines[0].startswith("version 1: anchor, ") and "(anchor: the first" in lines[0]
    assert lines[1].startswith("version 2: delta, ") and " bits per change; diff " in lines[1]


@pytest.mark.skipif(mounted.VARIANT in ("asan", "tsan"), reason="they use memory of their own")
def test_memory(publisher, bucket, scratch):
    """Comparing takes the same memory whatever the model's size."""
    count, size = 4, 100 << 20
    path = scratch / "huge.safetensors"
    entries = {f"t{i}": {"dtype": "BF16", "shape": [size // 2],
                         "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}
    head = st.frame(st.pad_text(st.header_json(entries)))
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + count * size)
    # As if it had been published: a pointer with its state.
    publisher.publish(path, "--dry-run")
    own = json.loads(next(publisher.state_dir.glob("*/state.json")).read_text())
    zeros = st.Tensor("BF16", (), np.zeros(size, np.uint8))
    state = publishing.state_hash({name: zeros for name in entries})
    anchor = {"version": 1, "kind": "anchor", "state": state, "encoding": "safetensors",
              "objects": [{"key": "anchors/a.safetensors", "size": 1 << 30}]}
    (bucket / publishing.POINTER).write_text(json.dumps({
        "format": "weightfs-run", "version": 1, "lineage": "01234567", "newest": 1,
        "publisher": {"id": own["publisher"], "host": "h", "pid": 1,
                      "time": "2026-01-01T00:00:00Z"},
        "steps": [anchor], "spans": []}))
    command = publisher.command(path, "--dry-run", "--no-state", "--against", path, "--jobs", 2)
    done = subprocess.run(["prlimit", f"--data={100 << 20}", *command], capture_output=True,
                          text=True, timeout=mounted.WAIT * 3, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "unchanged"
