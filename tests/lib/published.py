"""A publisher written from the descriptions alone: weightfs.json (fs/manifest.h), the patch form
(codec/patch.h) and the patch file (codec/patch_file.h, codec/read_wfp1.c).  Blocks are RAW or
DENSE; the entropy-coded form has tests of its own."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import xxhash

from lib import safetensors_py as st
from lib import trl

BLOCK, GROUP = 65536, 64
POINTER = "weightfs.json"
INDEX = "model.safetensors.index.json"


def pad(blob, align=8):
    """The bytes with zeros behind them up to a multiple."""
    return blob + b"\0" * (-len(blob) % align)


def prefix(value):
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def blob(old, new):
    """The patch (ADD, version 1, with hashes) that turns one flat array into the other; b"" when
    nothing changes."""
    width = new.dtype.itemsize
    raw_type = f"<u{width}"
    old, new = old.view(raw_type), new.view(raw_type)
    change = new - old
    blocks = -(-new.size // BLOCK)
    payload, lengths, hashes, bitmaps = b"", [], [], {}
    offsets, counts = {}, {}
    for block in range(blocks):
        part = change[block * BLOCK:(block + 1) * BLOCK]
        group = block // GROUP
        offsets.setdefault(group, len(payload))
        counts.setdefault(group, len(lengths))
        at = np.flatnonzero(part)
        if at.size == 0:
            continue
        dense = at.size == part.size or (2 + width) * at.size > part.nbytes
        if dense:
            body = prefix(1 | part.size - 1 << 2) + part.tobytes()
        else:
            body = prefix(at.size - 1 << 2) + at.astype("<u2").tobytes() + part[at].tobytes()
        bitmaps[group] = bitmaps.get(group, 0) | 1 << block % GROUP
        payload += body
        lengths.append(len(body))
        hashes.append(xxhash.xxh3_64_intdigest(new[block * BLOCK:(block + 1) * BLOCK].tobytes()))
    if not lengths:
        return b""
    # A dense block counts all its elements, also those that do not change.
    changed = sum(number_of(payload, lengths))
    big = max(lengths) > 0xFFFF
    head = b"WFP\0" + bytes([1, 2, width, 16]) + struct.pack("<QQ", new.size, changed)
    head += bytes([2 | big, 0, 0, 0]) + struct.pack("<I", len(lengths))
    groups = -(-blocks // GROUP)
    directory = b"".join(struct.pack("<QQ", bitmaps.get(g, 0), offsets[g] | counts[g] << 40)
                         for g in range(groups))
    arrays = b"".join(struct.pack("<Q", h) for h in hashes)
    arrays += b"".join(struct.pack("<I" if big else "<H", n) for n in lengths)
    return head + pad(payload) + directory + pad(arrays)


def number_of(payload, lengths):
    """The counts of the blocks, from their prefixes."""
    at = 0
    for length in lengths:
        value = shift = 0
        for byte in payload[at:at + 3]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield (value >> 2) + 1
        at += length


def patch_file(blobs, metadata):
    """A patch file of {name: blob} with its hash."""
    def header(digits):
        at, entries = 0, {}
        for name, body in blobs.items():
            entries[name] = {"dtype": "U8", "shape": [len(body)],
                             "data_offsets": [at, at + len(body)]}
            at += len(body)
        meta = {"format": "weightfs-patch", "xxh3": digits, **metadata}
        return st.frame(st.pad_text(st.header_json(entries, meta)))

    data = b"".join(blobs.values())
    zeros = header("0" * 32)
    digest = xxhash.xxh3_128()
    digest.update(data)
    digest.update(zeros)
    return header(digest.hexdigest()) + data


def tensor_hash(tensor):
    """The 16 bytes that a state's hash has for a tensor."""
    return xxhash.xxh3_128_digest(tensor.data.tobytes())


def state_hash(state):
    """32 hex digits for a whole state."""
    digest = xxhash.xxh3_128()
    for name in sorted(state, key=str.encode):
        tensor = state[name]
        digest.update(name.encode() + b"\0" + tensor.dtype.encode() + b"\0" + tensor_hash(tensor))
    return digest.hexdigest()


