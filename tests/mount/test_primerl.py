"""prime-rl's broadcasts, whole and sparse: every byte of every step; what is unfinished, mixed or
of another step is never shown."""

import json
import os

import numpy as np
import pytest

from lib import checks, hfdir, models, mounted, primerl
from lib import safetensors_py as st
from lib.mounted import Mount

INDEX = primerl.INDEX
MODEL = "model.safetensors"
SPEC = {**models.SMALL, "one.f32": ("F32", (3, 7001)), "q.f8": ("F8_E4M3", (64, 33)),
        "q.i8": ("I8", (1000,)), "h.f16": ("F16", (17, 5)), "none": ("BF16", (0, 4))}


def holds(top, state):
    """The tensors of this version, in whatever files, are this state's, to the byte."""
    have = primerl.read_whole(top)
    assert {n: t.data.tobytes() for n, t in have.items()} == \
        {n: t.data.tobytes() for n, t in state.items()}


def states_of(seed, count):
    """States of every dtype that differ in few, no, all and many elements."""
    rng, state = models.start(seed, SPEC)
    out = [state]
    for density in (0.01, 0, 1, 0.3, 0.001, 0.1, 0.01)[:count - 1]:
        state = dict(state)
        for name, t in state.items():
            raw = t.data.copy()
            at = rng.random(raw.size) < density
            raw[at] = rng.integers(0, np.iinfo(raw.dtype).max, int(at.sum()), dtype=raw.dtype)
            state[name] = st.Tensor(t.dtype, t.shape, raw)
        out.append(state)
    return out


@pytest.mark.parametrize("kind", [{}, {"wide": True, "packed": True}, {"sums": False}])
def test_updates(kind, bucket, scratch):
    """Sparse steps on --base, with gaps between their numbers, and a whole one among them."""
    states = states_of(81, 6)
    base = models.write_base(scratch / "base", states[0])
    steps = dict(enumerate([0, 3, 4, 8, 9, 12]))
    t = primerl.Trainer(bucket / "broadcasts", {steps[i]: s for i, s in enumerate(states)},
                        groups=1, **kind)
    for i in (1, 2):
        t.update(steps[i], steps[i - 1])
    with Mount(bucket, base=base) as m:
        m.wait_version(4)
        assert "prime-rl-sparse" in m.status()["format"]
        t.whole(8)
        m.wait_version(8)
        for i in (4, 5):
            t.update(steps[i], steps[i - 1])
            m.wait_version(steps[i])
        mounted.wait_until(lambda: m.versions() == list(steps.values()), m.status)
        for i, state in enumerate(states):
            holds(m.tree(steps[i]), state)
            checks.assert_ranges(m.tree(steps[i]) / MODEL,
                                 (m.tree(steps[i]) / MODEL).read_bytes(), i, 5)
        m.wait_well()
    want = {n: t.data.tobytes() for n, t in states[5].items()}
    have = primerl.pull(t.root, base, 12)
    assert {n: t.data.tobytes() for n, t in have.items()} == want
    report = json.loads(mounted.run("verify", "--json", "-q", bucket, "--base", base).stdout)
    assert report["ok"] and report["whole"] == report["versions"]


def test_older(bucket):
    """The older sparse format: a file for each layer, whole steps that say so, no --base."""
    states = states_of(82, 7)
    t = primerl.Trainer(bucket, states, groups=3)
    t.whole(0, older=True)
    t.older(1)
    t.older(2)
    with Mount(bucket) as m:
        m.wait_version(2)
        assert "prime-rl-sparse-v1" in m.status()["format"]
        for step in (3, 4, 5, 6):
            t.whole(4, older=True) if step == 4 else t.older(step)
            m.wait_version(step)
        mounted.wait_until(lambda: m.versions() == [0, 1, 2, 3, 4, 5, 6], m.status)
        for step, state in enumerate(states):
            holds(m.tree(step), state)
        m.wait_well()


