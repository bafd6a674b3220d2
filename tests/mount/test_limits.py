"""Sizes at which something has an end: tensors of more than 2^31 and 2^32 elements, headers of 100
MB, hundreds of shards.  The files are sparse, so nothing of it takes room or time."""

import os
import resource
import shutil

import numpy as np
import pytest

from lib import hfdir, mounted, published, publishing, wide
from lib import safetensors_py as st
from lib.mounted import Mount

MODEL = "model.safetensors"
GIB4 = 1 << 32


def peak_mb(m):
    """The most memory that the mount has had."""
    with open(f"/proc/{m.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def around(numel):
    """Changes on both sides of each limit, at the beginning and at the end."""
    places = {0, 1, 65535, 65536, numel - 1, numel - 2}
    for limit in (1 << 31, 1 << 32):
        places |= {limit + k for k in (-65536, -2, -1, 0, 1, 2, 65536)}
    rng = np.random.default_rng(numel % 1000)
    return {p: int(rng.integers(1, 256)) for p in sorted(places) if 0 <= p < numel}


def holds(path, numel, changes):
    """The tensor is zero but for the changes, wherever one looks."""
    at = path.stat().st_size - numel
    fd = os.open(path, os.O_RDONLY)
    for position in changes:
        first = max(position - 5, 0)
        want = bytes(changes.get(p, 0) for p in range(first, min(position + 6, numel)))
        assert os.pread(fd, len(want), at + first) == want, position
    assert os.pread(fd, 100, at + numel - 3) == bytes(
        changes.get(p, 0) for p in range(numel - 3, numel))
    os.close(fd)


@pytest.mark.parametrize("write, numel", [
    (wide.write_trl_v1, GIB4), (wide.write_trl_v3, GIB4 + 70_001),
    (wide.write_hfdir_xor, GIB4 + 70_001), (wide.write_hfdir_overwrite, GIB4),
    (wide.write_wfp1, GIB4 + 70_001)], ids=lambda p: getattr(p, "__name__", ""))
def test_wide_tensors(write, numel, bucket):
    """Positions on both sides of 2^31 and 2^32, to the last."""
    changes = around(numel)
    write(bucket, numel, changes)
    with Mount(bucket) as m:
        m.wait_version(2)
        holds(m.at / MODEL, numel, changes)
        holds(m.wait_tree(1) / MODEL, numel, {p: 0 for p in changes})
        m.wait_well()
        if mounted.VARIANT == "release":
            assert peak_mb(m) < 264


@pytest.mark.parametrize("write, name", [
    (wide.write_trl_v1, "deltas/step_000002.safetensors"),
    (wide.write_hfdir_overwrite, "weight_v000002/model-00000-of-00001.safetensors")],
    ids=lambda p: getattr(p, "__name__", ""))
def test_what_32_bits_cannot_say(write, name, bucket):
    """A position beyond 2^32 would come out as another one: not with this tensor."""
    write(bucket, GIB4 + 5, {GIB4 + 1: 7})
    with Mount(bucket) as m:
        sentence = m.wait_problem(name)
        assert "32 bits for a position" in sentence and str(GIB4 + 5) in sentence
        m.wait_version(1)
        holds(m.at / MODEL, GIB4 + 5, {GIB4 + 1: 0, 1: 0})


# ---- headers ------------------------------------------------------------------------------------

LIMIT = 100_000_000


def with_header(path, state, length, **metadata):
    """A file of the state whose header is so long, by one long text in it."""
    def text(n):
        return st.header_json(st.entries(state, list(state)), {**metadata, "note": "n" * n})

    blob = text(length - len(text(0)))
    assert len(blob) == length
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(st.frame(blob) + b"".join(t.data.tobytes() for t in state.values()))


def small(value):
    """A state."""
    return {"w": st.make("BF16", (9,), np.full(9, value, "<u2"))}


@pytest.mark.parametrize("kind", ["trl", "directories"])
def test_long_headers(kind, bucket):
    """100,000,000 bytes are read, one more is refused."""
    meta = {"format": "sparse_weight_patch", "version": "1", "sparse": "False",
            "encoding": "gap_delta"} if kind == "trl" else {"format": "pt"}

    def path(n):
        return bucket / (f"anchors/step_{n:06d}.safetensors" if kind == "trl"
                         else f"checkpoint-{n}/model.safetensors")

    with_header(path(1), small(1), LIMIT, **meta)
    path(2).parent.mkdir(exist_ok=True)
    with open(path(2), "wb") as f:
        f.write((LIMIT + 1).to_bytes(8, "little") + b"{")
        f.truncate(8 + LIMIT + 1 + 18)
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem(str(path(2).relative_to(bucket)), "100000001 bytes")
        with open(m.at / MODEL, "rb") as f:
            assert int.from_bytes(f.read(8), "little") == LIMIT
            f.seek(8 + LIMIT)
            assert f.read() == np.full(9, 1, "<u2").tobytes()
        if mounted.VARIANT == "release":
            assert peak_mb(m) < 500


# ---- shards -------------------------------------------------------------------------------------

SHARDS = 250


def sharded(seed, count):
    """States of 600 small tensors."""
    rng = np.random.default_rng(seed)
    out = [{f"layer.{i:03d}.weight": st.make("BF16", (64,), rng.integers(0, 65536, 64, "<u2"))
            for i in range(2 * SHARDS)}]
    for _ in range(count - 1):
        out.append({n: st.Tensor(t.dtype, t.shape, t.data ^ (rng.random(64) < 0.1))
                    for n, t in out[-1].items()})
    return out


def same(top, state):
    """All shards, with all tensors."""
    have = {}
    for path in top.glob("*.safetensors"):
        have.update(st.load_file(path)[0])
    return publishing.same_state(have, state)


def test_shards_of_directories(bucket):
    """Whole checkpoints and deltas in hundreds of files, more in all than a process may have open
    at first."""
    states = [None, *sharded(1, 8)]
    trainer = hfdir.Trainer(bucket, states, shards=SHARDS)
    for n in range(1, 9):
        if n % 4 == 1:
            publishing.write_checkpoint(trainer.folder(n), states[n], SHARDS)
        else:
            trainer.delta(n)
    few = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, few[1]))
    try:
        with Mount(bucket) as m:
            m.wait_version(8)
            mounted.wait_until(lambda: m.versions() == list(range(1, 9)), m.status)
            for n in (1, 4, 5, 8):
                assert len(list(m.tree(n).glob("*.safetensors"))) == SHARDS
                assert same(m.tree(n), states[n])
            m.wait_well()
            # One of hundreds is missing, or is another length: the version before stays.
            shutil.copytree(trainer.folder(5), bucket / "making", copy_function=shutil.copy)
            (bucket / "making" / f"model-00123-of-{SHARDS:05d}.safetensors").unlink()
            (bucket / "making").rename(trainer.folder(9))
            first = f"weight_v000009/model-00001-of-{SHARDS:05d}.safetensors"
            m.wait_problem(first, "model-00123-of")
            assert m.version() == 8
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, few)


def test_shards_of_a_published_run(bucket):
    """The same with weightfs.json."""
    states = sharded(2, 4)
    out = published.Published(bucket, shards=SHARDS).publish_all(states, anchors=(3,))
    with Mount(bucket) as m:
        m.wait_version(4)
        mounted.wait_until(lambda: m.versions() == [1, 2, 3, 4], m.status)
        for n in (1, 2, 3, 4):
            assert same(m.tree(n), states[n - 1])
        m.wait_well()
    out.path(3, "anchor", 123).unlink()
    with Mount(bucket) as m:
        m.wait_version(4)
        assert same(m.at, states[3])
