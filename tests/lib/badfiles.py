"""Hand-made bad objects: what no writer should ever put into a bucket, one rule broken at a time.

CASES maps a name to (kind, make): make(number) gives the bytes of a bad delta of that number for
the model SMALL (see models).  Cases of one kind may share a sentence, others may not.
"""

import json

import numpy as np

from lib import safetensors_py as st
from lib import trl

A = 600                      # elements of a.weight in SMALL
VAL = '"a.weight.val":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}'
IDX = '"a.weight.idx":{"dtype":"U16","shape":[1],"data_offsets":[2,4]}'
DATA = b"\x80\x3f\x05\x00"


def meta(number, **changes):
    """The metadata of a one-element delta; None removes a key."""
    out = {"format": "sparse_weight_patch", "version": "1", "sparse": "True",
           "model_version": str(number), "num_changed_params": "1", "total_changed_elements": "1",
           "total_elements": str(A), "sparsity": "0.99", "encoding": "gap_delta"}
    out.update(changes)
    return {k: v for k, v in out.items() if v is not None}


def meta_text(number):
    """The metadata member as JSON text."""
    return '"__metadata__":' + json.dumps(meta(number), separators=(",", ":"))


def text(*members, data=DATA, tail=""):
    """make() of a file whose header has these members (as JSON text) after its metadata."""
    def make(number):
        body = "{" + ",".join([meta_text(number), *members]) + "}" + tail
        return st.frame(st.pad_text(body.encode("utf-8", "surrogatepass")), data)
    return make


def raw_header(header, data=DATA, length=None):
    """make() of a file with exactly these header bytes."""
    return lambda number: st.frame(header, data, length)


def good(number):
    """A sound delta: the same change that the bad ones pretend to make."""
    return trl.delta_blob(number, {"a.weight": ([5], "BF16", [number & 0xFFFF])})


def wide_delta(number):
    """A sound delta with every kind of section: several tensors, U32, BF16 and U16."""
    return trl.delta_blob(number, {
        "a.weight": ([1, 2, 599], "BF16", [1, 2, 3]),
        "b.weight": ([0, 40], "BF16", [4, 5]),
        "d.weight": ([0, 65791], "BF16", [6, 7]),
    })


def delta(pairs=None, **kwargs):
    """make() of a delta from positions and values."""
    return lambda number: trl.delta_blob(number, pairs or {}, **kwargs)


def tensors(make_tensors, **changes):
    """make() of a file from tensors made by hand, with a delta's metadata."""
    return lambda number: st.dump(make_tensors, meta(number, **changes))


def u16(*values):
    """A 1-D U16 index tensor."""
    return st.make("U16", (len(values),), np.array(values, "<u2"))


def bf16(*values):
    """A 1-D BF16 value tensor."""
    return st.make("BF16", (len(values),), np.array(values, "<u2"))


def i32(*values):
    """A 1-D I32 index tensor."""
    return st.make("I32", (len(values),), np.array(values, "<i4").view("<u4"))


def pair(index, values, name="a.weight"):
    """The two tensors of a v3 pair."""
    return {name + ".idx": index, name + ".val": values}


def info(dtype="BF16", shape="[1]", offsets="[0,2]"):
    """The value tensor's member with something changed."""
    return (f'"a.weight.val":{{"dtype":{json.dumps(dtype)},"shape":{shape},'
            f'"data_offsets":{offsets}}}')


