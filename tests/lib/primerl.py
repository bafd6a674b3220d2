"""A trainer and an engine of prime-rl's broadcasts: step_N directories that end with STABLE.

Written from the formats' descriptions alone (PrimeIntellect-ai/prime-rl: trainer/rl/broadcast,
utils/sparse_update.py and the older utils/sparse_weights.py).  Three kinds of directory:

    whole   a checkpoint; with the older sparse format also sparse_manifest.json, type "full"
    update  sparse_update_manifest.json and one sparse_update_patch.safetensors of
            tensor_{i}.indices (I32, or I64) and tensor_{i}.values, maybe in one zstd frame
    older   sparse_manifest.json, type "delta", and delta-%05d-of-%05d.safetensors, a file for each
            layer, of {name}.indices (I64) and {name}.values

    state = pull(root, base, target)      # {name: Tensor}
"""

import json
from pathlib import Path

import numpy as np
import zstandard

from lib import hfdir
from lib import safetensors_py as st
from lib.skyrl import TORCH, Refused

INDEX = "model.safetensors.index.json"
UPDATE = "sparse_update_manifest.json"
PATCH = "sparse_update_patch.safetensors"
OLDER = "sparse_manifest.json"
STABLE = "STABLE"
MAGIC = b"\x28\xb5\x2f\xfd"
INTEGER = {"I8": "<i1", "U8": "<u1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
           "I64": "<i8", "U64": "<u8"}


def widened(dtype, data):
    """Values as 64-bit patterns: floats as float64, integers as int64; a NaN that is widened
    becomes a quiet one."""
    if dtype == "BF16":
        data = (data.astype("<u4") << 16).view("<f4").astype("<f8")
    elif dtype in ("F16", "F32"):
        data = data.view(f"<f{st.width(dtype)}").astype("<f8")
    elif dtype == "F64":
        return data.view("<u8")
    else:
        return data.view(INTEGER[dtype]).astype("<i8").view("<u8")
    return np.where(np.isnan(data), data.view("<u8") | np.uint64(1 << 51), data.view("<u8"))


def checksum(indices, dtype, values):
    """What torch.hash_tensor gives for both, put together."""
    with np.errstate(invalid="ignore"):
        words = np.concatenate([indices.astype("<u8"), widened(dtype, values)])
    return int(np.bitwise_xor.reduce(words))


