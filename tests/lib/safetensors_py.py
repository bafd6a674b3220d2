"""A tiny reader and writer of safetensors files, independent of the safetensors package.

The package refuses to write what the tests need most: headers in any order, with any padding, any
metadata and any mistake.  Tensors are (dtype, shape, data) with data a flat numpy array of unsigned
integers of the element's width, so that NaNs and signed zeros are nothing special.
"""

import json
import struct
from typing import NamedTuple

import numpy as np

# In the order of the Rust writer's enum: it sorts a file's tensors by dtype, last one first.
DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}
RANK = {name: i for i, name in enumerate(DTYPES)}
CARRIER = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4"), 64: np.dtype("<u8")}


class Tensor(NamedTuple):
    """One tensor: data is flat, little-endian, unsigned, as wide as an element."""

    dtype: str
    shape: tuple
    data: np.ndarray


def width(dtype):
    """Bytes of one element; sub-byte types count as bytes."""
    return max(DTYPES[dtype] // 8, 1)


def carrier(dtype):
    """The numpy type that holds one element's bits."""
    return CARRIER[8 * width(dtype)]


def numel(shape):
    """Number of elements of a shape; 1 for rank 0."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def make(dtype, shape, data):
    """A Tensor from anything array-like of the right element width."""
    flat = np.ascontiguousarray(data).reshape(-1)
    if flat.dtype.kind != "u":
        flat = flat.view(carrier(dtype))
    return Tensor(dtype, tuple(shape), flat.astype(carrier(dtype), copy=False))


def torch_order(tensors):
    """Names as the Rust writer lays them out: dtype (widest enum first), then name (as UTF-8)."""
    return sorted(tensors, key=lambda n: (-RANK[tensors[n].dtype], n.encode()))


def entries(tensors, order):
    """The header's tensor entries for a file that holds the tensors in this order without holes."""
    out, at = {}, 0
    for name in order:
        size = tensors[name].data.nbytes
        out[name] = {"dtype": tensors[name].dtype, "shape": list(tensors[name].shape),
                     "data_offsets": [at, at + size]}
        at += size
    return out


def header_json(entry_map, metadata=None, metadata_last=False):
    """The compact JSON text of a header."""
    meta = {"__metadata__": metadata} if metadata is not None else {}
    whole = {**entry_map, **meta} if metadata_last else {**meta, **entry_map}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


def frame(text, data=b"", length=None):
    """8 length bytes, JSON text (as bytes) and data; `length` to lie about the text's length."""
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def pad_text(text, align=8, extra=0):
    """Pads with spaces so that 8 + len is a multiple of align, plus `extra` more units of align."""
    return text + b" " * (-(8 + len(text)) % align + extra * align)


def dump(tensors, metadata=None, order=None, align=8, extra=0, metadata_last=False):
    """The bytes of a file.  tensors: {name: Tensor}; order: names as they lie in the file."""
    order = torch_order(tensors) if order is None else order
    text = header_json(entries(tensors, order), metadata, metadata_last)
    data = b"".join(tensors[name].data.tobytes() for name in order)
    return frame(pad_text(text, align, extra), data)


def split(blob):
    """(header JSON text, parsed header, offset of the data) of a file's bytes."""
    length = struct.unpack_from("<Q", blob)[0]
    text = bytes(blob[8:8 + length])
    assert len(text) == length, "file ends inside its header"
    return text, json.loads(text), 8 + length


def load(blob):
    """({name: Tensor} in offset order, metadata or None) of a file's bytes."""
    _, header, start = split(blob)
    metadata = header.pop("__metadata__", None)
    tensors = {}
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = info["data_offsets"]
        raw = bytes(blob[start + begin:start + end])
        data = np.frombuffer(raw, dtype=carrier(info["dtype"]))
        tensors[name] = Tensor(info["dtype"], tuple(info["shape"]), data)
    return tensors, metadata


def load_file(path):
    """load() of a path."""
    with open(path, "rb") as f:
        return load(f.read())
