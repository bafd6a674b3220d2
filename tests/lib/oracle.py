"""What the mount must show, computed the slow and obvious way.

Everything is read again for every question and no cleverness is shared with the program: from a
bucket directory (and a base directory, and a shard size) to the list of versions and, per version,
the exact bytes of every file.
"""

import itertools
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import safetensors_py as st

STEP = re.compile(r"^step_(\d+)\.safetensors$")
PREFIXES = ("anchors", "deltas", "steps")
SUFFIXES = ((".indices", ".values"), (".idx", ".val"))
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx", ".distcp")
INDEX = "model.safetensors.index.json"
TIED = ("lm_head.weight", "model.embed_tokens.weight")


class Sparse(NamedTuple):
    """Changed elements of one tensor."""

    dtype: str
    positions: np.ndarray
    values: np.ndarray


class Object(NamedTuple):
    """One anchor or delta."""

    number: int
    path: Path
    parts: dict          # name: Tensor (full) or Sparse
    metadata: dict
    holes_legal: bool


def decode_positions(index, encoding):
    """The flat positions that an index tensor means, as Python-sized integers."""
    raw = index.data.astype(np.int64)
    if encoding == "gap_delta":
        return np.cumsum(raw + 1) - 1
    return raw


def read_object(number, path):
    """Parses one object by the names of its tensors, not by its folder."""
    tensors, metadata = st.load_file(path)
    metadata = metadata or {}
    parts, holes_legal = {}, "encoding" in metadata
    used = set()
    for index, values in SUFFIXES:
        encoding = metadata.get("encoding", "gap_delta") if index == ".idx" else "raw"
        for key in tensors:
            name = key.removesuffix(values)
            if key.endswith(values) and name + index in tensors:
                positions = decode_positions(tensors[name + index], encoding)
                parts[name] = Sparse(tensors[key].dtype, positions, tensors[key].data)
                used |= {key, name + index}
    for key in tensors:
        if key not in used and key != "__empty_delta__":
            parts[key] = tensors[key]
    return Object(number, path, parts, metadata, holes_legal)


def is_full(part):
    """A whole tensor, not a set of elements."""
    return isinstance(part, st.Tensor)


def widened(tensor, dtype):
    """The tensor's values in a wider dtype; exact, also for NaNs of BF16."""
    if tensor.dtype == dtype:
        return tensor.data
    assert (tensor.dtype, dtype) in (("BF16", "F32"), ("F16", "F32")), (tensor.dtype, dtype)
    if tensor.dtype == "BF16":
        return tensor.data.astype("<u4") << np.uint32(16)
    return tensor.data.view("<f2").astype("<f4").view("<u4")