def read_whole(folder):
    """A checkpoint's tensors, {name: Tensor}; what its index does not name is not of it."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if (Path(folder) / INDEX).exists():
        named = json.loads((Path(folder) / INDEX).read_text())["weight_map"].values()
        files = [p for p in files if p.name in set(named)]
    return {n: t for p in files for n, t in st.load_file(p)[0].items()}


def scatter(state, name, dtype, indices, values):
    """Sets the elements of a tensor."""
    if state[name].dtype != dtype or values.dtype != state[name].data.dtype:
        raise Refused(f"{name}: {dtype} for {state[name].dtype}")
    data = state[name].data.copy()
    data[indices.view("<i8" if indices.itemsize == 8 else "<i4")] = values
    state[name] = state[name]._replace(data=data)


def load_patch(path):
    """The tensors of a patch, packed or not."""
    blob = path.read_bytes()
    if blob[:4] == MAGIC:
        blob = zstandard.ZstdDecompressor().decompressobj().decompress(blob)
    return st.load(blob)[0]


def apply_update(state, folder, applied):
    """The state after an update."""
    manifest = json.loads((folder / UPDATE).read_text())
    if (manifest["format"], manifest["version"]) != ("prime-rl-sparse-update", 1):
        raise Refused(f"{manifest['format']}, {manifest['version']}")
    if manifest["base_step"] != applied:
        raise Refused(f"at {applied}, the update builds on {manifest['base_step']}")
    new = dict(state)
    patch = load_patch(folder / manifest["patch_file"]) if manifest["patch_file"] else {}
    for entry in manifest["tensors"]:
        name, dtype = entry["name"], new[entry["name"]].dtype
        indices, values = patch[entry["indices"]].data, patch[entry["values"]].data
        if TORCH[dtype] != entry["dtype"] or list(new[name].shape) != entry["shape"]:
            raise Refused(f"{name}: {entry['dtype']} {entry['shape']}")
        wanted = entry.get("checksum")
        if wanted is not None and wanted != checksum(indices, dtype, values):
            raise Refused(f"{name}: the checksum does not match")
        scatter(new, name, dtype, indices, values)
    return new


def apply_older(state, folder, applied):
    """The state after a delta of the older format."""
    manifest = json.loads((folder / OLDER).read_text())
    if manifest["format"] != "prime_rl_sparse_filesystem_v1" or manifest["base_step"] != applied:
        raise Refused(f"at {applied}: {manifest['format']}, {manifest['base_step']}")
    new = dict(state)
    for file in manifest["patch_files"]:
        patch = st.load_file(folder / file["file"])[0]
        for entry in file["tensors"]:
            scatter(new, entry["name"], new[entry["name"]].dtype,
                    patch[entry["indices_key"]].data, patch[entry["values_key"]].data)
    return new


def kind(folder):
    """Of a directory: "whole", "update" or "older"."""
    if (folder / UPDATE).exists():
        return "update"
    if (folder / OLDER).exists() and json.loads((folder / OLDER).read_text())["type"] == "delta":
        return "older"
    return "whole"


def pull(root, base, target):
    """The state of step `target`: from the newest whole one, or the engine's own (step 0)."""
    steps = sorted(int(p.name[5:]) for p in Path(root).glob("step_*") if (p / STABLE).exists())
    steps = [n for n in steps if n <= target]
    start = max((n for n in steps if kind(Path(root) / f"step_{n}") == "whole"), default=0)
    state = read_whole(Path(root) / f"step_{start}" if start else base)
    for step in (n for n in steps if n > start):
        folder = Path(root) / f"step_{step}"
        apply = apply_update if kind(folder) == "update" else apply_older
        state, start = apply(state, folder, start), step
    return state


