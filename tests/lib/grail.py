"""A trainer that publishes as one-covenant's grail (PULSE) does: checkpoint-{window} directories
with FULL/ and DELTA/, READY-{window} written last, and deltas in its sparse codec.

Written from the format's description alone.  Windows are no consecutive numbers: a delta applies to
its prev_window.

    t = grail.Trainer(bucket, states)
    t.full(0); t.ready(0); t.delta(1); t.ready(1)       # by place in the list of states
"""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import xxhash
import zstandard

from lib import safetensors_py as st

KEYS = ("name", "shape", "num_nonzero", "value_dtype", "row_dtype", "col_dtype", "indices_offset",
        "indices_size", "rows_size", "cols_size", "values_offset", "values_size")
VALUES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
FORMATS = {2: "sparse_codec_v2", 3: "sparse_codec_v3", 31: "sparse_codec_v3.1"}
DELTA = "delta_sparse.bin.zst"


def weights_hash(state):
    """XXH3-128 over the bytes of all tensors, in the order of their names."""
    h = xxhash.xxh3_128()
    for name in sorted(state):
        h.update(state[name].data.tobytes())
    return h.hexdigest()


TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def old_weights_hash(state):
    """What older trainers have: SHA-256, with what PyTorch makes of name, dtype and shape."""
    h = hashlib.sha256()
    for name in sorted(state):
        t = state[name]
        h.update(f"{name}torch.{TORCH[t.dtype]}{tuple(t.shape)}".encode())
        h.update(t.data.tobytes())
    return h.hexdigest()


def sha256(data):
    """As the manifest has it."""
    return hashlib.sha256(data).hexdigest()


def narrow(values, kinds):
    """The stream in the smallest of these types that holds it."""
    for kind, most in (("uint8", 255), ("uint16", 65535)):
        if kind in kinds and (values.size == 0 or values.max() <= most):
            return kind, values.astype(kind).tobytes()
    return "int32", values.astype("<i4").tobytes()


def coo(positions, shape):
    """(row steps, columns) of ascending flat positions."""
    cols = max(1, st.numel(shape[1:]))
    row, col = positions // cols, positions % cols
    steps = np.diff(row, prepend=0)
    new = np.ones(row.size, bool)
    new[1:] = steps[1:] != 0
    return steps, np.where(new, col, np.diff(col, prepend=0))


def encode_tensor(version, name, tensor, positions):
    """(what the header says without the offsets, index bytes, value bytes).  Of a scalar as well,
    which grail itself has no shape for."""
    values = tensor.data[positions].tobytes()
    says = {"name": name, "shape": list(tensor.shape), "num_nonzero": int(positions.size),
            "value_dtype": VALUES[tensor.dtype]}
    if version == 2:
        assert positions.max() < 2 ** 31
        return says, np.diff(positions, prepend=0).astype("<i4").tobytes(), values
    steps, cols = coo(positions, tensor.shape)
    kinds = ("int32", "int32")
    if version == 3:
        rows, cols = steps.astype("<i4").tobytes(), cols.astype("<i4").tobytes()
    else:
        row_kind, rows = narrow(steps, ("uint8", "uint16"))
        col_kind, cols = narrow(cols, ("uint16",))
        kinds = row_kind, col_kind
        says.update(row_dtype=kinds[0], col_dtype=kinds[1])
    says.update(rows_size=len(rows), cols_size=len(cols))
    return says, rows + cols, values


def changes(old, new):
    """{name: ascending positions} of what differs; a state's numbers are compared as bits."""
    out = {}
    for name in sorted(new):
        at = np.flatnonzero(old[name].data != new[name].data)
        if at.size > 0:
            out[name] = at
    return out


def compose(version, tensors, data):
    """What goes into the frame."""
    head = json.dumps({"version": version, "tensors": tensors}, separators=(",", ":")).encode()
    return struct.pack("<I", len(head)) + head + data


