"""A trainer's side: writes a run as each generation of TRL's delta weight sync does.

A `Run` is fed the policy's states one after another, as the trainer's syncs see them, and puts the
objects that TRL would put into a bucket (a directory).  Each generation is described by one line of
GENERATIONS; what differs more than a flag has a method of its own.

States are {name: Tensor} (see safetensors_py).  Real TRL casts everything to BF16; tensors in other
dtypes are written as they are, which is what the forks that keep them do.
"""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import safetensors_py as st


class Generation(NamedTuple):
    """How one generation numbers, names and fills its objects."""

    index: str            # suffix of the index tensor
    values: str           # suffix of the value tensor
    prefix: str           # "split": anchors/ and deltas/; "steps": one directory
    numbers: str          # "always": each sync takes a number; "yield": only one with changes does
    interval: int         # of the periodic anchors; 0: none
    counted_on: str       # what the interval counts: the file's "number" or the "trainer"'s version
    complete: bool        # periodic anchors hold every tensor
    second: str           # number 2 is a "delta", a "full" anchor or a full file among the "deltas"
    compare: str          # what the change detector sees: "float", "low byte" or "bits"
    encoding: str         # "" before there were any


GENERATIONS = {
    "v1.0": Generation(".indices", ".values", "split", "always", 10, "number", True, "delta",
                       "float", ""),
    "v1.1": Generation(".indices", ".values", "steps", "yield", 0, "number", True, "full",
                       "float", ""),
    "v1.2": Generation(".indices", ".values", "split", "yield", 10, "trainer", True, "full",
                       "float", ""),
    "v1.3": Generation(".indices", ".values", "split", "yield", 10, "number", False, "deltas",
                       "float", ""),
    "v2": Generation(".idx", ".val", "split", "always", 10, "number", False, "delta", "low byte",
                     "gap_delta"),
    "v2-raw": Generation(".idx", ".val", "split", "always", 10, "number", False, "delta",
                         "low byte", "raw"),
    "v3": Generation(".idx", ".val", "split", "always", 20, "number", True, "delta", "bits",
                     "gap_delta"),
    "v3-raw": Generation(".idx", ".val", "split", "always", 20, "number", True, "delta", "bits",
                         "raw"),
}


def is_nan_bf16(bits):
    """Which bf16 patterns are NaN."""
    return (bits & 0x7FFF) > 0x7F80


def changed_mask(old, new, compare):
    """Which elements a generation's change detector reports."""
    if compare == "bits" or old.dtype != "BF16":
        return old.data != new.data
    if compare == "low byte":
        return (old.data & 0xFF) != (new.data & 0xFF)
    both_zero = ((old.data | new.data) & 0x7FFF) == 0
    return ((old.data != new.data) & ~both_zero) | is_nan_bf16(old.data) | is_nan_bf16(new.data)


def encode_positions(positions, encoding):
    """Flat ascending positions as the index tensor of an encoding ("" is v1's plain I32)."""
    positions = np.asarray(positions, dtype=np.int64)
    if encoding in ("", "raw"):
        return st.Tensor("I32", (len(positions),), positions.astype("<i4").view("<u4"))
    gaps = np.diff(positions, prepend=np.int64(-1)) - 1
    wide = len(gaps) > 0 and int(gaps.max()) > 65535
    return st.Tensor("U32" if wide else "U16", (len(gaps),), gaps.astype("<u4" if wide else "<u2"))


def sparse_pair(name, tensor, positions, generation):
    """The two tensors that say: these elements of `name` now have tensor's values."""
    values = st.Tensor(tensor.dtype, (len(positions),), tensor.data[positions])
    return {name + generation.index: encode_positions(positions, generation.encoding),
            name + generation.values: values}