def test_whole(bucket):
    """Only whole steps, in files with an index; one is a version when STABLE is there."""
    states = models.states(83, 4, models.MINI, density=0.5)
    t = primerl.Trainer(bucket / "broadcasts", states)
    t.whole(1)
    with Mount(bucket) as m:
        m.wait_version(1)
        t.whole(2, stable=False)
        mounted.wait_until(lambda: "step_2" in json.dumps(m.status()), m.status)
        assert m.version() == 1
        t.put(2, primerl.STABLE, b"")
        m.wait_version(2)
        holds(m.at, states[2])
        t.groups = 1
        t.whole(3)
        m.wait_version(3)
        holds(m.at, states[3])
        m.wait_well()


def test_written_again(bucket):
    """A step that is broadcast again is not shown half new and half old, and files of its first
    time do not count."""
    states = models.states(84, 4, models.MINI, density=1.0)
    t = primerl.Trainer(bucket, states, groups=3)
    t.whole(1)
    t.whole(2)
    t.states = {2: states[3]}
    t.groups = 2
    t.whole(2, stable=False)
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem(f"step_2/{INDEX}", "STABLE")
        holds(m.at, states[1])
        t.put(2, primerl.STABLE, b"")
        m.wait_version(2)
        mounted.wait_until(lambda: m.status()["problems"] == [], m.status)
        holds(m.at, states[3])
        assert len(list(t.folder(2).glob("model-*"))) == 5
    os.utime(t.folder(2) / primerl.STABLE, (1, 1))
    with Mount(bucket, args=["--times", "ignore"]) as m:
        m.wait_version(2)
        holds(m.at, states[3])


def test_never_whole(bucket, scratch):
    """A sparse directory with all of a checkpoint in it is what its manifest says; damaged, it is
    nothing."""
    states = models.states(85, 4, models.MINI, density=0.5)
    base = models.write_base(scratch / "base", states[0])
    t = primerl.Trainer(bucket, states)
    t.update(1)
    t.states = {2: states[3]}
    t.whole(2, stable=False) # of another run
    t.groups = 1
    t.whole(2, stable=False)
    t.states = states
    t.update(2)
    with Mount(bucket) as m:
        m.wait_problem("step_1/" + primerl.UPDATE, "--base")
        assert m.version() is None
    with Mount(bucket, base=base) as m:
        m.wait_version(2)
        holds(m.at, states[2])


@pytest.mark.parametrize("name", [primerl.UPDATE, primerl.OLDER])
def test_damaged(name, bucket):
    """A checkpoint beside a manifest that cannot be read is not shown either."""
    states = models.states(92, 3, models.MINI, density=0.5)
    t = primerl.Trainer(bucket, states)
    t.whole(1)
    t.whole(2, stable=False)
    t.put(2, name, b'{"format": "prime-rl-sparse-update", "step": 2')
    t.put(2, primerl.STABLE, b"")
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem(f"step_2/{name}", "found its end")
        holds(m.at, states[1])


def test_full_of_nothing(bucket):
    """The older manifest says "full", and there is no checkpoint."""
    states = models.states(86, 3, models.MINI)
    t = primerl.Trainer(bucket, states)
    t.whole(1, older=True)
    t.whole(2, older=True, stable=False)
    (t.folder(2) / INDEX).unlink()
    t.put(2, primerl.STABLE, b"")
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem("step_2/" + primerl.OLDER, "there is none beside it")
        (t.folder(2) / "model-00001-of-00002.safetensors").unlink()
        t.put(2, MODEL, st.dump(states[2]))
        t.put(2, primerl.STABLE, b"")
        m.wait_version(2)
        holds(m.at, states[2])


def test_chain(bucket, scratch):
    """A missing step, one on another base, one in another's directory."""
    states = models.states(87, 6, models.MINI, density=0.5)
    t = primerl.Trainer(bucket, states)
    t.update(1)
    t.update(3)
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        m.wait_version(1)
        m.wait_problem("step_3/" + primerl.UPDATE, "applies to version 2")
        t.update(3, 1)
        m.wait_version(3)
        holds(m.at, states[3])
        t.update(4, edit=lambda manifest: manifest.update(step=5))
        m.wait_problem("step_4/" + primerl.UPDATE, "says that it is version 5")
        t.update(4, 1)
        m.wait_problem("step_4/" + primerl.UPDATE, "applies to version 1")
        assert m.version() == 3
        t.update(4)
        m.wait_version(4)
        holds(m.at, states[4])


def first(**what):
    """Changes the first tensor of a manifest."""
    return lambda manifest: manifest["tensors"][0].update(what)


