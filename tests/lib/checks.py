"""Assertions about a mount that several tests share."""

import os

import numpy as np

from lib import oracle as reference
from lib import reading
from lib import safetensors_py as st


def assert_same(path, got, want, what):
    """Equal bytes, or the first difference in words."""
    if reference.same_content(path, got, want):
        return
    if len(got) != len(want):
        raise AssertionError(f"{what}/{path}: {len(got)} bytes, not {len(want)}")
    at = next(i for i, (a, b) in enumerate(zip(got, want)) if a != b)
    raise AssertionError(f"{what}/{path}: differs from byte {at} on: got "
                         f"{got[at:at + 32]!r}, want {want[at:at + 32]!r}")


def assert_tree(top, want, what=None, read=reading.read_file):
    """Exactly these files below top, with these bytes, and stat says their sizes."""
    what = what or str(top)
    have = reading.tree(top)
    assert sorted(have) == sorted(want), what
    for path, blob in want.items():
        got = read(have[path])
        assert_same(path, got, blob, what)
        assert os.stat(have[path]).st_size == len(got), path


def holds(top, state, files="model.safetensors"):
    """The tensors of the weight files `files` (a pattern) below `top` are this state's, to the
    byte."""
    have = {}
    for path in sorted(top.glob(files)):
        have.update(st.load_file(path)[0])
    assert {n: t.data.tobytes() for n, t in have.items()} == \
        {n: t.data.tobytes() for n, t in state.items()}


def assert_ranges(path, want, seed, count=40):
    """Random preads equal the same slices of the bytes."""
    rng = np.random.default_rng(seed)
    fd = os.open(path, os.O_RDONLY)
    try:
        for at, length in reading.random_ranges(rng, len(want), count):
            assert os.pread(fd, length, at) == want[at:at + length], (path, at, length)
    finally:
        os.close(fd)


def weight_files(want):
    """Names of the safetensors files among a version's files."""
    return [name for name in want if name.endswith(".safetensors")]


def publish(mount, run, all_states, each=None):
    """Syncs the states one by one and waits for each version; each(number) after each of them.
    Returns the numbers that appeared."""
    numbers = []
    for state in all_states:
        if run.sync(state):
            mount.wait_version(run.number)
            numbers.append(run.number)
            if each:
                each(run.number)
    return numbers
