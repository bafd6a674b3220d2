"""Runs to which things happen: writers whose objects appear complete, each a second younger than
the one before, for TRL's layout, version directories and weightfs.json; and rows of the table in
the README's "What is current"."""

import itertools
import os
import time

import numpy as np

from lib import hfdir, models, mounted, published, trl
from lib import safetensors_py as st

MODEL = "model.safetensors"
TICK = itertools.count()
START = time.time() - 100_000


def tick():
    """The time of the next object: a second after the one before."""
    return START + next(TICK)


def place(path, blob, when):
    """An object that appears complete, with its time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("." + path.name + ".part")
    part.write_bytes(blob)
    os.utime(part, (when, when))
    part.rename(path)


def states(seed, count=9):
    """[None, state 1, state 2, ...]"""
    return [None, *models.states(seed, count, models.MINI)]


def same(top, state):
    """Does the tree have exactly these tensors?"""
    have = {}
    for path in top.glob("*.safetensors"):
        have.update(st.load_file(path)[0])
    return have.keys() == state.keys() and all(
        t.dtype == state[n].dtype and t.shape == state[n].shape and
        t.data.tobytes() == state[n].data.tobytes() for n, t in have.items())


def shows(m, number, state):
    """This version is current, with this state."""
    m.wait_version(number)
    mounted.wait_until(lambda: same(m.at, state), lambda: f"other bytes: {m.status()}")


def stays(m, number, state):
    """It is so, and nothing that is there changes it."""
    m.control("refresh")
    m.control("refresh")
    assert m.version() == number, m.status()
    assert same(m.at, state)


class Names:
    """TRL v3."""

    def __init__(self, root):
        self.root = root

    def path(self, n, anchor=False):
        """Where an object is."""
        return self.root / ("anchors" if anchor else "deltas") / f"step_{n:06d}.safetensors"

    def anchor(self, n, state, when=None):
        """A full one."""
        place(self.path(n, True), trl.delta_blob(n, {}, full=state, sparse=False), when or tick())

    def delta(self, n, old, new, when=None, **metadata):
        """What changed."""
        pairs = {}
        for name, t in new.items():
            at = np.flatnonzero(old[name].data != t.data)
            if at.size:
                pairs[name] = (at, t.dtype, t.data[at])
        place(self.path(n), trl.delta_blob(n, pairs, **metadata), when or tick())

    def run(self, s, last, first=1):
        """An anchor, and deltas up to a number."""
        self.anchor(first, s[first])
        for n in range(first + 1, last + 1):
            self.delta(n, s[n - 1], s[n])


class Directories:
    """weight_v%06d, with XOR."""

    def __init__(self, root, name="weight_v{:06d}"):
        self.root, self.name = root, name
        self.making = root.parent / "making"

    def folder(self, n):
        """Where a version is."""
        return self.root / self.name.format(n)

    def move(self, n, when):
        """What was made appears at once."""
        made = self.making / self.name.format(n)
        for path in made.iterdir():
            os.utime(path, (when, when))
        if self.folder(n).exists():
            old = self.making / f"old-{next(TICK)}"
            self.folder(n).rename(old)
        made.rename(self.folder(n))

    def anchor(self, n, state, when=None):
        """A whole checkpoint."""
        hfdir.Trainer(self.making, {n: state}, name=self.name).full(n)
        self.move(n, when or tick())

    def delta(self, n, old, new, when=None, base=None):
        """What changed."""
        hfdir.Trainer(self.making, {n - 1: old, n: new}, name=self.name).delta(n, base)
        self.move(n, when or tick())

    run = Names.run


def names_run(root, s, last, first=1):
    """A run in TRL's layout."""
    writer = Names(root)
    writer.run(s, last, first)
    return writer


def directories_run(root, s, last, first=1):
    """A run of directories."""
    writer = Directories(root)
    writer.run(s, last, first)
    return writer


def declared_run(root, s, last, **options):
    """A published run."""
    return published.Published(root, **options).publish_all(s[1:last + 1])


class Row:
    """A situation: what happens in each of the three, and the sentences that status has."""

    def __init__(self, situation, says):
        self.situation, self.says, self.cases = situation, says, {}

    def case(self, layout):
        """Adds a test of one layout."""
        def add(function):
            self.cases[layout] = function
            return function
        return add

    def said(self, m, sentence):
        """Status has it, and so has the README."""
        assert sentence in self.says
        mounted.wait_until(lambda: sentence in (m.dot / "status").read_text(),
                           lambda: (m.dot / "status").read_text())
