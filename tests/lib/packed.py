"""A reader of packed safetensors files, written from their specification alone (codec/pack.h)."""

import numpy as np
import zstandard

from lib import safetensors_py as st
from lib.blockfiles import hash_of

BLOCK = 65536


def number(data, at, size):
    """A little-endian number."""
    assert 0 <= at <= len(data) - size
    return int.from_bytes(data[at:at + size], "little")


def unpack_block(data, elements, width):
    """The original bytes of a block."""
    lengths = [number(data, 4 * p, 4) for p in range(width)]
    at, planes = 4 * width, []
    for length in lengths:
        plane, at = data[at:at + length], at + length
        if length != elements:
            assert length < elements
            assert zstandard.frame_content_size(plane) == elements
            plane = zstandard.ZstdDecompressor().decompress(plane)
        assert len(plane) == elements
        planes.append(np.frombuffer(plane, np.uint8))
    assert at == len(data)
    return np.stack(planes, axis=1).tobytes()


def unpack_tensor(data, size, width):
    """The original bytes of a tensor; every block's hash is compared."""
    blocks = -(-size // (BLOCK * width))
    entries = [(number(data, 16 * b, 8), number(data, 16 * b + 8, 8)) for b in range(blocks + 1)]
    assert entries[0][1] == 0 and entries[-1] == (0, len(data) - 16 * (blocks + 1))
    out, payload = [], data[16 * (blocks + 1):]
    for b in range(blocks):
        length = min(size - b * BLOCK * width, BLOCK * width)
        block = unpack_block(payload[entries[b][1]:entries[b + 1][1]], length // width, width)
        assert hash_of(block) == entries[b][0]
        out.append(block)
    return b"".join(out)


def unpack(blob):
    """The original file's bytes."""
    _, header, start = st.split(blob)
    meta = header["__metadata__"]
    assert (meta["format"], meta["packed_version"]) == ("weightfs-packed", "1")
    text = meta["header"].encode()
    original = bytearray(len(text).to_bytes(8, "little") + text)
    _, inner, _ = st.split(bytes(original) + bytes(0))
    data = len(original)
    original += bytes(int(meta["original_size"]) - data)
    for name, info in inner.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        if begin == end:
            assert name not in header
            continue
        assert header[name]["dtype"] == "U8"
        at = header[name]["data_offsets"]
        original[data + begin:data + end] = unpack_tensor(
            blob[start + at[0]:start + at[1]], end - begin, st.width(info["dtype"]))
    return bytes(original)
