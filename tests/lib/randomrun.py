"""Random runs: what a trainer could do, from a seed, for writers of any format.

A run is a list of segments; each begins with an anchor, and the next segment is a trainer that
began again from 1 in the same place.  A step says what is published of it (an anchor, a delta, or
both where a format has that) and what the policy is then: any bits, with densities from nothing to
everything, tensor by tensor.
"""

from typing import NamedTuple

import numpy as np

from lib import safetensors_py as st

DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "I8")
FLOATS = ("BF16", "F16", "F32")
WORDS = ("model.embed_tokens.weight", "lm_head.weight", "a.val", "b.indices.weight", "größe.✓",
         "layers.10.w", "layers.9.w", "scale", "norm", "x", "experts.0.down")
DENSITIES = (0, 0, 0.0005, 0.01, 0.05, 0.5, 1)


class Step(NamedTuple):
    """One version: kind is "anchor", "delta" or "both"."""

    kind: str
    state: dict


def shape(rng):
    """Any rank, a scalar, nothing at all; seldom more than one 65,536-element block."""
    kind = rng.integers(0, 8)
    if kind == 0:
        return ()
    if kind == 1:
        return tuple(rng.permutation([0, int(rng.integers(1, 9))]).tolist())
    if kind == 2:
        return (3, int(rng.integers(21000, 45000)))
    return tuple(int(n) for n in rng.integers(1, 40, int(rng.integers(1, 4))))


def bits(rng, dtype, count):
    """Elements of any bits, or (mostly) plausible small numbers."""
    raw = rng.integers(0, 256, count * st.width(dtype), dtype=np.uint8)
    return raw.view(st.carrier(dtype))


def spec(rng, dtypes):
    """{name: (dtype, shape)}; never only empty tensors."""
    names = rng.choice(WORDS, int(rng.integers(1, len(WORDS))), replace=False)
    out = {str(n): (str(rng.choice(dtypes)), shape(rng)) for n in names}
    out["certain.weight"] = (str(rng.choice(dtypes)), (int(rng.integers(1, 500)), 3))
    return out


def moved(rng, state):
    """The next state: each tensor by a density of its own, by bits or by an ulp."""
    out = {}
    for name, t in state.items():
        density = rng.choice(DENSITIES)
        at = np.flatnonzero(rng.random(t.data.size) < density)
        if len(at) == 0:
            out[name] = t
            continue
        data = t.data.copy()
        if rng.random() < 0.5:
            data[at] = bits(rng, t.dtype, len(at))
        else:
            data[at] += rng.integers(1, 3, len(at)).astype(data.dtype)
        out[name] = st.Tensor(t.dtype, t.shape, data)
    return out


def segment(rng, what, most):
    """A trainer from its start to its end."""
    state = {n: st.make(d, s, bits(rng, d, st.numel(s))) for n, (d, s) in what.items()}
    steps = [Step("anchor", state)]
    for _ in range(int(rng.integers(1, most))):
        state = dict(state) if rng.random() < 0.15 else moved(rng, state)
        kind = "delta" if rng.random() < 0.75 else str(rng.choice(["anchor", "both"]))
        steps.append(Step(kind, state))
    return steps


def make(seed, dtypes=DTYPES, most=7):
    """A run of this seed: a list of segments, lists of Step."""
    rng = np.random.default_rng(seed)
    what = spec(rng, dtypes)
    return [segment(rng, what, most) for _ in range(1 + (rng.random() < 0.4))]
