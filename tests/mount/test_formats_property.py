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

pytestmark = pytest.mark.usefixtures("own_cache")

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


def is_state(top, state):
    """Is it this one?"""
    try:
        assert_state(top, state, "")
    except (AssertionError, OSError):
        return False
    return True


def lineage(top):
    """Which run a tree is of: a trainer that began again leaves the versions that were shown."""
    return os.getxattr(min(top.glob("*.safetensors")), "user.weightfs.lineage")


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
def test_formats_property(name, seed, bucket, scratch):
    """Exactly the run's versions are there, each with its bytes, read whole and in pieces."""
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
        assert bool(m.status()["problems"]) <= writer.left, m.status()["problems"]


@pytest.mark.parametrize("name", sorted(anyformat.WRITERS))
@pytest.mark.parametrize("seed", range(SEED, SEED + (RUNS + 1) // 2))
def test_formats_property_live(name, seed, bucket, scratch):
    """The same while a mount looks on, from some step on: at the end it shows the last version, and
    whatever else it has of this run is right."""
    kind = anyformat.WRITERS[name]
    writer = kind(bucket, scratch, seed)
    segments = randomrun.make(seed, kind.dtypes)
    steps = writer.steps(segments)
    for _ in range(int(writer.rng.integers(1, 1 + sum(map(len, segments))))):
        next(steps)
    with Mount(bucket, keep=64, args=writer.mount_args) as m:
        for _ in steps:
            pass
        last = max(writer.states)
        # A trainer that was there before may have had that number, too.
        mounted.wait_until(lambda: m.version() == last and is_state(m.at, writer.states[last]),
                           lambda: f"{name}, seed {seed}: version {last} does not come: "
                                   f"{m.status()} {m.log_text()}")
        current = lineage(m.at)
        for number in set(m.versions()) & set(writer.states):
            if lineage(m.tree(number)) == current:
                assert_state(m.tree(number), writer.states[number],
                             f"{name}, seed {seed}, version {number}")
