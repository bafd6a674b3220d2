"""A trainer that writes Fireworks' incremental snapshots (arc_v2), from the description alone.

A delta has a file for each file of the checkpoint, with each of its tensors, changed or not: U8,
one zstd frame of the XOR of all its bytes; the metadata have the Adler-32 of the new bytes, in
decimal.  The request that loads it, which says what it applies to, is written beside the files,
last.  The index of a checkpoint in shards is there as it is.
"""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import zstandard

from lib import safetensors_py as st

INDEX = "model.safetensors.index.json"
REQUEST = "incremental_snapshot_metadata.json"


def change(old, new):
    """A tensor of a delta file."""
    xor = np.frombuffer(old.data.tobytes(), np.uint8) ^ np.frombuffer(new.data.tobytes(), np.uint8)
    frame = zstandard.ZstdCompressor(level=3).compress(xor.tobytes())
    return st.Tensor("U8", (len(frame),), np.frombuffer(frame, np.uint8))


class Trainer:
    """Writes versions of {name: Tensor} states below a root."""

    def __init__(self, root, shards=1, name="step_{:06d}", whole=True):
        self.root, self.shards, self.name, self.whole = Path(root), shards, name, whole

    def folder(self, version):
        """Where a version goes."""
        return self.root / self.name.format(version)

    def files(self, names):
        """{file: names}, the same for every version."""
        if self.shards == 1:
            return {"model.safetensors": list(names)}
        out = {f"model-{i + 1:05d}-of-{self.shards:05d}.safetensors": list(names)[i::self.shards]
               for i in range(self.shards)}
        assert all(out.values())
        return out

    def put(self, version, name, data):
        """One object, by a temporary name."""
        path = self.folder(version) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.with_name("." + name)
        tmp.write_bytes(data)
        os.rename(tmp, path)

    def index(self, version, state):
        """The checkpoint's index, where there are shards."""
        files = self.files(state)
        if len(files) > 1:
            total = sum(t.data.nbytes for t in state.values())
            self.put(version, INDEX, json.dumps(
                {"metadata": {"total_size": total},
                 "weight_map": {n: f for f, names in files.items() for n in names}}).encode())

    def full(self, version, state):
        """A whole snapshot."""
        for file, names in self.files(state).items():
            self.put(version, file, st.dump({n: state[n] for n in names}, {"format": "pt"}))
        self.put(version, "config.json", b'{"model_type": "tiny"}')
        self.index(version, state)

    def delta(self, version, base, old, new, request=True, **meta):
        """An incremental one; keyword arguments change the request."""
        self.index(version, new)
        self.put(version, "config.json", b'{"model_type": "tiny"}')
        for file, names in self.files(new).items():
            sums = {n: str(zlib.adler32(new[n].data.tobytes())) for n in names}
            self.put(version, file, st.dump({n: change(old[n], new[n]) for n in names}, sums))
        if request:
            self.request(version, base, **meta)

    def request(self, version, base, **meta):
        """The request, whole or only its object about the delta."""
        meta = {"previous_snapshot_identity": self.name.format(base),
                "compression_format": "arc_v2", "checksum_format": "alder32", **meta}
        if self.whole:
            meta = {"identity": self.name.format(version), "incremental_snapshot_metadata": meta}
        self.put(version, REQUEST, json.dumps(meta).encode())
