"""A trainer that uses `weightfs publish`, and a reader of what it wrote.

The reader knows weightfs.json and the patch form from their specifications (fs/manifest.h,
codec/patch.h) and nothing of the program's code: read_run() checks every rule that a run has to
keep, and returns the tensors of every version.

    out = publishing.Publisher(bucket, scratch / "state")
    out.publish(state)                  # {name: Tensor}, see models.py; the report, a dict
    publishing.check(bucket, {1: state})
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import xxhash

from lib import models, mounted
from lib import safetensors_py as st
from lib import packed, wfp1

POINTER = "weightfs.json"


def write_checkpoint(path, state, shards=1, companions=True):
    """A checkpoint directory of a state; returns it."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if companions:
        models.write_base(path, state, shards)
    elif shards == 1:
        (path / "model.safetensors").write_bytes(st.dump(state, {"format": "pt"}))
    else:
        raise ValueError("shards come with companions")
    return path


class Publisher:
    """`weightfs publish` to one destination with one state directory."""

    def __init__(self, dest, state_dir, args=(), env=None, work=None):
        self.dest, self.state_dir, self.args, self.env = dest, Path(state_dir), list(args), env
        self.work = Path(work or self.state_dir.parent / "checkpoints")
        self.count = 0

    def command(self, checkpoint, *args):
        """The whole command line."""
        return [str(word) for word in (mounted.BINARY, "publish", "--json", "--state-dir",
                                       self.state_dir, *self.args, *args, checkpoint, self.dest)]

    def run(self, checkpoint, *args, check=True, **kwargs):
        """Publishes a path; the finished process."""
        kwargs.setdefault("env", self.env)
        done = subprocess.run(self.command(checkpoint, *args), capture_output=True,
                              timeout=mounted.WAIT * 2, check=False, **kwargs)
        text = done.stderr.decode()
        assert not any(s in text for s in mounted.SANITIZER), text
        if check:
            assert done.returncode == 0, text
        return done

    def publish(self, checkpoint, *args, **kwargs):
        """Publishes a path, or a state by way of a checkpoint; the report."""
        if isinstance(checkpoint, dict):
            self.count += 1
            checkpoint = write_checkpoint(self.work / str(self.count), checkpoint)
        return json.loads(self.run(checkpoint, *args, **kwargs).stdout)

    def refused(self, checkpoint, *args, code=1, **kwargs):
        """Publishes in vain; the sentence."""
        if isinstance(checkpoint, dict):
            self.count += 1
            checkpoint = write_checkpoint(self.work / str(self.count), checkpoint)
        done = self.run(checkpoint, *args, check=False, **kwargs)
        text = done.stderr.decode()
        assert done.returncode == code and text.startswith("weightfs: "), (done.returncode, text)
        assert text.count("\n") == 1 and not done.stdout, (text, done.stdout)
        return text.strip()

    def slot(self):
        """The directory with the copy of the last state."""
        own = next(p for p in self.state_dir.iterdir())
        return own / f"slot-{json.loads((own / 'state.json').read_text())['slot']}"


# ---- reading ------------------------------------------------------------------------------------

class Objects:
    """The objects of a run as a mapping: of a directory, or of a dict."""

    def __init__(self, source):
        self.source = source

    def keys(self):
        """All visible keys."""
        if isinstance(self.source, dict):
            return set(self.source)
        return {str(p.relative_to(self.source)) for p in Path(self.source).rglob("*")
                if p.is_file() and not p.name.startswith(".")}

    def __getitem__(self, key):
        if isinstance(self.source, dict):
            return self.source[key]
        return (Path(self.source) / key).read_bytes()


def pointer(source):
    """weightfs.json, parsed."""
    return json.loads(Objects(source)[POINTER])


def state_hash(state):
    """The hash of a state, by fs/manifest.h."""
    whole = xxhash.xxh3_128()
    for name in sorted(state, key=lambda n: n.encode()):
        t = state[name]
        whole.update(name.encode() + b"\0" + t.dtype.encode() + b"\0" +
                     xxhash.xxh3_128(t.data.tobytes()).digest())
    return whole.hexdigest()


def same_state(a, b):
    """Are these the same tensors, bit for bit?"""
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and
        a[n].data.tobytes() == b[n].data.tobytes() for n in a)


