"""Compressed anchors: published, read from the specification, mounted, damaged."""

import os

import numpy as np
import pytest

from lib import checks, models, mounted, packed, publishing
from lib import safetensors_py as st

# Tensors of several blocks, one of them not whole; every width.
SPEC = {"a.bf16": ("BF16", (300, 1000)), "b.f32": ("F32", (70001,)), "c.u8": ("U8", (200000,)),
        "d.f64": ("F64", (3, 5)), "e.none": ("BF16", (0, 4)), "f.f4": ("F4", (6,)),
        "g.scalar": ("F16", ())}


def weights(seed):
    """Like a model's: exponents of few kinds in bf16."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, (dtype, shape) in SPEC.items():
        size = st.numel(shape) * st.DTYPES[dtype] // 8
        if dtype == "BF16":
            values = rng.normal(0, 0.02, st.numel(shape)).astype(np.float32)
            data = (values.view(np.uint32) >> 16).astype("<u2")
        else:
            data = rng.integers(0, 256, size, dtype=np.uint8).view(st.carrier(dtype))
        state[name] = st.Tensor(dtype, shape, data)
    return state


def changed(state):
    """The next version."""
    data = state["a.bf16"].data.copy()
    data[::997] += 1
    return {**state, "a.bf16": state["a.bf16"]._replace(data=data)}


@pytest.fixture(name="run")
def a_run(bucket, scratch):
    """Three versions above a compressed anchor: (bucket, states, the first checkpoint's file)."""
    publisher = publishing.Publisher(bucket, scratch / "state", ["--compress-anchors"])
    states = [weights(1)]
    path = publishing.write_checkpoint(scratch / "c1", states[0])
    assert publisher.publish(path)["encoding"] == "packed"
    for _ in range(2):
        states.append(changed(states[-1]))
        assert publisher.publish(states[-1])["encoding"] == "wfp1"
    return bucket, states, path / "model.safetensors"


def anchor_of(bucket):
    """The anchor's object."""
    entry = publishing.pointer(bucket)["steps"][0]
    assert (entry["kind"], entry["encoding"]) == ("anchor", "packed")
    return bucket / entry["objects"][0]["key"]


def test_read_from_the_specification(run):
    """The reader in Python makes the original file again, to the last byte; it is smaller."""
    bucket, states, original = run
    blob = anchor_of(bucket).read_bytes()
    assert packed.unpack(blob) == original.read_bytes()
    publishing.check(bucket, dict(enumerate(states, 1)))
    plain = sum(t.data.nbytes for n, t in states[0].items() if n == "a.bf16")
    _, header, _ = st.split(blob)
    begin, end = header["a.bf16"]["data_offsets"]
    assert end - begin < 0.75 * plain


def test_mounted(run):
    """The original file under its own offsets, in whole and in ranges, also under deltas."""
    bucket, states, original = run
    with mounted.Mount(bucket) as mount:
        mount.wait_version(3)
        for number, state in enumerate(states, 1):
            mount.control(f"pin {number}")
            file = mount.tree(number) / "model.safetensors"
            assert publishing.same_state(st.load(file.read_bytes())[0], state)
            checks.assert_ranges(file, file.read_bytes(), number)
        first = (mount.tree(1) / "model.safetensors").read_bytes()
        assert first == original.read_bytes()


def test_random_reads_of_many(run):
    """Several readers in blocks that they share."""
    bucket, states, _ = run
    with mounted.Mount(bucket) as mount:
        mount.wait_version(3)
        file = mount.at / "model.safetensors"
        children = []
        for seed in range(4):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    blob = file.read_bytes()
                    checks.assert_ranges(file, blob, seed, count=100)
                    code = not publishing.same_state(st.load(blob)[0], states[-1])
                finally:
                    os._exit(code)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4


def test_damaged_block(run):
    """A block with a byte changed is an error when it is read; what does not need it is there."""
    bucket, states, _ = run
    path = anchor_of(bucket)
    blob = bytearray(path.read_bytes())
    _, header, start = st.split(bytes(blob))
    begin, _ = header["c.u8"]["data_offsets"]
    blob[start + begin + 16 * 5 + 1000] ^= 0x40
    path.write_bytes(blob)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(3)
        file = mount.at / "model.safetensors"
        raw = file.open("rb", buffering=0)
        with raw, pytest.raises(OSError):
            raw.read()
        _, inner, data = st.split(_head(blob, start))
        at = inner["a.bf16"]["data_offsets"]
        # But for its last pages, which the kernel may read together with what follows.
        want = states[-1]["a.bf16"].data.tobytes()[:-300000]
        with open(file, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            f.seek(data + at[0])
            assert f.read(len(want)) == want


def _head(blob, start):
    """The original's header, with no data behind it."""
    _, header, _ = st.split(bytes(blob[:start]))
    text = header["__metadata__"]["header"].encode()
    return len(text).to_bytes(8, "little") + text