class Trainer:
    """Writes broadcasts below `root`, which is the run's broadcasts directory.  `wide`: indices of
    64 bits; `packed`: the patch in one zstd frame; `sums`: checksums of what the patch holds."""

    def __init__(self, root, states, wide=False, packed=False, sums=True, groups=2):
        self.root, self.states, self.wide, self.packed = Path(root), states, wide, packed
        self.sums, self.groups = sums, groups

    def folder(self, step):
        """Where a step goes."""
        return self.root / f"step_{step}"

    def whole(self, step, older=False, stable=True):
        """A checkpoint in `groups` files with an index, or in one without."""
        state = self.states[step]
        self.folder(step).mkdir(parents=True, exist_ok=True)
        weight_map = {}
        for file, names in self.grouped(state, "model"):
            weight_map.update({n: file for n in names})
            self.put(step, file, st.dump({n: state[n] for n in names}, {"format": "pt"}))
        total = sum(t.data.nbytes for t in state.values())
        if self.groups > 1:
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            self.put(step, INDEX, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())
        if older:
            self.older_manifest(step, {"type": "full", "step": step, "total_size": total,
                                       "total_numel": sum(t.data.size for t in state.values())})
        self.put(step, "config.json", b'{"model_type": "tiny"}')
        if stable:
            self.put(step, STABLE, b"")

    def grouped(self, state, word):
        """(file, names) of `groups` files, as layers are written."""
        names = list(state)
        for i in range(self.groups):
            end = f"-{i + 1:05d}-of-{self.groups:05d}" if self.groups > 1 else ""
            part = names[i::self.groups]
            if part:
                yield f"{word}{end}.safetensors", part

    def change(self, step, base, name):
        """(indices, values) of a tensor; floats that are equal have not changed."""
        new, old = self.states[step][name].data, self.states[base][name].data
        at = np.flatnonzero(new != old)
        return at, new[at]

    def update(self, step, base=None, edit=None, tensors_edit=None):
        """A sparse update; `edit` is given the manifest, `tensors_edit` the patch's tensors."""
        state, base = self.states[step], step - 1 if base is None else base
        patch, entries = {}, []
        for i, (name, tensor) in enumerate(state.items()):
            at, values = self.change(step, base, name)
            if at.size == 0:
                continue
            keys = f"tensor_{i}.indices", f"tensor_{i}.values"
            index = ("I64", "<u8") if self.wide else ("I32", "<u4")
            patch[keys[0]] = st.Tensor(index[0], (at.size,), at.astype(index[1]))
            patch[keys[1]] = st.Tensor(tensor.dtype, (at.size,), values)
            entry = {"name": name, "shape": list(tensor.shape), "dtype": TORCH[tensor.dtype],
                     "indices": keys[0], "values": keys[1], "numel": tensor.data.size,
                     "changed_numel": int(at.size)}
            if self.sums and not tensor.dtype.startswith("F8"):
                entry["checksum"] = checksum(at, tensor.dtype, values)
            entries.append(entry)
        if tensors_edit is not None:
            tensors_edit(patch)
        self.folder(step).mkdir(parents=True, exist_ok=True)
        if patch:
            blob = st.dump(patch, {"format": "pt"})
            self.put(step, PATCH,
                     zstandard.ZstdCompressor(3).compress(blob) if self.packed else blob)
        total = sum(t.data.size for t in state.values())
        changed = sum(e["changed_numel"] for e in entries)
        manifest = {
            "format": "prime-rl-sparse-update", "version": 1, "step": step, "base_step": base,
            "compute_dtype": "bfloat16", "compressed": self.packed and bool(patch),
            "patch_file": PATCH if patch else None, "tensors": entries,
            "stats": {"total_tensors": len(state), "patched_tensors": len(entries),
                      "total_numel": total, "changed_numel": changed,
                      "sparsity": 1 - changed / max(total, 1), "patch_bytes": 1}}
        if edit is not None:
            edit(manifest)
        self.put(step, UPDATE, (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode())
        self.put(step, STABLE, b"")

    def older(self, step, base=None, edit=None):
        """A delta of the older format."""
        state, base = self.states[step], step - 1 if base is None else base
        files, numel = [], 0
        self.folder(step).mkdir(parents=True, exist_ok=True)
        for file, names in self.grouped(state, "delta"):
            patch, entries = {}, []
            for name in names:
                at, values = self.change(step, base, name)
                if at.size == 0:
                    continue
                patch[f"{name}.indices"] = st.Tensor("I64", (at.size,), at.astype("<u8"))
                patch[f"{name}.values"] = st.Tensor(state[name].dtype, (at.size,), values)
                entries.append({
                    "name": name, "indices_key": f"{name}.indices", "values_key": f"{name}.values",
                    "shape": list(state[name].shape), "dtype": f"torch.{TORCH[state[name].dtype]}",
                    "numel": state[name].data.size, "num_changed": int(at.size)})
                numel += int(at.size)
            if entries:
                self.put(step, file, st.dump(patch, {"format": "pt"}))
                files.append({"file": file, "tensors": entries})
        manifest = {"type": "delta", "base_step": base, "step": step, "patch_files": files,
                    "delta_numel": numel, "total_numel": sum(t.data.size for t in state.values())}
        if edit is not None:
            edit(manifest)
        self.older_manifest(step, manifest)
        self.put(step, STABLE, b"")

    def older_manifest(self, step, manifest):
        """sparse_manifest.json."""
        text = json.dumps({"format": "prime_rl_sparse_filesystem_v1", **manifest}, indent=2,
                          sort_keys=True) + "\n"
        self.put(step, OLDER, text.encode())

    def put(self, step, name, data):
        """By a temporary name."""
        path = self.folder(step) / name
        tmp = path.with_name(f".{name}.tmp")
        tmp.write_bytes(data)
        tmp.rename(path)
