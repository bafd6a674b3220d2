"""The block cache's files, read by a second implementation of their format (cache/disk.h): which
pieces of which objects does a cache directory have whose hash holds?"""

import ctypes
import os
import struct
from pathlib import Path
from typing import NamedTuple

PIECE = 128 << 10
HEADER = 4096
MAGIC = b"wfsblk\r\n"
MASK = (1 << 64) - 1

_xxh = ctypes.CDLL("libxxhash.so.0")
_xxh.XXH3_64bits_withSeed.restype = ctypes.c_uint64
_xxh.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]


class Kept(NamedTuple):
    """An object in the cache; `recorded` pieces have a record, `good` ones also hash to it."""

    key: str
    size: int
    data: Path
    index: Path
    recorded: frozenset
    good: frozenset


def hash_of(data, seed=0):
    """xxh3-64"""
    return _xxh.XXH3_64bits_withSeed(data, len(data), seed)


def pieces_of(size):
    """How many an object has."""
    return -(-size // PIECE)


def look_at(index):
    """One object, or None when its header is not one."""
    head = index.read_bytes()
    if len(head) < HEADER or head[:8] != MAGIC:
        return None
    _, piece, identity, size, length = struct.unpack_from("<II16sQI", head, 8)
    check = struct.unpack_from("<Q", head, HEADER - 8)[0]
    if identity.hex() != index.stem or piece != PIECE or check != hash_of(head[:HEADER - 8]):
        return None
    a, b = struct.unpack("<QQ", identity)
    count = min(pieces_of(size), (len(head) - HEADER) // 8)
    records = struct.unpack_from(f"<{count}Q", head, HEADER)
    data, good = index.with_suffix(".data"), set()
    recorded = {n for n, record in enumerate(records) if record}
    if data.exists():
        with data.open("rb") as f:
            for n in recorded:
                want = min(PIECE, size - n * PIECE)
                blob = os.pread(f.fileno(), want, n * PIECE)
                seed = (a ^ b ^ ((n + 1) * 0x9E3779B97F4A7C15)) & MASK
                if len(blob) == want and (hash_of(blob, seed) or 1) == records[n]:
                    good.add(n)
    return Kept(head[44:44 + length].decode(), size, data, index, frozenset(recorded),
                frozenset(good))


def kept(cache):
    """{key: Kept} of a cache directory that nobody writes just now."""
    out = {}
    for index in sorted((cache / "blocks").glob("*.index")):
        one = look_at(index)
        if one:
            out[one.key] = one
    return out


def pieces_in(first, last):
    """The pieces that a range of bytes touches."""
    return set(range(first // PIECE, last // PIECE + 1))
