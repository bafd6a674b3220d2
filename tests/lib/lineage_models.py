"""Two rows of the table (see lineages.py): anchors that have another model in them."""

import os

import numpy as np

from lib import models, trl
from lib import safetensors_py as st
from lib.lineages import (MODEL, Row, declared_run, directories_run, names_run, place, same, shows,
                          states, tick)
from lib.mounted import Mount


def changed(state, **other):
    """The state with other tensors; None takes one out."""
    return {n: t for n, t in {**state, **other}.items() if t is not None}


def wide(state):
    """One tensor in another dtype."""
    return changed(state, **{"a.weight": models.widen(state)["a.weight"]})


def long(state):
    """One in another shape."""
    return changed(state, **{"b.bias": st.make("BF16", (6,), np.arange(6, dtype="<u2"))})


OTHER = Row("an anchor has another dtype or shape, or a tensor more",
            ("cannot be converted without loss",))


def others(state, after):
    """States of another model, and one that follows on each."""
    more = {"z.weight": st.make("BF16", (3,), np.arange(3, dtype="<u2"))}
    for make in (wide, long, lambda s: changed(s, **more)):
        yield make(state), changed(make(state), **{"c.scale": after["c.scale"]})


def other_model(bucket, writer, s):
    """What the anchor says, from then on; deltas follow."""
    with Mount(bucket) as m:
        shows(m, 2, s[2])
        held = os.open(m.at / MODEL, os.O_RDONLY)
        n = 2
        for state, after in others(s[3], s[4]):
            writer.anchor(n + 1, state)
            shows(m, n + 1, state)
            writer.delta(n + 2, state, after)
            n += 2
            shows(m, n, after)
        assert same(m.tree(2), s[2])
        assert st.load(os.pread(held, 1 << 20, 0))[0].keys() == s[2].keys()
        os.close(held)
        return n


@OTHER.case("names")
def other_names(bucket, scratch):
    """And a delta cannot do that, nor can it be shown as --base has it."""
    s = states(40)
    writer = names_run(bucket, s, 2)
    n = other_model(bucket, writer, s)
    writer.anchor(n + 1, s[5])
    place(writer.path(n + 2), trl.delta_blob(n + 2, {}, full={
        "a.weight": wide(s[5])["a.weight"]}), tick())
    with Mount(bucket) as m:
        shows(m, n + 1, s[5])
        OTHER.said(m, "cannot be converted without loss")
    for path in bucket.rglob("*.safetensors"):
        path.unlink()
    writer.run(s, 2)
    writer.anchor(3, changed(s[3], **{"a.weight": st.make(
        "F64", s[3]["a.weight"].shape, np.zeros(63, "<f8"))}))
    with Mount(bucket, base=models.write_base(scratch / "base", s[1])) as m:
        shows(m, 2, s[2])
        OTHER.said(m, "cannot be converted without loss")


@OTHER.case("declared")
def other_declared(bucket, _):
    """The same."""
    s = states(41)
    out = declared_run(bucket, s, 2)

    class Writer:
        """With the verbs of the others."""

        @staticmethod
        def anchor(n, state):
            """No delta beside it."""
            out.states[n] = state
            out.steps.append(out.anchor(n, state))
            out.pointer()

        @staticmethod
        def delta(n, _, state):
            """The next."""
            assert out.publish(state) == n

    other_model(bucket, Writer, s)


@OTHER.case("directories")
def other_directories(bucket, _):
    """The same."""
    s = states(42)
    other_model(bucket, directories_run(bucket, s, 2), s)


FEWER = Row("an anchor lacks a tensor", ())


@FEWER.case("names")
def fewer_names(bucket, _):
    """It is a partial one: what it lacks stays as it was."""
    s = states(43)
    writer = names_run(bucket, s, 2)
    with Mount(bucket) as m:
        writer.anchor(3, changed(s[3], **{"b.bias": None}))
        shows(m, 3, changed(s[3], **{"b.bias": s[2]["b.bias"]}))


@FEWER.case("declared")
def fewer_declared(bucket, _):
    """It is an anchor because it is said to be one."""
    s = states(44)
    out = declared_run(bucket, s, 2)
    with Mount(bucket) as m:
        shows(m, 2, s[2])
        less = changed(s[3], **{"b.bias": None})
        out.states[3] = less
        out.steps.append(out.anchor(3, less))
        out.pointer()
        shows(m, 3, less)


@FEWER.case("directories")
def fewer_directories(bucket, _):
    """A whole checkpoint is one."""
    s = states(45)
    writer = directories_run(bucket, s, 2)
    with Mount(bucket) as m:
        shows(m, 2, s[2])
        less = changed(s[3], **{"b.bias": None})
        writer.anchor(3, less)
        shows(m, 3, less)
