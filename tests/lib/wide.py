"""Tensors of billions of elements in files that take no room, and deltas that change a few of them,
written position by position in each format that can say it.

A change is {position: byte}; the tensor is of one byte an element, and zero before.
"""

import json
import struct

import numpy as np
import xxhash

from lib import bigrun, hfdir, published
from lib import safetensors_py as st

NAME, DTYPE = "model.embed.weight", "F8_E4M3"
BLOCK = 1 << 17  # of a zstd frame, at most


def sparse_file(path, entries, metadata, size):
    """A safetensors file whose data is a hole; where that begins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = st.pad_text(st.header_json(entries, metadata))
    with open(path, "wb") as f:
        f.write(st.frame(text))
        f.truncate(8 + len(text) + size)
    return 8 + len(text)


def anchor(path, numel, metadata=None):
    """The tensor, all zeros."""
    return sparse_file(path, {NAME: {"dtype": DTYPE, "shape": [numel], "data_offsets": [0, numel]}},
                       metadata or {"format": "pt"}, numel)


def zstd_frame(size, changes):
    """A frame of zeros with a few bytes that are not: blocks that repeat, and raw ones."""
    touched = {}
    for position, value in changes.items():
        touched.setdefault(position // BLOCK, {})[position % BLOCK] = value
    out = [struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 7 << 3, size)]
    blocks = -(-size // BLOCK)
    for i in range(blocks):
        length, last = min(BLOCK, size - i * BLOCK), i == blocks - 1
        kind = 0 if i in touched else 1
        out.append((last | kind << 1 | length << 3).to_bytes(3, "little"))
        if i not in touched:
            out.append(b"\0")
            continue
        raw = bytearray(length)
        for at, value in touched[i].items():
            raw[at] = value
        out.append(bytes(raw))
    return b"".join(out)


def patch_blob(numel, changes):
    """A patch (ADD, with hashes) of the tensor."""
    payload, lengths, hashes, bitmaps, starts = b"", [], [], {}, {}
    touched = {}
    for position, value in sorted(changes.items()):
        touched.setdefault(position // published.BLOCK, {})[position % published.BLOCK] = value
    order = sorted(touched)
    groups = -(-(-(-numel // published.BLOCK)) // published.GROUP)
    ends = iter([*order, None])
    following = next(ends)
    for group in range(groups):
        starts[group] = len(payload), len(lengths)
        while following is not None and following // published.GROUP == group:
            block, at = following, touched[following]
            new = bytearray(min(published.BLOCK, numel - block * published.BLOCK))
            for k, value in at.items():
                new[k] = value
            body = published.prefix(len(at) - 1 << 2) + np.array(list(at), "<u2").tobytes() + \
                bytes(at.values())
            bitmaps[group] = bitmaps.get(group, 0) | 1 << block % published.GROUP
            payload += body
            lengths.append(len(body))
            hashes.append(xxhash.xxh3_64_intdigest(bytes(new)))
            following = next(ends)
    head = b"WFP\0" + bytes([1, 2, 1, 16]) + struct.pack("<QQ", numel, len(changes))
    head += bytes([2, 0, 0, 0]) + struct.pack("<I", len(lengths))
    directory = b"".join(struct.pack("<QQ", bitmaps.get(g, 0), starts[g][0] | starts[g][1] << 40)
                         for g in range(groups))
    arrays = b"".join(struct.pack("<Q", h) for h in hashes)
    arrays += b"".join(struct.pack("<H", n) for n in lengths)
    return head + published.pad(payload) + directory + published.pad(arrays)


# ---- runs of two versions, in each format: write_NAME(bucket, numel, changes) ----

def write_trl(bucket, numel, changes, suffixes, index, values, metadata):
    """An anchor and a delta with these two tensors."""
    meta = {**bigrun.META, **metadata}
    anchor(bucket / "anchors" / "step_000001.safetensors", numel, {**meta, "model_version": "1"})
    entries = {NAME + suffixes[0]: index, NAME + suffixes[1]: st.Tensor(
        DTYPE, (len(changes),), values)}
    path = bucket / "deltas" / "step_000002.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(st.dump(entries, {**meta, "sparse": "True", "model_version": "2"}))


def arrays(changes):
    """Positions and values, ascending."""
    positions = np.array(sorted(changes), np.int64)
    return positions, np.array([changes[int(p)] for p in positions], np.uint8)


def write_trl_v1(bucket, numel, changes):
    """I32, from 2^31 on negative."""
    positions, values = arrays(changes)
    index = st.Tensor("I32", (len(positions),), positions.astype("<u4"))
    write_trl(bucket, numel, changes, (".indices", ".values"), index, values, {"encoding": "raw"})


def write_trl_v3(bucket, numel, changes):
    """Gaps of 32 bits; the last is a small one, beyond 2^32."""
    positions, values = arrays(changes)
    gaps = np.diff(positions, prepend=-1) - 1
    assert gaps.max() < 1 << 32 and positions.max() < numel
    index = st.Tensor("U32", (len(positions),), gaps.astype("<u4"))
    write_trl(bucket, numel, changes, (".idx", ".val"), index, values, {"encoding": "gap_delta"})


def write_hfdir(bucket, numel, encoding, frame):
    """A whole checkpoint and a delta of one frame."""
    anchor(bucket / "weight_v000001" / "model.safetensors", numel)
    at = bucket / "weight_v000002"
    at.mkdir()
    (at / "model-00000-of-00001.safetensors").write_bytes(
        st.dump({NAME: st.Tensor("U8", (len(frame),), np.frombuffer(frame, np.uint8))}))
    (at / hfdir.INDEX).write_text(json.dumps({"metadata": {
        "version": "000002", "base_version": "000001", "delta_encoding": encoding,
        "compression_format": "zstd"}, "weight_map": {NAME: "model-00000-of-00001.safetensors"}}))


def write_hfdir_xor(bucket, numel, changes):
    """All of the tensor, as a frame."""
    write_hfdir(bucket, numel, "xor", zstd_frame(numel, changes))


def write_hfdir_overwrite(bucket, numel, changes):
    """A list of bytes."""
    positions, values = arrays(changes)
    frame = struct.pack("<I", len(changes)) + positions.astype("<u4").tobytes() + values.tobytes()
    write_hfdir(bucket, numel, "overwrite", hfdir.compress(frame))


def write_wfp1(bucket, numel, changes):
    """A published run."""
    out = published.Published(bucket)
    key = "anchors/step_000001-00000001.safetensors"
    anchor(bucket / key, numel)
    sums = ["11" * 16, "22" * 16]
    body = published.patch_file({NAME: patch_blob(numel, changes)}, {
        "encoding": "wfp1", "model_version": "2", "base_version": "1", "lineage": out.lineage,
        "state": sums[1], "base_state": sums[0], "hashes": "33" * 16})
    out.steps = [
        {"version": 1, "kind": "anchor", "state": sums[0], "encoding": "safetensors",
         "objects": [{"key": key, "size": (bucket / key).stat().st_size}]},
        {"version": 2, "kind": "delta", "base": 1, "encoding": "wfp1", "state": sums[1],
         "objects": [out.put("deltas/step_000002-00000002.safetensors", body)]}]
    out.pointer()
