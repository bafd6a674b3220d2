"""A receiver of HF-directory deltas, as slime's engines pull them: weight_v%06d directories; and a
trainer that writes them.

Written from the format's description alone, with the rules of its receivers: the index says what a
version is and is the sign that it is there; a version without `delta_encoding` is a whole
checkpoint; a delta applies to exactly its base_version; every tensor's checksum is compared; what
the index names and what the shards hold must agree.

    state = pull(root, base, target)      # {name: bytes}
"""

import json
import struct
import zlib
from pathlib import Path

import blake3
import numpy as np
import xxhash
import zstandard

from lib import safetensors_py as st

INDEX = "model.safetensors.index.json"


class Refused(Exception):
    """What a receiver does not accept."""


def read(path):
    """A safetensors file as (metadata, {name: (dtype, shape, bytes)})."""
    blob = Path(path).read_bytes()
    size, = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8:8 + size])
    metadata = header.pop("__metadata__", {})
    out, end = {}, 0
    for name, t in header.items():
        begin, stop = t["data_offsets"]
        if begin != end:
            raise Refused(f"{path}: {name} begins at {begin}, not {end}")
        end = stop
        out[name] = (t["dtype"], t["shape"], blob[8 + size + begin:8 + size + stop])
    if 8 + size + end != len(blob):
        raise Refused(f"{path}: {len(blob)} bytes, not {8 + size + end}")
    return metadata, out


def directory(root, version):
    """Where a version lies."""
    return Path(root) / f"weight_v{version:06d}"


def index_of(root, version):
    """The index of a version that is there."""
    path = directory(root, version) / INDEX
    if not path.exists():
        raise Refused(f"version {version} is not published: no {path}")
    return json.loads(path.read_text())


def whole(folder):
    """A checkpoint's tensors, {name: bytes}."""
    state = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        for name, (_, _, data) in read(path)[1].items():
            if name in state:
                raise Refused(f"{name} is twice in {folder}")
            state[name] = data
    return state


def frame(data, size, name):
    """A zstd frame's content; its content size must be there and right."""
    parameters = zstandard.get_frame_parameters(data)
    if parameters.content_size != size:
        raise Refused(f"{name}: a frame of {parameters.content_size} bytes for {size}")
    reader = zstandard.ZstdDecompressor().decompressobj()
    out = reader.decompress(data)
    if reader.unused_data or len(out) != size:
        raise Refused(f"{name}: not exactly one frame")
    return out


def checksum(algorithm, data):
    """A tensor's checksum, in the form of the metadata."""
    if algorithm != "xxh3-128":
        raise Refused(f"checksum {algorithm}")
    return xxhash.xxh3_128(data).hexdigest()


def apply_delta(state, folder, index, applied):
    """The state after a delta, which is checked in every way that a receiver can."""
    meta = index["metadata"]
    if int(meta["base_version"]) != applied:
        raise Refused(f"out of order: at {applied}, the delta builds on {meta['base_version']}")
    if (meta["delta_encoding"], meta["compression_format"]) != ("xor", "zstd"):
        raise Refused(f"{meta['delta_encoding']}, {meta['compression_format']}")
    files = {}
    for name, file in index["weight_map"].items():
        files.setdefault(file, set()).add(name)
    new = dict(state)
    for file, names in files.items():
        wanted, tensors = read(Path(folder) / file)
        if set(tensors) != names or set(wanted) != names:
            raise Refused(f"{file} holds {sorted(tensors)}, the index says {sorted(names)}")
        for name, (dtype, shape, data) in tensors.items():
            if dtype != "U8" or shape != [len(data)]:
                raise Refused(f"{name} is {dtype} {shape}")
            old = state[name]
            diff = frame(data, len(old), name)
            size = len(old)
            value = int.from_bytes(old, "little") ^ int.from_bytes(diff, "little")
            new[name] = value.to_bytes(size, "little")
            if checksum(meta["checksum_format"], new[name]) != wanted[name]:
                raise Refused(f"{name}: the checksum does not match")
    return new