def payload(version, old, new):
    """The unpacked delta from one state to the next."""
    tensors, data = [], b""
    for name, at in changes(old, new).items():
        says, index, values = encode_tensor(version, name, new[name], at)
        says.update(indices_offset=len(data), indices_size=len(index),
                    values_offset=len(data) + len(index), values_size=len(values))
        data += index + values
        tensors.append({key: says[key] for key in KEYS if key in says})
    return compose(version, tensors, data)


def pack(data, stated=True):
    """One zstd frame."""
    return zstandard.ZstdCompressor(level=1, write_content_size=stated).compress(data)


class Trainer:
    """Writes windows; `window` gives the number of a place in the list of states."""

    def __init__(self, root, states, version=31, under="grail/checkpoints/", shards=1,
                 window=lambda i: 1020 + 30 * i):
        self.top, self.states, self.version = Path(root) / under, states, version
        self.shards, self.window, self.anchor = shards, window, None

    def folder(self, i):
        """Where a state's window goes."""
        return self.top / f"checkpoint-{self.window(i)}"

    def put(self, i, part, files, metadata):
        """FULL/ or DELTA/, with metadata.json and the signature."""
        top = self.folder(i) / part
        top.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (top / name).write_bytes(data)
        says = {"window": self.window(i), "parent_window": self.window(i) - 30,
                "file_manifest": {n: sha256(d) for n, d in files.items()},
                "training_config": {"lr": 1e-6, "epochs": 1}, "git_commit": "unknown",
                "created_at": 1767225600.5 + i, "model_name": "async_trainer_snapshot",
                "checkpoint_type": part, "prev_window": None, "anchor_window": None,
                "weights_hash": None, "env_id": "mbpp", "env_params": {"split": "train"},
                "generation_params": {"temperature": 0.7}, "config_hash": "0" * 64}
        says.update(metadata)
        text = json.dumps(says, ensure_ascii=False, indent=2)
        (top / "metadata.json").write_text(text)
        (top / "manifest.sig").write_text(sha256(text.encode()) * 2)
        (top / part).write_bytes(b"")

    def full(self, i, **metadata):
        """A whole checkpoint, with what an engine needs beside it."""
        state = self.states[i]
        files = {"config.json": b'{"model_type": "tiny"}', "tokenizer.json": b"{}"}
        if self.shards == 1:
            files["model.safetensors"] = st.dump(state, {"format": "pt"})
        else:
            names, where = sorted(state), {}
            for k in range(self.shards):
                file = f"model-{k + 1:05d}-of-{self.shards:05d}.safetensors"
                part = names[k::self.shards]
                files[file] = st.dump({n: state[n] for n in part}, {"format": "pt"})
                where.update({n: file for n in part})
            files["model.safetensors.index.json"] = json.dumps(
                {"metadata": {}, "weight_map": where}).encode()
        self.anchor = self.window(i)
        self.put(i, "FULL", files, metadata)

    def delta(self, i, data=None, stated=True, prev=None, **metadata):
        """A delta from the state before; `data` is put in place of the frame's content."""
        prev = i - 1 if prev is None else prev
        old, new = self.states[prev], self.states[i]
        at = changes(old, new)
        total = sum(t.data.size for t in new.values())
        nonzero = sum(p.size for p in at.values())
        about = {"format": FORMATS[self.version], "threshold": 0.0,
                 "prev_window": self.window(prev), "anchor_window": self.anchor,
                 "shapes": {n: list(new[n].shape) for n in at}, "total_params": total,
                 "nonzero_params": nonzero, "sparsity_ratio": 1 - nonzero / total}
        frame = pack(payload(self.version, old, new) if data is None else data, stated)
        self.put(i, "DELTA", {DELTA: frame, "delta_metadata.json": json.dumps(about).encode()},
                 {"prev_window": self.window(prev), "anchor_window": self.anchor,
                  "weights_hash": weights_hash(new), **metadata})

    def ready(self, i):
        """What is written last."""
        (self.folder(i) / f"READY-{self.window(i) + 30}").write_bytes(b"")
