"""Runs of any size, written fast: TRL v3 objects straight from numpy, for measuring.

The anchor's bytes are random; a delta sets a part of every tensor's elements to random values.  The
names' order is not the file's order, and sizes vary, as in real models.
"""

import json
import random
import struct

import numpy as np

META = {"format": "sparse_weight_patch", "version": "1", "encoding": "gap_delta"}
MIB = 1 << 20


def write_file(path, entries, meta, blobs):
    """One safetensors file; blobs in the order of the entries' offsets."""
    head = json.dumps({"__metadata__": meta, **entries}, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for blob in blobs:
            f.write(blob)
    part.rename(path)
    return 8 + len(head)


class BigRun:
    """A run of one file's worth of bf16 tensors: anchor() once, then delta() for each step."""

    def __init__(self, root, mib, density=0.01, seed=1):
        self.root, self.density, self.number = root, density, 0
        self.rng = np.random.default_rng(seed)
        sizes = [(1, 3, 8, 2, 16, 5)[i % 6] * MIB // 2 for i in range(mib)]
        total, self.elements = 0, []
        for n in sizes:
            if total >= mib * MIB // 2:
                break
            self.elements.append(n)
            total += n
        names = [f"model.layers.{i}.mlp.weight" for i in range(len(self.elements))]
        random.Random(seed).shuffle(names)
        self.names = names
        self.places = []

    def anchor(self):
        """Version 1; notes where each tensor lies in the file."""
        self.number = 1
        entries, at = {}, 0
        for name, n in zip(self.names, self.elements):
            entries[name] = {"dtype": "BF16", "shape": [n], "data_offsets": [at, at + 2 * n]}
            at += 2 * n
        meta = {**META, "sparse": "False", "model_version": "1"}
        head = write_file(self.root / "anchors" / "step_000001.safetensors", entries, meta,
                          (self.rng.bytes(2 * n) for n in self.elements))
        self.places = sorted((name, head + e["data_offsets"][0], 2 * e["shape"][0])
                             for name, e in entries.items())

    def delta(self):
        """The next version; the path of its object."""
        self.number += 1
        entries, blobs, at = {}, [], 0
        gaps = []
        for n in self.elements:
            count = max(1, int(n * self.density))
            step = self.rng.integers(0, max(1, 2 * n // count - 1), count, dtype=np.uint32)
            gaps.append(step[:int(np.searchsorted(np.cumsum(step.astype(np.int64) + 1), n))])
        for suffix, dtype, width in ((".idx", "U32", 4), (".val", "BF16", 2)):
            for name, gap in zip(self.names, gaps):
                entries[name + suffix] = {"dtype": dtype, "shape": [len(gap)],
                                          "data_offsets": [at, at + width * len(gap)]}
                at += width * len(gap)
                blobs.append(gap.astype("<u4").tobytes() if width == 4
                             else self.rng.bytes(2 * len(gap)))
        meta = {**META, "sparse": "True", "model_version": str(self.number)}
        path = self.root / "deltas" / f"step_{self.number:06d}.safetensors"
        write_file(path, entries, meta, blobs)
        return path

    def write_places(self, path):
        """Offset and length of each tensor, in the order of the names."""
        path.write_text("".join(f"{off} {length}\n" for _, off, length in self.places))
