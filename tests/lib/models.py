"""Small models and how training moves them: states for the writers, all from a fixed seed."""

import json

import numpy as np

from lib import safetensors_py as st

# name: (dtype, shape).  More than one 65,536-element block, odd shapes, rank 0, nothing at all,
# a name that ends like an index tensor's suffix, and one that is not ASCII.
TINY = {
    "model.embed_tokens.weight": ("BF16", (300, 257)),
    "model.layers.0.mlp.weight": ("BF16", (3, 65537)),
    "model.layers.0.attn.q.weight": ("BF16", (33, 65)),
    "model.layers.0.norm.weight": ("BF16", (65,)),
    "model.layers.0.gate.val": ("BF16", (7, 9)),
    "model.layers.0.größe.✓": ("BF16", (2, 3, 5)),
    "model.layers.10.bias": ("BF16", (1,)),
    "model.layers.9.bias": ("BF16", (255,)),
    "model.scale": ("BF16", ()),
    "model.nothing": ("BF16", (0, 7)),
}

MIXED = {
    **TINY,
    "model.counter": ("I64", (5,)),
    "model.norm_f32.weight": ("F32", (65, 3)),
    "model.half": ("F16", (11, 13)),
    "model.bytes": ("U8", (101,)),
}

SMALL = {
    "a.weight": ("BF16", (20, 30)),
    "b.weight": ("BF16", (41,)),
    "c.scale": ("BF16", ()),
    "d.weight": ("BF16", (257, 256)),
}

MINI = {
    "a.weight": ("BF16", (7, 9)),
    "b.bias": ("BF16", (5,)),
    "c.scale": ("BF16", ()),
}

# Keys of a checkpoint that sparse deltas also have.
PAIRED = {
    "experts.indices": ("I32", (6,)), "experts.values": ("BF16", (6,)),
    "book.idx": ("U8", (9,)), "book.val": ("F16", (9,)),
    "alone.indices": ("I32", (3,)), "__empty_delta__": ("I32", (1,)), "w": ("BF16", (40,)),
}


def f32_to_bf16(values):
    """Rounds float32 to bf16 patterns, to nearest even (no NaNs)."""
    bits = np.ascontiguousarray(values, "<f4").reshape(-1).view("<u4").astype("<u8")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def fresh(rng, dtype, shape):
    """A new tensor with plausible values."""
    n = st.numel(shape)
    normal = (rng.standard_normal(n) * 0.02).astype("<f4")
    if dtype == "BF16":
        return st.make(dtype, shape, f32_to_bf16(normal))
    if dtype in ("F16", "F32", "F64"):
        return st.make(dtype, shape, normal.astype(f"<f{st.width(dtype)}"))
    return st.make(dtype, shape, rng.integers(0, 100, n).astype(st.carrier(dtype)))


def start(seed, spec=None):
    """(generator, first state) of a spec."""
    rng = np.random.default_rng(seed)
    return rng, {name: fresh(rng, *what) for name, what in (spec or TINY).items()}


def random_states(seed, spec, densities):
    """A first state and one per density, in which about that share of all bytes is any other."""
    rng, state = start(seed, spec)
    out = [state]
    for density in densities:
        state = dict(state)
        for name, t in state.items():
            raw = np.frombuffer(t.data.tobytes(), np.uint8).copy()
            at = rng.random(raw.size) < density
            raw[at] = rng.integers(0, 256, int(at.sum()), dtype=np.uint8)
            state[name] = st.Tensor(t.dtype, t.shape, raw.view(t.data.dtype))
        out.append(state)
    return out


def step(rng, state, density=0.01, skip=()):
    """The next state: about `density` of each tensor, at least one element, moves by an ulp or
    two; the tensors named in `skip` stay."""
    out = {}
    for name, tensor in state.items():
        n = tensor.data.size
        if name in skip or n == 0:
            out[name] = tensor
            continue
        count = max(1, rng.binomial(n, density))
        at = rng.choice(n, size=count, replace=False)
        data = tensor.data.copy()
        data[at] += rng.integers(1, 3, count).astype(data.dtype)
        out[name] = st.Tensor(tensor.dtype, tensor.shape, data)
    return out


def states(seed, count, spec=None, density=0.01, skip=(), same=()):
    """`count` consecutive states; the ones at the indices in `same` equal their predecessor."""
    rng, state = start(seed, spec)
    out = [state]
    for i in range(1, count):
        state = dict(state) if i in same else step(rng, state, density, skip)
        out.append(state)
    return out


def publish(run, all_states):
    """Feeds the states to a writer; returns the run."""
    for state in all_states:
        run.sync(state)
    return run


def write_companions(root, **config):
    """What else lies next to a model: some that must show up, some that must not."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps({"model_type": "tiny", **config}))
    (root / "tokenizer.json").write_bytes(bytes(range(256)) * 300)
    (root / "empty.txt").write_bytes(b"")
    (root / "1_Pooling").mkdir(exist_ok=True)
    (root / "1_Pooling" / "config.json").write_text("{}\n")
    for hidden in (".hidden", "adapter.bin", "extra.safetensors", "model.gguf", "old.pt",
                   "tf_model.h5", "flax.msgpack", "model.onnx"):
        (root / hidden).write_bytes(b"not to be shown")


def write_base(root, state, shards=1, metadata=None, **config):
    """A Hub-like checkpoint of a state: one file, or `shards` files with an index."""
    write_companions(root, **config)
    (root / "extra.safetensors").unlink()
    metadata = {"format": "pt"} if metadata is None else metadata
    if shards == 1:
        (root / "model.safetensors").write_bytes(st.dump(state, metadata))
        return root
    names = list(state)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: state[n] for n in names[i::shards]}
        (root / file).write_bytes(st.dump(part, metadata))
        weight_map.update({n: file for n in part})
    total = sum(t.data.nbytes for t in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (root / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return root


def widen(state, names=None):
    """The state with its BF16 tensors (or just the named ones) as F32, value for value."""
    out = {}
    for name, t in state.items():
        if t.dtype == "BF16" and (names is None or name in names):
            t = st.Tensor("F32", t.shape, t.data.astype("<u4") << np.uint32(16))
        out[name] = t
    return out
