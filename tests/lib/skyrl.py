"""A trainer and an engine of SkyRL's checkpoint deltas: delta-%08d directories with a manifest.

Written from the format's description alone (NovaSky-AI/SkyRL, weight_sync/delta/checkpoint.py):
version 0 is the engine's own checkpoint, nothing is published for it; every version says which one
it builds on; a changed tensor is one zstd frame of its new bytes XOR its old ones, as a U8 tensor
of a payload file; the manifest, written last, says of each where it lies, of what dtype and shape
it is, how many bytes it has packed and unpacked, and a checksum of its new bytes.

    state = pull(root, base, target)      # {name: bytes}
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import xxhash
import zstandard

from lib import hfdir
from lib import safetensors_py as st

MANIFEST = "manifest.json"
TORCH = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
         "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
         "F64": "float64", "I64": "int64", "U64": "uint64", "F8_E4M3": "float8_e4m3fn",
         "F8_E5M2": "float8_e5m2"}
SUMS = {"xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
        "sha256": lambda data: hashlib.sha256(data).hexdigest()}


class Refused(Exception):
    """What an engine does not accept."""


def directory(root, version):
    """Where a version lies."""
    return Path(root) / f"delta-{version:08d}"


def checksum_of(record):
    """(algorithm, digest) of a record; older ones have a key for it."""
    if "checksum" in record:
        return record.get("checksum_algorithm", "xxh3-128"), record["checksum"]
    return "sha256", record["sha256"]


def apply_delta(state, folder, applied):
    """The state after a version."""
    manifest = json.loads((folder / MANIFEST).read_text())
    if manifest["base_version"] != applied:
        raise Refused(f"at {applied}, the delta builds on {manifest['base_version']}")
    new = dict(state)
    for record in manifest["tensors"]:
        name, old = record["name"], state[record["name"]]
        if record["payload_file"] not in manifest["payload_files"]:
            raise Refused(f"{record['payload_file']} is not among the payload files")
        payload = hfdir.read(folder / record["payload_file"])[1][record["payload_key"]]
        if payload[0] != "U8" or len(payload[2]) != record["compressed_num_bytes"]:
            raise Refused(f"{name}: {payload[0]}, {len(payload[2])} bytes")
        change = zstandard.ZstdDecompressor().decompress(
            payload[2], max_output_size=record["uncompressed_num_bytes"])
        if len(change) != len(old):
            raise Refused(f"{name}: {len(change)} bytes for {len(old)}")
        new[name] = (np.frombuffer(old, np.uint8) ^ np.frombuffer(change, np.uint8)).tobytes()
        algorithm, digest = checksum_of(record)
        if SUMS[algorithm](new[name]) != digest:
            raise Refused(f"{name}: the checksum does not match")
    return new


def pull(root, base, target):
    """The state of version `target`: the engine's own checkpoint and every delta."""
    state = hfdir.whole(base)
    for version in range(1, target + 1):
        state = apply_delta(state, directory(root, version), version - 1)
    return state


class Trainer:
    """Writes versions: payload files of `ranks` ranks, each of at most `most` packed bytes (or one
    tensor), then the manifest.  `sums` "older" leaves the algorithm to the key's name."""

    def __init__(self, root, states, ranks=1, most=1 << 20, sums="xxh3-128", level=3):
        self.root, self.states, self.ranks = Path(root), states, ranks
        self.most, self.sums, self.level = most, sums, level

    def folder(self, version):
        """Where a version goes."""
        return directory(self.root, version)

    def frames(self, version):
        """{name: frame} of the tensors that change."""
        out = {}
        for name, tensor in self.states[version].items():
            new, old = tensor.data.view("u1"), self.states[version - 1][name].data.view("u1")
            if not np.array_equal(new, old):
                out[name] = zstandard.ZstdCompressor(self.level).compress((new ^ old).tobytes())
        return out

    def record(self, version, name, frame, file):
        """What the manifest says of a tensor."""
        tensor = self.states[version][name]
        data = tensor.data.tobytes()
        out = {"name": name, "dtype": TORCH[tensor.dtype], "shape": list(tensor.shape),
               "uncompressed_num_bytes": len(data), "compressed_num_bytes": len(frame),
               "payload_file": file, "payload_key": name}
        if self.sums == "older":
            return {**out, "sha256": SUMS["sha256"](data)}
        return {**out, "checksum": SUMS[self.sums](data), "checksum_algorithm": self.sums}

    def files(self, frames):
        """{file: names}: each rank has every ranks-th tensor, and fills file after file."""
        out = {}
        for rank in range(self.ranks):
            number, used = 0, 0
            for name in list(frames)[rank::self.ranks]:
                if used > 0 and used + len(frames[name]) > self.most:
                    number, used = number + 1, 0
                file = f"delta-rank{rank:05d}-file{number:06d}.safetensors"
                out.setdefault(file, []).append(name)
                used += len(frames[name])
        return out

    def delta(self, version, wrong=None, edit=None):
        """A version; `wrong` replaces frames, `edit` is given the manifest before it is written."""
        frames = {**self.frames(version), **(wrong or {})}
        records = []
        files = self.files(frames)
        self.folder(version).mkdir(parents=True, exist_ok=True)
        for file, names in files.items():
            tensors = {n: st.Tensor("U8", (len(frames[n]),), np.frombuffer(frames[n], np.uint8))
                       for n in names}
            self.put(version, file, st.dump(tensors))
            records += [self.record(version, n, frames[n], file) for n in names]
        manifest = {
            "version": version, "base_version": version - 1, "tensors": records,
            "total_uncompressed_num_bytes": sum(r["uncompressed_num_bytes"] for r in records),
            "total_compressed_num_bytes": sum(r["compressed_num_bytes"] for r in records),
            "payload_files": list(files)}
        if edit is not None:
            edit(manifest)
        self.put(version, MANIFEST, json.dumps(manifest).encode())

    def put(self, version, name, data):
        """By a temporary name, as the trainer does."""
        path = self.folder(version) / name
        tmp = path.with_name(f".{name}.1.tmp")
        tmp.write_bytes(data)
        tmp.rename(path)