class Published:
    """One publisher.  `states`: {version: state} of all that was published."""

    def __init__(self, root, lineage="9f86d081", shards=1, host="trainer-0"):
        self.root, self.lineage, self.shards = Path(root), lineage, shards
        self.steps, self.spans, self.states = [], [], {}
        self.host, self.first, self.names = host, None, 0

    # ---- objects --------------------------------------------------------------------------

    def put(self, key, body):
        """Writes an object; its entry."""
        trl.put(self.root / key, body)
        return {"key": key, "size": len(body)}

    def fresh(self):
        """Eight hex digits that no object has had."""
        self.names += 1
        return f"{self.names:08x}"

    def files(self, state):
        """{file name: its bytes} of a state as this publisher cuts it."""
        if self.shards == 1:
            return {"model.safetensors": st.dump(state, {"format": "pt"})}
        names = list(state)
        return {f"model-{i + 1:05d}-of-{self.shards:05d}.safetensors":
                st.dump({n: state[n] for n in names[i::self.shards]}, {"format": "pt"})
                for i in range(self.shards)}

    def anchor(self, version, state):
        """Writes an anchor; its entry."""
        stem = f"anchors/step_{version:06d}-{self.fresh()}"
        if self.shards == 1:
            objects = [self.put(f"{stem}.safetensors", self.files(state)["model.safetensors"])]
        else:
            objects = [{**self.put(f"{stem}/{name}", body), "file": name}
                       for name, body in self.files(state).items()]
        self.first = self.first or version
        return {"version": version, "kind": "anchor", "state": state_hash(state),
                "encoding": "safetensors", "objects": objects}

    def patch(self, base, version, **changes):
        """The bytes of the delta from one published version to another."""
        old, new = self.states[base], self.states[version]
        blobs = {name: body for name in new if (body := blob(old[name].data, new[name].data))}
        metadata = {
            "encoding": "wfp1", "model_version": str(version), "base_version": str(base),
            "lineage": self.lineage, "state": state_hash(new), "base_state": state_hash(old),
            "hashes": "".join(tensor_hash(new[name]).hex() for name in blobs), **changes}
        return patch_file(blobs, metadata)

    def delta(self, base, version, **changes):
        """Writes a delta; its entry."""
        same = all(np.array_equal(self.states[base][n].data, t.data)
                   for n, t in self.states[version].items())
        objects = [] if same else [self.put(f"deltas/step_{version:06d}-{self.fresh()}.safetensors",
                                            self.patch(base, version, **changes))]
        return {"version": version, "kind": "delta", "base": base, "encoding": "wfp1",
                "state": state_hash(self.states[version]), "objects": objects}

    # ---- the run --------------------------------------------------------------------------

    def newest(self):
        """The last version, or 0."""
        return self.steps[-1]["version"] if self.steps else 0

    def pointer(self, **changes):
        """Writes weightfs.json."""
        self.put(POINTER, json.dumps({
            "format": "weightfs-run", "version": 1, "lineage": self.lineage,
            "publisher": {"id": "ab" * 16, "host": self.host, "pid": 7,
                          "time": "2026-11-30T23:05:59Z"},
            "newest": self.newest(), "steps": self.steps, "spans": self.spans,
            **changes}).encode())

    def publish(self, state, anchor=False, version=None):
        """The next version: by a delta, by an anchor, or by both."""
        base = self.newest()
        version = version or base + 1
        self.states[version] = state
        entries = [self.anchor(version, state)] if anchor or not base else []
        if base:
            entries.append(self.delta(base, version))
        self.steps += entries
        self.pointer()
        return version

    def publish_all(self, states, anchors=()):
        """Several; `anchors` are the versions that get one besides the first."""
        for state in states:
            self.publish(state, anchor=self.newest() + 1 in anchors)
        return self

    def span(self, base, version, point=True):
        """Adds a cumulative delta."""
        key = f"compact/step_{base:06d}-{version:06d}-{self.fresh()}.safetensors"
        self.spans.append({
            "base": base, "version": version, "state": state_hash(self.states[version]),
            "encoding": "wfp1", "objects": [self.put(key, self.patch(base, version))]})
        if point:
            self.pointer()
        return self.root / key

    def entry(self, version, kind="delta"):
        """The entry of a step."""
        return next(e for e in self.steps if e["version"] == version and e["kind"] == kind)

    def path(self, version, kind="delta", index=0):
        """The file of one of its objects."""
        return self.root / self.entry(version, kind)["objects"][index]["key"]

    # ---- what a mount shows ---------------------------------------------------------------

    def weights(self, version):
        """{file: bytes} as the layout of the first anchor has them, with its index."""
        files = self.files(self.states[version])
        if len(files) > 1:
            total = sum(t.data.nbytes for t in self.states[version].values())
            names = {n: file for file, body in files.items() for n in st.load(body)[0]}
            files[INDEX] = json.dumps({"metadata": {"total_size": total},
                                       "weight_map": names}).encode()
        return files


def age(path, seconds):
    """Makes a file that much older."""
    path = Path(path)
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