def state_sha256(state):
    """v1.0's checksum: the raw bytes of every tensor in sorted-name order, nothing between."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(state[name].data.tobytes())
    return digest.hexdigest()


def put(path, blob, how="rename", pause=0.02):
    """Writes an object: "rename" (temporary file, then rename), "inplace" (truncate and write) or
    "slow" (in place, in pieces, so that a reader can meet it half written)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "rename":
        temporary = path.parent / f".{path.name}.tmp"
        temporary.write_bytes(blob)
        os.rename(temporary, path)
        return path
    with open(path, "wb", buffering=0) as f:
        piece = max(len(blob) // 7, 1) if how == "slow" else max(len(blob), 1)
        for at in range(0, len(blob), piece):
            if at:
                time.sleep(pause)
            f.write(blob[at:at + piece])
    return path


class Run:
    """One trainer process.  sync(state) publishes; `number` is the last number taken."""

    def __init__(self, root, generation, interval=None, encoding=None, how="rename",
                 base_model="org/model"):
        self.root = Path(root)
        self.gen = GENERATIONS[generation]
        if interval is not None:
            self.gen = self.gen._replace(interval=interval)
        if encoding is not None:
            self.gen = self.gen._replace(encoding=encoding)
        self.v10 = generation == "v1.0"
        self.v11 = generation == "v1.1"
        self.how, self.base_model = how, base_model
        self.number, self.trainer, self.anchor = 0, 0, 0
        self.snapshot = None

    def sync(self, state):
        """Publishes what this sync would; returns the object's path, or None for a sync that
        leaves nothing in the bucket."""
        self.trainer += 1
        masks = self._masks(state)
        if masks is not None and not any(m.any() for m in masks.values()):
            path = self._sync_unchanged(state, masks)
        else:
            self.number += 1
            path = self._publish(state, masks)
        self.snapshot = dict(state)
        return path

    def _masks(self, state):
        """{name: mask}, or None while the detector does not exist yet."""
        if self.snapshot is None or (self.number == 1 and self.gen.second != "delta"):
            return None
        return {n: changed_mask(self.snapshot[n], state[n], self.gen.compare) for n in state}

    def _sync_unchanged(self, state, masks):
        if self.gen.numbers == "yield":
            return None
        self.number += 1
        if self.v10 or (self._is_anchor() and self.gen.complete):
            return self._publish(state, masks)
        return None

    def _is_anchor(self):
        if self.number == 1 or (self.number == 2 and self.gen.second == "full"):
            return True
        count = self.trainer if self.gen.counted_on == "trainer" else self.number
        return self.gen.interval > 0 and count % self.gen.interval == 0

    def _publish(self, state, masks):
        anchor = self._is_anchor()
        if masks is None or (anchor and self.gen.complete):
            tensors = dict(state)
            counts = {n: (state[n].data.size, state[n].data.size) for n in state}
        elif anchor:
            tensors = {n: state[n] for n in state if masks[n].any()}
            counts = {n: (t.data.size, t.data.size) for n, t in tensors.items()}
        else:
            tensors, counts = self._sparse(state, masks)
        sparse = masks is not None and not anchor
        if self.v10 and sparse and not tensors:
            tensors = {"__empty_delta__": st.make("I32", (1,), np.zeros(1, "<u4"))}
        if anchor:
            self.anchor = self.number
        blob = st.dump(tensors, self._metadata(state, counts, sparse, anchor))
        return put(self.path(anchor), blob, self.how)

    def _sparse(self, state, masks):
        tensors, counts = {}, {}
        for name in sorted(state) if self.v10 else state:
            positions = np.flatnonzero(masks[name])
            if len(positions):
                tensors.update(sparse_pair(name, state[name], positions, self.gen))
                counts[name] = (len(positions), state[name].data.size)
        return tensors, counts

    def path(self, anchor, number=None):
        """Where the object of this (or another) number goes."""
        number = self.number if number is None else number
        folder = "steps" if self.gen.prefix == "steps" else "anchors" if anchor else "deltas"
        return self.root / folder / f"step_{number:06d}.safetensors"

    def _metadata(self, state, counts, sparse, anchor):
        changed = sum(c for c, _ in counts.values())
        total = sum(n for _, n in counts.values())
        if self.v11:
            return {"num_params": str(len(counts)), "sparse": str(sparse)}
        if self.v10:
            return self._metadata_v10(state, counts, changed, anchor)
        meta = {
            "format": "sparse_weight_patch", "version": "1", "sparse": str(sparse),
            "model_version": str(self.number), "num_changed_params": str(len(counts)),
            "total_changed_elements": str(changed), "total_elements": str(total),
            "sparsity": str(1 - changed / total if total else 0.0),
        }
        if self.gen.encoding:
            meta["encoding"] = self.gen.encoding
        else:
            meta["changed_params"] = json.dumps(list(counts))
        return meta

    def _metadata_v10(self, state, counts, changed, anchor):
        total = sum(t.data.size for t in state.values())
        meta = {"format": "anchor_checkpoint" if anchor else "sparse_weight_patch", "version": "1",
                "model_version": str(self.number), "base_model_id": self.base_model}
        if not anchor:
            meta.update({
                "prev_model_version": str(self.number - 1), "anchor_step": str(self.anchor),
                "num_changed_params": str(len(counts)), "total_changed_elements": str(changed),
                "total_elements": str(total),
                "sparsity": str(1 - changed / total if total else 0.0),
                "changed_params": json.dumps(sorted(counts)),
            })
        meta["checksum_sha256"] = state_sha256(state)
        return meta


def delta_blob(number, pairs, generation="v3", full=(), sparse=True, **metadata):
    """A delta made by hand.  pairs: {name: (positions, dtype, values)}; full: {name: Tensor}.
    Keyword arguments change metadata keys; None removes one."""
    gen = GENERATIONS[generation]
    tensors = dict(full)
    changed = 0
    for name, (positions, dtype, values) in pairs.items():
        tensors[name + gen.index] = encode_positions(positions, gen.encoding)
        tensors[name + gen.values] = st.make(dtype, (len(positions),),
                                             np.asarray(values, st.carrier(dtype)))
        changed += len(positions)
    meta = {"format": "sparse_weight_patch", "version": "1", "sparse": str(sparse),
            "model_version": str(number), "num_changed_params": str(len(pairs)),
            "total_changed_elements": str(changed), "total_elements": str(changed),
            "sparsity": "0.0"}
    if gen.encoding:
        meta["encoding"] = gen.encoding
    else:
        meta["changed_params"] = json.dumps(list(pairs))
    meta.update(metadata)
    return st.dump(tensors, {k: v for k, v in meta.items() if v is not None})
