"""Runs of very many versions of a model that is next to nothing, written fast: for what a round of
looking costs.  One BF16 tensor of COUNT elements; version N sets element N % COUNT to N, and that
is all there is to know of it.
"""

import json
import os
import struct

import numpy as np

from lib import hfdir, published, trl
from lib import safetensors_py as st

COUNT = 64
NAME = "model.weight"
INDEX = "model.safetensors.index.json"


def state(version):
    """The tensor's elements at a version."""
    data = np.zeros(COUNT, "<u2")
    for n in range(max(1, version - COUNT + 1), version + 1):
        data[n % COUNT] = n % 65536
    return {NAME: st.Tensor("BF16", (COUNT,), data)}


def expected(version):
    """Its bytes."""
    return state(version)[NAME].data.tobytes()


def write(path, blob, when=None):
    """An object, of a time of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
    if when is not None:
        os.utime(path, (when, when))


def times(count, when):
    """One second per version, the last one at `when`."""
    return lambda version: when - count + version


class Trl:
    """TRL v3: an anchor at 1 and each `interval`, deltas elsewhere."""

    def __init__(self, root, interval=20):
        self.root, self.interval = root, interval

    def version(self, n, when=None):
        """Writes a version."""
        if n == 1 or (self.interval and n % self.interval == 0):
            blob = trl.delta_blob(n, {}, full=state(n), sparse=False)
            write(self.root / "anchors" / f"step_{n:06d}.safetensors", blob, when)
        else:
            blob = trl.delta_blob(n, {NAME: ([n % COUNT], "BF16", [n % 65536])})
            write(self.root / "deltas" / f"step_{n:06d}.safetensors", blob, when)


class HfDir:
    """A directory per version: whole checkpoints at 1 and each `interval`, XOR deltas elsewhere."""

    def __init__(self, root, interval=20, name="weight_v{:06d}"):
        self.root, self.interval, self.name = root, interval, name

    def version(self, n, when=None):
        """Writes a version."""
        at = self.root / self.name.format(n)
        if n == 1 or (self.interval and n % self.interval == 0):
            write(at / "model.safetensors", st.dump(state(n), {"format": "pt"}), when)
            return
        old, new = expected(n - 1), expected(n)
        frame = np.frombuffer(hfdir.compress(hfdir.change(old, new, "xor")), np.uint8)
        file = "model-00000-of-00001.safetensors"
        blob = st.dump({NAME: st.Tensor("U8", (len(frame),), frame)},
                       {NAME: hfdir.CHECKSUMS["xxh3-128"](new)})
        write(at / file, blob, when)
        write(at / INDEX, json.dumps({"metadata": {
            "version": f"{n:06d}", "base_version": f"{n - 1:06d}", "delta_encoding": "xor",
            "compression_format": "zstd", "checksum_format": "xxh3-128"},
            "weight_map": {NAME: file}}).encode(), when)


class Declared(published.Published):
    """A weightfs.json of very many lines."""

    def __init__(self, root, interval=20):
        super().__init__(root)
        self.interval = interval

    def version(self, n, when=None):
        """Writes a version, but not yet weightfs.json: pointer()."""
        self.states = {k: self.states[k] for k in (n - 1,) if k in self.states}
        self.states[n] = state(n)
        if n == 1 or (self.interval and n % self.interval == 0):
            self.steps.append(self.anchor(n, self.states[n]))
        if n > 1:
            self.steps.append(self.delta(n - 1, n))


KINDS = {"trl": Trl, "declared": Declared, "directories": HfDir}


def make(kind, root, count, when, interval=20):
    """A run of `count` versions, finished at `when`; the writer."""
    writer = KINDS[kind](root, interval)
    at = times(count, when)
    for n in range(1, count + 1):
        writer.version(n, at(n))
    if kind == "declared":
        writer.pointer()
    return writer


def data_of(path):
    """The data of a file that holds the one tensor."""
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        f.seek(8 + length)
        return f.read()
