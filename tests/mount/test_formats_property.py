"""Random runs in every format that is read: the mount shows the bytes that the trainer had.

One seed is one run, the same for all formats (lib/randomrun.py): any shapes and dtypes, densities
from nothing to everything, anchors anywhere, restarts.  `make pytest SOAK_RUNS=200 PYTEST_ARGS='-k
formats_property'` tries 200 runs for each format (2 otherwise); SOAK_SEED is the first seed.
"""

import os

import pytest

from lib import anyformat, checks, mounted, randomrun
from lib import safetensors_py as st
from lib.mounted import Mount

RUNS = int(os.environ.get("SOAK_RUNS", "2"))
SEED = int(os.environ.get("SOAK_SEED", "1"))


def shown(top):
    """Every tensor of the weight files below a directory."""
    out = {}
    for path in sorted(top.glob("*.safetensors")):
        for name, t in st.load_file(path)[0].items():
            assert name not in out, f"{name} is in two files"
            out[name] = t
    return out


def assert_state(top, state, what):
    """Names, dtypes, shapes and bytes."""
    have = shown(top)
    assert sorted(have) == sorted(state), what
    for name, want in state.items():
        got = have[name]
        assert (got.dtype, tuple(got.shape)) == (want.dtype, tuple(want.shape)), (what, name)
        assert got.data.tobytes() == want.data.tobytes(), (what, name)


@pytest.mark.parametrize("name", sorted(anyformat.WRITERS))
@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_formats_property(name, seed, bucket, scratch, monkeypatch):
    """Exactly the run's versions are there, each with its bytes, read whole and in pieces."""
    monkeypatch.setenv("WEIGHTFS_CACHE_DIR", str(scratch / "tool-cache"))
    kind = anyformat.WRITERS[name]
    writer = kind(bucket, scratch, seed)
    writer.write(randomrun.make(seed, kind.dtypes))
    last = max(writer.states)
    with Mount(bucket, keep=64, args=writer.mount_args) as m:
        m.wait_version(last)
        mounted.wait_until(lambda: [v for v in m.versions() if v] == sorted(writer.states),
                           lambda: f"{sorted(writer.states)} are not all there: {m.status()}")
        for number, state in writer.states.items():
            assert_state(m.tree(number), state, f"{name}, seed {seed}, version {number}")
        for path in sorted(m.tree(last).glob("*.safetensors")):
            checks.assert_ranges(path, path.read_bytes(), seed, 10)
        assert m.status()["problems"] == []