def truncations():
    """Cuts of a sound delta at each of its section boundaries, and one byte before and after."""
    blob = wide_delta(1)
    header, start = st.split(blob)[1:]
    ends = sorted(i["data_offsets"][1] for n, i in header.items() if n != "__metadata__")
    out = {"nothing at all": ("too short", lambda n: b""),
           "four bytes": ("too short", lambda n: wide_delta(n)[:4]),
           "just the length": ("header cut", lambda n: wide_delta(n)[:8]),
           "half the header": ("header cut", lambda n: wide_delta(n)[:start // 2]),
           "header less a byte": ("header cut", lambda n: wide_delta(n)[:start - 1]),
           "header alone": ("data cut", lambda n: wide_delta(n)[:wide_start(n)])}
    for i, end in enumerate(ends):
        back = len(blob) - start - end
        if back:
            out[f"up to section {i}"] = ("data cut", cut(back))
        out[f"section {i} less a byte"] = ("data cut", cut(back + 1))
    return out


def wide_start(number):
    """Where the data of wide_delta(number) begins."""
    return st.split(wide_delta(number))[2]


def cut(back):
    """make() of a sound delta without its last bytes."""
    return lambda number: wide_delta(number)[:-back]


HEADER = {
    "length zero": ("no brace", raw_header(b"", b"")),
    "length of 2^63": ("header too large", raw_header(b"{}", DATA, 2**63)),
    "length of 2^64-1": ("header too large", raw_header(b"{}", DATA, 2**64 - 1)),
    "length over the cap": ("header too large", raw_header(b"{}", DATA, 100_000_001)),
    "length beyond the file": ("header cut", raw_header(b"{}", DATA, 4096)),
    "leading space": ("no brace", raw_header(b" {}     ", b"")),
    "an array": ("no brace", raw_header(b"[]      ", b"")),
    "zeros": ("no brace", raw_header(bytes(64), b"")),
    "JSON cut short": ("JSON", raw_header(b'{"a":{"dtype":"BF16"')),
    "JSON without colon": ("JSON", raw_header(b'{"a"  5}')),
    "text after the JSON": ("after the JSON", text(VAL, IDX, tail="x")),
    "newline as padding": ("after the JSON", text(VAL, IDX, tail="\n")),
    "zeros as padding": ("after the JSON", text(VAL, IDX, tail="\0")),
    "not UTF-8": ("UTF-8", raw_header(b'{"\xff\xfe":{"dtype":"U8","shape":[0],'
                                      b'"data_offsets":[0,0]}}', b"")),
    "overlong UTF-8": ("UTF-8", raw_header(b'{"\xc0\xaf":{"dtype":"U8","shape":[0],'
                                           b'"data_offsets":[0,0]}}', b"")),
    "lone surrogate": ("surrogate", text(r'"\ud800":{"dtype":"U8","shape":[0],'
                                         r'"data_offsets":[0,0]}', VAL, IDX)),
    "control byte in a string": ("JSON", text('"a\x01b":{}', VAL, IDX)),
    "tensor twice": ("tensor twice", text(VAL, IDX, VAL)),
    "metadata twice": ("metadata twice", text(VAL, IDX, '"__metadata__":{"a":"b"}')),
    "metadata key twice": ("metadata key twice",
                           raw_header(b'{"__metadata__":{"sparse":"True","sparse":"True"},'
                                      + f"{VAL},{IDX}".encode() + b"}")),
    "dtype twice": ("member twice", text(
        '"a.weight.val":{"dtype":"BF16","dtype":"BF16","shape":[1],"data_offsets":[0,2]}', IDX)),
    "metadata a number": ("metadata value", raw_header(
        b'{"__metadata__":{"sparse":1},' + f"{VAL},{IDX}".encode() + b"}")),
    "metadata null": ("metadata value", raw_header(
        b'{"__metadata__":{"sparse":null},' + f"{VAL},{IDX}".encode() + b"}")),
    "metadata an array": ("metadata no object", raw_header(
        b'{"__metadata__":[],' + f"{VAL},{IDX}".encode() + b"}")),
    "metadata with NUL": ("NUL in metadata", raw_header(
        b'{"__metadata__":{"sparse":"\\u0000"},' + f"{VAL},{IDX}".encode() + b"}")),
    "tensor a number": ("tensor no object", text('"a.weight.val":5', IDX)),
    "unknown member": ("unknown member", text(
        '"a.weight.val":{"dtype":"BF16","shape":[1],"data_offsets":[0,2],"x":1}', IDX)),
    "no dtype": ("no dtype", text('"a.weight.val":{"shape":[1],"data_offsets":[0,2]}', IDX)),
    "no shape": ("no shape", text('"a.weight.val":{"dtype":"BF16","data_offsets":[0,2]}', IDX)),
    "no offsets": ("no offsets", text('"a.weight.val":{"dtype":"BF16","shape":[1]}', IDX)),
    "unknown dtype": ("unknown dtype", text(info(dtype="BF17"), IDX)),
    "dtype a number": ("dtype no string", text(info(dtype=16), IDX)),
    "shape a number": ("shape no array", text(info(shape="1"), IDX)),
    "dimension negative": ("dimension", text(info(shape="[-1]"), IDX)),
    "dimension a fraction": ("dimension", text(info(shape="[1.0]"), IDX)),
    "dimension beyond 2^64": ("number too large", text(
        info(shape="[18446744073709551616]"), IDX)),
    "shape overflows": ("shape overflows", text(
        info(shape="[4294967296,4294967296,4294967296]"), IDX)),
    "bytes overflow": ("shape overflows", text(info(shape="[9223372036854775807]"), IDX)),
    "dimension of 2^63": ("number too large", text(info(shape="[9223372036854775808]"), IDX)),
    "rank 33": ("rank", text(info(shape="[" + ",".join(["1"] * 33) + "]"), IDX)),
    "one offset": ("two offsets", text(info(offsets="[0]"), IDX)),
    "three offsets": ("two offsets", text(info(offsets="[0,2,4]"), IDX)),
    "ends before it begins": ("begin after end", text(info(offsets="[2,0]"), IDX)),
    "size and shape differ": ("size and shape", text(info(shape="[2]"), IDX)),
    "first not at 0": ("hole", text(info(offsets="[2,4]"), IDX.replace("[2,4]", "[4,6]"),
                                    data=DATA + b"ab")),
    "a hole": ("hole", text(VAL, IDX.replace("[2,4]", "[4,6]"), data=DATA + b"ab")),
    "an overlap": ("overlap", text(VAL, IDX.replace("[2,4]", "[1,3]"), data=DATA[:3])),
    "trailing byte": ("trailing", text(VAL, IDX, data=DATA + b"x")),
    "data missing": ("data cut", text(VAL, IDX, data=b"")),
    "name empty": ("empty name", text('"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
                                      VAL, IDX)),
    "name with NUL": ("NUL in a name", text(
        r'"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}', VAL, IDX)),
    "name of 2049 bytes": ("long name", text(
        f'"{"n" * 2049}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', VAL, IDX)),
    "name of 4096 bytes": ("long name", text(
        f'"{"n" * 4096}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', VAL, IDX)),
    "sub-byte rest": ("sub-byte", text('"f":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}',
                                       data=b"ab")),
    "nested a million deep": (None, text('"a":' + "[" * 1_000_000, VAL, IDX)),
}

DELTA = {
    "index == numel, gaps": ("beyond the tensor", delta({"a.weight": ([1, A], "BF16", [1, 2])})),
    "index == numel, raw": ("beyond the tensor", delta({"a.weight": ([A], "BF16", [1])},
                                                       generation="v3-raw")),
    "index == numel, v1": ("beyond the tensor", delta({"a.weight": ([A], "BF16", [1])},
                                                      generation="v1.3")),
    "index far beyond": ("beyond the tensor", tensors(pair(
        st.make("U32", (3,), np.array([2**32 - 1] * 3, "<u4")), bf16(1, 2, 3)))),
    "index negative": ("beyond the tensor", tensors(pair(i32(-1), bf16(1)), encoding="raw")),
    "index 1 of a scalar": ("beyond the tensor", delta({"c.scale": ([1], "BF16", [1])})),
    "more than all": ("beyond the tensor", delta(
        {"b.weight": (np.arange(42), "BF16", np.arange(42))})),
    "unsorted": ("not ascending", tensors(pair(i32(5, 3, 9), bf16(1, 2, 3)), encoding="raw")),
    "twice the same": ("not ascending", tensors(pair(i32(5, 5), bf16(1, 2)), encoding="raw")),
    "unsorted across windows": ("not ascending", tensors(pair(
        i32(*range(65790), 7), bf16(*range(65790 - 60000), *([1] * 60001)), "d.weight"),
        encoding="raw")),
    "fewer values": ("length mismatch", tensors(pair(u16(1, 2, 3), bf16(1, 2)))),
    "more values": ("length mismatch", tensors(pair(u16(1), bf16(1, 2)))),
    "no values": ("length mismatch", tensors(pair(u16(1), bf16()))),
    "values in F32": ("other dtype", tensors(pair(u16(1), st.make(
        "F32", (1,), np.array([1], "<u4"))))),
    "values in F16": ("other dtype", tensors(pair(u16(1), st.make(
        "F16", (1,), np.array([1], "<u2"))))),
    "unknown tensor": ("unknown tensor", delta({"z.weight": ([1], "BF16", [1])})),
    "unknown tensor, full": ("unknown tensor", delta(full={"z.weight": bf16(1, 2)},
                                                     sparse=False)),
    "unknown tensor ../../x": ("unknown tensor", delta({"../../etc/x": ([1], "BF16", [1])})),
    "full with another shape": ("other shape", delta(full={"b.weight": bf16(1, 2)},
                                                     sparse=False)),
    "full with the shape turned": ("other shape", delta(full={
        "a.weight": st.make("BF16", (30, 20), np.zeros(A, "<u2"))}, sparse=False)),
    "full in another dtype": ("other full dtype", delta(full={
        "b.weight": st.make("F32", (41,), np.zeros(41, "<u4"))}, sparse=False)),
    "index without values": ("half a pair", tensors({"a.weight.idx": u16(1)})),
    "values without index": ("unknown tensor", tensors({"a.weight.val": bf16(1)})),
    "index of rank 2": ("rank of a pair", tensors(pair(
        st.make("U16", (1, 1), np.array([1], "<u2")), bf16(1)))),
    "values of rank 2": ("rank of a pair", tensors(pair(u16(1), st.make(
        "BF16", (1, 1), np.array([1], "<u2"))))),
    "index in F32": ("unknown tensor", tensors(pair(st.make(
        "F32", (1,), np.array([1], "<u4")), bf16(1)))),
    "index in I64": ("index dtype", tensors(pair(st.make(
        "I64", (1,), np.array([1], "<u8")), bf16(1)))),
    "raw with U16": ("index dtype", tensors(pair(u16(1), bf16(1)), encoding="raw")),
    "gaps with I32": ("index dtype", tensors(pair(i32(1), bf16(1)))),
    "nvcomp_cascaded": ("nvcomp", tensors(pair(st.make(
        "U8", (4,), np.zeros(4, "u1")), bf16(1)), encoding="nvcomp_cascaded")),
    "unknown encoding": ("unknown encoding", tensors(pair(u16(1), bf16(1)), encoding="zip")),
    "full and sparse": ("tensor in two ways", tensors({
        **pair(u16(1), bf16(1), "b.weight"), "b.weight": bf16(*range(41))})),
    "two pairs": ("tensor in two ways", tensors({
        **pair(u16(1), bf16(1)), "a.weight.indices": i32(1), "a.weight.values": bf16(1)})),
    "another predecessor": ("base version", lambda number: trl.delta_blob(
        number, {"a.weight": ([5], "BF16", [1])}, generation="v1.3",
        prev_model_version=str(number - 2), base_model_id="x", checksum_sha256="0" * 64)),
}

CASES = {**truncations(), **HEADER, **DELTA}