def position(at, value, dtype="<i4"):
    """Sets a position of the first tensor."""
    def edit(patch):
        data = patch["tensor_0.indices"].data.copy()
        data[at] = np.array([value], dtype).view(data.dtype)[0]
        patch["tensor_0.indices"] = patch["tensor_0.indices"]._replace(data=data)
    return edit


def nothing(_):
    """Changes nothing."""


@pytest.mark.parametrize("edit, tensors_edit, where, sentence", [
    (lambda m: m.update(format="x"), None, primerl.UPDATE, "not known here"),
    (lambda m: m.update(patch_file="../step_1/" + primerl.PATCH), None, primerl.UPDATE,
     "no plain name"),
    (lambda m: m.update(patch_file=None), None, primerl.UPDATE, "no patch_file"),
    (lambda m: m["tensors"].append(m["tensors"][0]), None, primerl.UPDATE, "listed twice"),
    (lambda m: m["tensors"].pop(), None, primerl.PATCH, "different broadcasts"),
    (first(changed_numel=1), None, primerl.PATCH, "different broadcasts"),
    (first(numel=64, shape=[64]), None, primerl.PATCH, "has shape [64]"),
    (first(indices="tensor_1.indices"), None, primerl.PATCH, None),
    (first(checksum=1), None, primerl.PATCH, "checksum"),
    (first(dtype="float32"), None, primerl.PATCH, "another dtype"),
    (first(checksum=2 ** 64), None, primerl.UPDATE, "2^64"),
    (nothing, position(-1, -1), primerl.PATCH, "beyond the tensor"),
    (nothing, position(-1, 63), primerl.PATCH, "beyond the tensor"),
    (nothing, position(1, 0), primerl.PATCH, "ascend"),
    (nothing, position(0, 5), primerl.PATCH, "ascend"),
])
def test_bad_updates(edit, tensors_edit, where, sentence, bucket, scratch):
    """Each is refused by a sentence at the object that it is of; what came before stays."""
    states = models.states(88, 3, models.MINI, density=1.0)
    t = primerl.Trainer(bucket, states)
    t.update(1)
    t.update(2, edit=edit, tensors_edit=tensors_edit)
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        have = m.wait_problem(f"step_2/{where}")
        assert (sentence or "different broadcasts") in have
        assert m.version() == 1
        holds(m.at, states[1])


def test_wide_negative(bucket, scratch):
    """A negative position of 64 bits."""
    states = models.states(89, 2, models.MINI, density=1.0)
    t = primerl.Trainer(bucket, states, wide=True, packed=True)
    t.update(1, tensors_edit=position(-1, -(1 << 63), "<i8"))
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        m.wait_problem("step_1/" + primerl.PATCH, "beyond the tensor")
        assert m.version() == 0


@pytest.mark.parametrize("blob, sentence", [
    (hfdir.compress(bytes(1 << 26)), "header"),
    (hfdir.compress(bytes(1 << 26), False), "header"),
    (hfdir.compress(b"no header at all"), "header"),
    (hfdir.compress(bytes(8)) + b"x", "behind it"),
    (primerl.MAGIC + b"damaged", "zstd frame"),
])
def test_bad_frames(blob, sentence, bucket, scratch):
    """A patch that is a bomb, or damaged."""
    states = models.states(90, 2, models.MINI)
    t = primerl.Trainer(bucket, states)
    t.update(1)
    t.put(1, primerl.PATCH, blob)
    t.put(1, primerl.STABLE, b"")
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        m.wait_problem("step_1/" + primerl.PATCH, sentence)
        assert m.version() == 0


def test_wrong_dtype(bucket, scratch):
    """prime-rl casts to bf16: on a base in float32 the sentence says what to do."""
    states = models.states(91, 2, models.MINI, density=1.0)
    wide = {n: st.make("F32", t.shape, (t.data.astype("<u4") << 16)) for n, t in states[0].items()}
    primerl.Trainer(bucket, states).update(1)
    with Mount(bucket, base=models.write_base(scratch / "base", wide)) as m:
        have = m.wait_problem("step_1/" + primerl.PATCH)
        assert "BF16" in have and "F32" in have
        assert m.version() == 0