def read_wfp1(blob, base, entry, lineage, base_state):
    """The state after an object of wfp1 or wfp1x."""
    _, header, start = st.split(blob)
    meta = header.pop("__metadata__")
    assert meta["format"] == "weightfs-patch" and meta["encoding"] == entry["encoding"], meta
    assert meta["model_version"] == str(entry["version"]), meta
    assert meta["base_version"] == str(entry["base"]), meta
    assert (meta["lineage"], meta["state"], meta["base_state"]) == (
        lineage, entry["state"], base_state), meta
    order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    hashes = [meta["hashes"][i:i + 32] for i in range(0, len(meta["hashes"]), 32)]
    assert len(hashes) == len(order)
    state = dict(base)
    for (name, info), digest in zip(order, hashes):
        begin, end = info["data_offsets"]
        old, patch = base[name].data.tobytes(), blob[start + begin:start + end]
        patch = (wfp1.read(patch) if entry["encoding"] == "wfp1" else
                 wfp1.read_x(patch, old))
        assert patch.op == "ADD" and patch.hashes
        new = wfp1.apply(patch, old)
        assert xxhash.xxh3_128(new).hexdigest() == digest
        state[name] = st.Tensor(base[name].dtype, base[name].shape,
                                np.frombuffer(new, st.carrier(base[name].dtype)))
    return state


def read_anchor(objects, entry):
    """The state that an anchor's files hold."""
    state = {}
    for one in entry["objects"]:
        blob = objects[one["key"]]
        assert len(blob) == one["size"], one
        if entry["encoding"] == "packed":
            blob = packed.unpack(blob)
        tensors, _ = st.load(blob)
        assert not state.keys() & tensors.keys()
        state.update(tensors)
    return state


def read_run(source, anchors=True):
    """{version: state} of a run in wfp1; every rule of weightfs.json is checked on the way."""
    objects, known = Objects(source), pointer(source)
    assert known["format"] == "weightfs-run" and known["version"] == 1
    keys, states, last, state = objects.keys(), {}, None, None
    for entry in known["steps"]:
        for one in entry["objects"]:
            assert one["key"] in keys, f"{one['key']} is named and not there"
            assert len(objects[one["key"]]) == one["size"]
        if entry["kind"] == "anchor":
            found = read_anchor(objects, entry) if anchors else state
        else:
            # The one behind an anchor of the same version is based on the version before.
            base, base_hash = (state, last) if entry["version"] not in states else before
            assert entry["base"] == base_hash[0], entry
            found = dict(base)
            for one in entry["objects"]:
                found = read_wfp1(objects[one["key"]], base, entry, known["lineage"],
                                  base_hash[1])
        if entry["version"] in states:
            assert same_state(states[entry["version"]], found), entry["version"]
        else:
            assert last is None or entry["version"] > last[0], "versions that do not ascend"
            before = (state, last)
            states[entry["version"]], state = found, found
            last = (entry["version"], entry["state"])
        assert state_hash(found) == entry["state"], entry["version"]
    assert known["newest"] == (last[0] if last else 0)
    return states


def check(source, want):
    """The run has exactly these versions."""
    have = read_run(source)
    assert sorted(have) == sorted(want), (sorted(have), sorted(want))
    for version, state in want.items():
        assert same_state(have[version], state), version


def newest(source):
    """The newest version, 0 before the first; every object that the pointer names is there."""
    objects = Objects(source)
    keys = objects.keys()
    if POINTER not in keys:
        return 0
    known = pointer(source)
    for entry in known["steps"]:
        for one in entry["objects"]:
            assert one["key"] in keys, f"{one['key']} is named and not there"
            assert len(objects[one["key"]]) == one["size"], one
    return known["newest"]


def strays(source):
    """Objects that the pointer does not name (and that are no companions)."""
    named = {one["key"] for list_ in ("steps", "spans") for e in pointer(source).get(list_, ())
             for one in e["objects"]}
    return {k for k in Objects(source).keys()
            if k.startswith(("anchors/", "deltas/", "compact/")) and k not in named}


def environment(**extra):
    """This process's, with a home that is nobody's."""
    return {**os.environ, "HOME": "/nonexistent", **extra}
