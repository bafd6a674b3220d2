"""A run of about a terabyte is no different: sparse files, 100,000 tensors, two deltas.

The anchor is a sparse file whose holes read as zeros, so a terabyte costs nothing; the deltas are
real.  What must hold: the mount is there in seconds, random reads are right to the last byte, and
the daemon's memory stays within 200 MB + 64 MB per active reader whatever is read.
"""

import json
import os
import random
import struct

import numpy as np

from lib import mounted

TENSORS = 100_000
NUMEL = 5 * 2**20 + 3  # 10 MiB of bf16 and a bit: 1.05 TB in all, offsets not aligned to blocks
META = {"format": "sparse_weight_patch", "version": "1"}
PER_TENSOR = 12


def name_of(i):
    """A name as long as real ones are."""
    return f"model.layers.{i // 100:05d}.mlp.experts.{i % 100:03d}.down_proj.weight"


def write_header(path, entries, meta, data_size):
    """The header of a file whose data is all zeros for now."""
    head = json.dumps({"__metadata__": meta, **entries}, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + data_size)
    return 8 + len(head)


def write_anchor(path):
    """All tensors, full, zero."""
    size = NUMEL * 2
    entries = {name_of(i): {"dtype": "BF16", "shape": [NUMEL],
                            "data_offsets": [i * size, i * size + size]}
               for i in range(TENSORS)}
    meta = {**META, "sparse": "False", "model_version": "1", "encoding": "gap_delta"}
    return write_header(path, entries, meta, TENSORS * size)


def delta_of(number, tensors, seed):
    """Positions and values of every tensor's change: {tensor: (positions, values)}."""
    rng = np.random.default_rng(seed)
    out = {}
    for i in tensors:
        positions = np.unique(rng.integers(0, NUMEL, PER_TENSOR))
        positions[-1] = NUMEL - 1 - (i % 3)  # the last elements are where mistakes are
        positions = np.unique(positions)
        out[i] = positions, rng.integers(1, 65536, len(positions), dtype=np.uint16)
    return out


def write_delta(path, number, changes):
    """TRL v3, gap_delta with U32 gaps."""
    entries, blobs, at = {}, [], 0
    for i, (positions, _) in changes.items():
        gaps = np.diff(positions, prepend=-1) - 1
        blobs.append(gaps.astype("<u4").tobytes())
        entries[name_of(i) + ".idx"] = {"dtype": "U32", "shape": [len(gaps)],
                                        "data_offsets": [at, at + 4 * len(gaps)]}
        at += 4 * len(gaps)
    for i, (_, values) in changes.items():
        blobs.append(values.astype("<u2").tobytes())
        entries[name_of(i) + ".val"] = {"dtype": "BF16", "shape": [len(values)],
                                        "data_offsets": [at, at + 2 * len(values)]}
        at += 2 * len(values)
    meta = {**META, "sparse": "True", "model_version": str(number), "encoding": "gap_delta"}
    head = write_header(path, entries, meta, at)
    with open(path, "r+b") as f:
        f.seek(head)
        f.write(b"".join(blobs))


def expected(offset, length, data, deltas):
    """The bytes of a range of the data part, from nothing but the deltas."""
    out = bytearray(length)
    size = NUMEL * 2
    for i in range(offset // size, (offset + length - 1) // size + 1):
        for changes in deltas:
            if i not in changes:
                continue
            for position, value in zip(*changes[i]):
                for k, byte in enumerate(int(value).to_bytes(2, "little")):
                    at = i * size + 2 * int(position) + k - offset
                    if 0 <= at < length:
                        out[at] = byte
    return bytes(out)


def rss_mb(pid):
    """Resident memory of a process in MB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


def test_terabyte(bucket):
    """Mount, read at random and at the edges of changes, and look at the memory."""
    (bucket / "anchors").mkdir()
    (bucket / "deltas").mkdir()
    head = write_anchor(bucket / "anchors/step_000001.safetensors")
    first = delta_of(2, range(0, TENSORS, 5), seed=2)
    second = delta_of(3, range(TENSORS), seed=3)
    write_delta(bucket / "deltas/step_000002.safetensors", 2, first)
    write_delta(bucket / "deltas/step_000003.safetensors", 3, second)
    with mounted.Mount(bucket) as m:
        m.wait_version(3)
        path = m.at / "model.safetensors"
        assert path.stat().st_size == head + TENSORS * NUMEL * 2
        rng = random.Random(1)
        fd = os.open(path, os.O_RDONLY)
        try:
            for n in range(300):
                if n % 2:  # right around an element that changed
                    i = rng.randrange(TENSORS)
                    at = i * NUMEL * 2 + 2 * int(rng.choice(second[i][0])) - rng.randrange(70_000)
                else:
                    at = rng.randrange(TENSORS * NUMEL * 2)
                length = min(rng.choice([1, 7, 4096, 131_072, 1_048_576]),
                             TENSORS * NUMEL * 2 - max(at, 0))
                at = max(at, 0)
                got = os.pread(fd, length, head + at)
                assert got == expected(at, length, head, [first, second]), (at, length)
            end = head + TENSORS * NUMEL * 2
            last = expected(end - head - 10, 10, head, [first, second])
            assert os.pread(fd, 100, end - 10) == last
        finally:
            os.close(fd)
        used = rss_mb(m.process.pid)
        print(f"resident: {used:.0f} MB")
        if mounted.VARIANT == "release":
            assert used <= 200 + 64