def pull(root, base, target):
    """The state of version `target`: from the newest whole version at or below it (0: the engine's
    own, the directory `base`), then every delta."""
    start = target
    while start > 0 and "delta_encoding" in index_of(root, start)["metadata"]:
        start -= 1
    state = whole(directory(root, start) if start else base)
    for version in range(start + 1, target + 1):
        index = index_of(root, version)
        if int(index["metadata"]["version"]) != version:
            raise Refused(f"version {version} says {index['metadata']['version']}")
        state = apply_delta(state, directory(root, version), index, version - 1)
    return state


# ---- a trainer's side ----

def compress(data, stated=True):
    """One zstd frame; without `stated` it does not say its size."""
    if stated:
        return zstandard.ZstdCompressor(level=1).compress(data)
    writer = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    return writer.compress(data) + writer.flush()


def change(old, new, encoding):
    """What a frame holds for one tensor's bytes."""
    a, b = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if encoding == "xor":
        return (a ^ b).tobytes()
    at = np.flatnonzero(a != b)
    return struct.pack("<I", len(at)) + at.astype("<u4").tobytes() + b[at].tobytes()


CHECKSUMS = {"xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
             "blake3": lambda data: blake3.blake3(data).hexdigest(),
             "adler32": lambda data: f"{zlib.adler32(data):08x}"}


class Trainer:
    """Writes versions as slime does: shards of changed tensors, then the index."""

    def __init__(self, root, states, encoding="xor", shards=2, stated=True, name="weight_v{:06d}",
                 sums="xxh3-128"):
        self.root, self.states, self.encoding = Path(root), states, encoding
        self.shards, self.stated, self.name, self.sums = shards, stated, name, sums

    def folder(self, version):
        """Where a version goes."""
        return self.root / self.name.format(version)

    def bytes_of(self, version):
        """{name: bytes} of a state; version 0 is the first."""
        return {n: t.data.tobytes() for n, t in self.states[version].items()}

    def delta(self, version, base=None, wrong=None):
        """A delta from the version before; `wrong` replaces frames, {name: bytes}."""
        old, new = self.bytes_of(version - 1), self.bytes_of(version)
        changed = [n for n in new if new[n] != old[n]]
        frames = {n: compress(change(old[n], new[n], self.encoding), self.stated)
                  for n in changed}
        frames.update(wrong or {})
        parts = [p for p in (changed[i::self.shards] for i in range(self.shards)) if p]
        self.folder(version).mkdir(parents=True, exist_ok=True)
        weight_map = {}
        for i, names in enumerate(parts):
            file = f"model-{i:05d}-of-{len(parts):05d}.safetensors"
            tensors = {n: st.Tensor("U8", (len(frames[n]),), np.frombuffer(frames[n], np.uint8))
                       for n in names}
            sums = {n: CHECKSUMS[self.sums](new[n]) for n in names}
            self.put(version, file, st.dump(tensors, sums))
            weight_map.update({n: file for n in names})
        number = f"{version - 1 if base is None else base:06d}"
        self.put(version, INDEX, json.dumps({"metadata": {
            "version": f"{version:06d}", "base_version": number, "delta_encoding": self.encoding,
            "compression_format": "zstd", "checksum_format": self.sums},
            "weight_map": weight_map}).encode())

    def full(self, version):
        """A whole checkpoint."""
        self.folder(version).mkdir(parents=True, exist_ok=True)
        self.put(version, "model.safetensors", st.dump(self.states[version], {"format": "pt"}))
        self.put(version, "config.json", b'{"model_type": "tiny"}')

    def put(self, version, name, data):
        """By a temporary name, as the trainers do."""
        path = self.folder(version) / name
        tmp = path.with_name("." + name + ".tmp")
        tmp.write_bytes(data)
        tmp.rename(path)