class Oracle:
    """The reference for one bucket directory."""

    def __init__(self, root, base=None, shard_size=None, trust_times=True):
        self.root = Path(root)
        self.base = Path(base) if base else None
        self.shard_size = shard_size
        self.trust_times = trust_times

    # ---- versions -------------------------------------------------------------------------

    def paths(self):
        """[(number, path)] of the run's objects by number; earlier runs' leftovers left out."""
        found = []
        for prefix in PREFIXES:
            folder = self.root / prefix
            for entry in sorted(os.listdir(folder)) if folder.is_dir() else []:
                match = STEP.match(entry)
                if match and (folder / entry).is_file():
                    found.append((int(match[1]), folder / entry))
        found.sort()
        if not self.trust_times:
            return found
        newest, kept = -1, []
        for number, path in found:
            mtime = path.stat().st_mtime_ns
            if mtime >= newest:
                kept.append((number, path))
                newest = mtime
        return kept

    def unsure(self):
        """Numbers whose objects are left out and yet not older than all of the run."""
        kept = self.paths()
        numbers = {number for number, _ in kept}
        first = min((path.stat().st_mtime_ns for n, path in kept if n == kept[0][0]), default=0)
        everything = Oracle(self.root, trust_times=False).paths()
        return {number for number, path in everything
                if number not in numbers and path.stat().st_mtime_ns >= first}

    def left(self):
        """{number: time} of the objects that are left out."""
        kept = {path for _, path in self.paths()}
        return {n: path.stat().st_mtime_ns
                for n, path in Oracle(self.root, trust_times=False).paths() if path not in kept}

    def goes_on(self, number, left):
        """Does a run that should be over go on with this number, as soon as it used to?"""
        times = list(itertools.takewhile(
            lambda t: t is not None, (left.get(n) for n in range(number - 1, number - 6, -1))))
        usual = max((b - a for b, a in zip(times, times[1:])), default=0)
        now = max(path.stat().st_mtime_ns for n, path in self.paths() if n == number)
        return usual > 0 and (now - times[0]) // 3 <= usual

    def objects(self):
        """{number: [Object]}."""
        out = {}
        for number, path in self.paths():
            out.setdefault(number, []).append(read_object(number, path))
        return out

    def reference(self, objects):
        """The names that a complete anchor must cover."""
        first = [o for o in objects.get(1, []) if o.path.parent.name in ("anchors", "steps")]
        if first:
            return set(first[0].parts)
        if self.base:
            return set(self.base_tensors())
        return {name for group in objects.values() for o in group for name in o.parts}

    def states(self):
        """{number: {name: Tensor}} of every version that is whole, in order."""
        objects = self.objects()
        reference = self.reference(objects)
        unsure, left = self.unsure(), self.left()
        out, state, previous = {}, None, None
        for number in sorted(objects):
            parts = {}
            for one in objects[number]:
                parts.update(one.parts)
            full = {n: p for n, p in parts.items() if is_full(p)}
            if reference and reference <= set(full):
                state = dict(full)
            elif state is None:
                continue
            elif number != previous + 1 and (
                    not objects[number][0].holes_legal or self.goes_on(number, left) or any(
                        previous < n < number for n in unsure)):
                state = None
                continue
            else:
                state = self.advance(state, parts)
            previous = number
            out[number] = state
        return out

    @staticmethod
    def advance(state, parts):
        """state with full parts replaced and sparse parts applied."""
        out = dict(state)
        for name, part in parts.items():
            if is_full(part):
                out[name] = part
                continue
            data = out[name].data.copy()
            data[part.positions] = part.values
            out[name] = st.Tensor(out[name].dtype, out[name].shape, data)
        return out

    def numbers(self):
        """The versions' numbers, ascending."""
        return sorted(self.states())

    # ---- files ----------------------------------------------------------------------------

    def companions(self):
        """{relative path: bytes} of what lies next to the weights."""
        top = self.base or self.root
        out = {}
        for folder, _, names in os.walk(top):
            inside = Path(folder).relative_to(top)
            if any(part.startswith(".") for part in inside.parts):
                continue
            if not self.base and inside.parts[:1] and inside.parts[0] in PREFIXES:
                continue
            for name in names:
                if name.startswith(".") or name.endswith(WEIGHTS) or name == INDEX:
                    continue
                out[str(inside / name)] = (Path(folder) / name).read_bytes()
        return out

    def base_files(self):
        """{file name: bytes} of the base's weight files, and its index if it has one."""
        if (self.base / INDEX).exists():
            index = (self.base / INDEX).read_bytes()
            names = sorted(set(json.loads(index)["weight_map"].values()))
            return {INDEX: index, **{n: (self.base / n).read_bytes() for n in names}}
        return {"model.safetensors": (self.base / "model.safetensors").read_bytes()}

    def base_tensors(self):
        """{name: Tensor} of the base."""
        out = {}
        for name, blob in self.base_files().items():
            if name != INDEX:
                out.update(st.load(blob)[0])
        return out

    def tied(self):
        """Does the base's config say that head and embedding are one tensor?"""
        config = self.base / "config.json"
        return config.exists() and bool(json.loads(config.read_text()).get("tie_word_embeddings"))

    def value(self, name, reference, state):
        """The bytes' array that `name` has in this state, in its layout's dtype."""
        if name in state:
            return widened(state[name], reference.dtype)
        other = {TIED[0]: TIED[1], TIED[1]: TIED[0]}.get(name)
        if self.base and other in state and self.tied():
            return widened(state[other], reference.dtype)
        assert self.base, f"{name} is in no anchor"
        return reference.data

    def layout_blob(self, states):
        """The first complete anchor's bytes: the layout where there is no base."""
        first = min(states)
        for one in self.objects()[first]:
            if one.path.exists() and any(is_full(p) for p in one.parts.values()):
                return one.path.read_bytes()
        raise AssertionError("no anchor")

    def weights(self, state, states):
        """{file name: bytes} of the weight files (and their index)."""
        if self.base and not self.shard_size:
            return {name: blob if name == INDEX else self.refill(blob, state)
                    for name, blob in self.base_files().items()}
        if self.base:
            return self.compose(self.base_tensors(), state)
        blob = self.layout_blob(states)
        if self.shard_size:
            return self.compose(st.load(blob)[0], state)
        return {"model.safetensors": self.refill(rewrite_metadata(blob), state)}

    def refill(self, blob, state):
        """A file with the same header and this state's tensors."""
        tensors, _ = st.load(blob)
        _, _, start = st.split(blob)
        data = b"".join(self.value(n, t, state).tobytes() for n, t in tensors.items())
        assert start + len(data) == len(blob)
        return blob[:start] + data

    def compose(self, reference, state):
        """A layout of our own: by element size descending, then name; greedy shards."""
        order = sorted(reference, key=lambda n: (-st.width(reference[n].dtype), n.encode()))
        shards, room = [], 0
        for name in order:
            size = reference[name].data.nbytes
            if not shards or room < size:
                shards.append([])
                room = self.shard_size
            shards[-1].append(name)
            room -= size
        out, weight_map = {}, {}
        for i, names in enumerate(shards):
            file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            if len(shards) == 1:
                file = "model.safetensors"
            weight_map.update({n: file for n in names})
            part = {n: st.Tensor(reference[n].dtype, reference[n].shape,
                                 self.value(n, reference[n], state)) for n in names}
            out[file] = st.dump(part, {"format": "pt"}, names, align=4096)
        if len(shards) > 1:
            total = sum(t.data.nbytes for t in reference.values())
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            out[INDEX] = json.dumps(index).encode()
        return out

    def files(self, number):
        """{relative path: bytes} of a version; 0 is the base as it is, or companions only."""
        if number == 0:
            weights = self.base_files() if self.base else {}
            if self.base and self.shard_size:
                weights = self.compose(self.base_tensors(), {})
            return {**self.companions(), **weights}
        states = self.states()
        return {**self.companions(), **self.weights(states[number], states)}


def is_delta_metadata(metadata):
    """Does this metadata come from a delta format (so that a loader would trip over it)?"""
    return metadata.get("format") in ("sparse_weight_patch", "anchor_checkpoint") or (
        "sparse" in metadata and "num_params" in metadata)


def rewrite_metadata(blob):
    """The file with a delta format's metadata replaced by {"format":"pt"}, nothing moved."""
    text, header, _ = st.split(blob)
    metadata = header.get("__metadata__")
    if metadata is None or not is_delta_metadata(metadata):
        return blob
    at = text.index(b'"__metadata__":') + len(b'"__metadata__":')
    _, end = json.JSONDecoder().raw_decode(text[at:].decode("utf-8"))
    old = text[at:].decode("utf-8")[:end].encode()
    new = text[:at] + b'{"format":"pt"}' + text[at + len(old):]
    return blob[:8] + new + b" " * (len(text) - len(new)) + blob[8 + len(text):]


def same_content(path, got, want):
    """Equal bytes; an index that the mount composes itself may be spelled differently."""
    if path == INDEX and got != want:
        return json.loads(got) == json.loads(want)
    return got == want
