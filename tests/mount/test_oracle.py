"""Every byte of every file of every version equals the reference computed from the bucket."""

import os

import numpy as np
import pytest

from lib import checks, models, oracle, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount

STATES = 8
INTERVAL = 4
RARE = ("model.layers.9.bias", "model.embed_tokens.weight")


def generation_states(generation):
    """States with two zero-change syncs (one at an anchor's number) and tensors that rarely move;
    one generation also has the dtypes that TRL itself would have cast away."""
    spec = models.MIXED if generation in ("v1.0", "v3") else models.TINY
    return models.states(sorted(trl.GENERATIONS).index(generation), STATES, spec, same=(3, 5),
                         skip=RARE)


@pytest.mark.parametrize("generation", trl.GENERATIONS)
def test_every_version_of_every_generation(generation, bucket):
    """A mount that watches a run from its first object on."""
    models.write_companions(bucket)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        assert m.version() is None
        assert m.status()["state"] == "waiting"
        checks.assert_tree(m.at, want.files(0))
        run = trl.Run(bucket, generation, interval=INTERVAL)
        shown = {}

        def look(number):
            shown[number] = want.files(number)
            checks.assert_tree(m.at, shown[number], f"version {number}")

        numbers = checks.publish(m, run, generation_states(generation), look)
        assert numbers == want.numbers() == m.versions()
        for number, files in shown.items():
            checks.assert_tree(m.tree(number), files)
            checks.assert_ranges(m.tree(number) / "model.safetensors",
                                 files["model.safetensors"], number)
        heads = {files["model.safetensors"][:st.split(files["model.safetensors"])[2]]
                 for files in shown.values()}
        assert len(heads) == 1


@pytest.mark.parametrize("generation", ["v1.1", "v1.3", "v2", "v3-raw"])
def test_late_joiner(generation, bucket):
    """A mount that finds a long run shows its newest version, and any older one when asked."""
    models.write_companions(bucket)
    run = trl.Run(bucket, generation, interval=INTERVAL)
    models.publish(run, models.states(40, STATES, models.SMALL, same=(4,), skip=("b.weight",)))
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        newest = want.numbers()[-1]
        m.wait_version(newest)
        checks.assert_tree(m.at, want.files(newest))
        for number in want.numbers():
            m.control(f"pin {number}")
            checks.assert_tree(m.tree(number), want.files(number))
        assert m.versions() == want.numbers()


def test_late_joiner_has_the_same_layout(bucket):
    """Anchors with headers of different lengths: early and late mounts show the same bytes."""
    states = models.states(45, 3, models.SMALL)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as early:
        for number, state in enumerate(states, 1):
            blob = trl.delta_blob(number, {}, full=state, sparse=False, note="x" * 40 * number)
            trl.put(bucket / "anchors" / f"step_{number:06d}.safetensors", blob)
            early.wait_version(number)
            checks.assert_tree(early.at, want.files(number))
        with Mount(bucket) as late:
            late.wait_version(3)
            checks.assert_tree(late.at, want.files(3))


@pytest.mark.parametrize("method", reading.METHODS)
def test_ways_to_read(method, bucket):
    """Whatever call a loader reads with, cold and warm."""
    models.publish(trl.Run(bucket, "v3"), models.states(2, 4))
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        m.wait_version(4)
        for number in (4, 2):
            m.control(f"pin {number}")
            for _ in range(2):
                reading.drop_caches()
                checks.assert_tree(m.tree(number), want.files(number), method,
                                   reading.METHODS[method])


def test_unaligned_direct_reads(bucket):
    """O_DIRECT at any offset and length, also across and past the end."""
    models.publish(trl.Run(bucket, "v3"), models.states(3, 3))
    blob = oracle.Oracle(bucket).files(3)["model.safetensors"]
    with Mount(bucket) as m:
        m.wait_version(3)
        fd = os.open(m.at / "model.safetensors", os.O_RDONLY | os.O_DIRECT)
        try:
            for at, length in reading.random_ranges(np.random.default_rng(5), len(blob), 100):
                assert os.pread(fd, length, at) == blob[at:at + length], (at, length)
            assert os.pread(fd, 10, len(blob)) == b""
        finally:
            os.close(fd)


def test_many_processes(bucket):
    """Processes that read several versions and names of one file at the same time."""
    models.publish(trl.Run(bucket, "v3"), models.states(4, 5))
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        m.wait_version(5)
        expect = {m.at / "model.safetensors": 5}
        for number in want.numbers():
            m.control(f"pin {number}")
            expect[m.tree(number) / "model.safetensors"] = number
        reading.drop_caches()
        sums = reading.sha256_processes(expect)
        for path, number in expect.items():
            assert sums[path] == reading.sha256(want.files(number)["model.safetensors"]), path


def test_raw_bucket(bucket):
    """bucket/ has the objects as they are, and is as read-only as the rest."""
    models.write_companions(bucket)
    models.publish(trl.Run(bucket, "v1.3"), models.states(6, 4, models.SMALL))
    with Mount(bucket) as m:
        m.wait_version(4)
        raw = reading.tree(bucket)
        seen = reading.tree(m.dot / "bucket")
        assert sorted(seen) == sorted(p for p in raw if not os.path.basename(p).startswith("."))
        for path, full in seen.items():
            assert reading.read_file(full) == reading.read_file(raw[path]), path


# ---- --base ---------------------------------------------------------------------------------


def base_cases(folder, state):
    """{name: base directory} of checkpoints that the same run can be shown as."""
    buffers = {"model.position_ids": st.make("I64", (1, 19), np.arange(19, dtype="<u8"))}
    head = {"lm_head.weight": state["model.embed_tokens.weight"]}
    untied = {"lm_head.weight": models.fresh(np.random.default_rng(9), "BF16", (300, 257))}
    narrow = ("model.layers.0.norm.weight", "model.layers.9.bias")
    return {
        "same": lambda: models.write_base(folder, state),
        "f32": lambda: models.write_base(folder, models.widen(state)),
        "some f32": lambda: models.write_base(folder, models.widen(state, narrow)),
        "sharded": lambda: models.write_base(folder, state, shards=3),
        "sharded f32": lambda: models.write_base(folder, models.widen(state), shards=4),
        "buffers": lambda: models.write_base(folder, {**state, **buffers}),
        "tied": lambda: models.write_base(folder, {**state, **head}, tie_word_embeddings=True),
        "tied sharded f32": lambda: models.write_base(
            folder, models.widen({**head, **state}), shards=2, tie_word_embeddings=True),
        "head never uploaded": lambda: models.write_base(
            folder, {**state, **untied}, tie_word_embeddings=False),
        "no metadata": lambda: models.write_base(folder, state, metadata={}),
    }


BASES = list(base_cases(None, {"model.embed_tokens.weight": None}))


@pytest.mark.parametrize("which", BASES)
def test_base(which, scratch, bucket):
    """With --base: its names, headers and index to the byte, from version 0 on."""
    states = models.states(7, 4, skip=RARE)
    base = base_cases(scratch / "base", states[0])[which]()
    models.write_companions(bucket, ignored=True)
    want = oracle.Oracle(bucket, base)
    with Mount(bucket, base=base) as m:
        m.wait_version(0)
        checks.assert_tree(m.at, want.files(0))
        checks.assert_tree(m.tree(0), want.files(0))
        files = checks.weight_files(want.files(0))
        sums = reading.sha256_processes([m.at / f for f in files])
        assert list(sums.values()) == [reading.sha256((base / f).read_bytes()) for f in files]
        checks.publish(m, trl.Run(bucket, "v3"), states,
                       lambda n: checks.assert_tree(m.at, want.files(n), f"{which} {n}"))
        for number in want.numbers():
            checks.assert_tree(m.tree(number), want.files(number))
        assert want.files(1)[files[0]] == want.files(0)[files[0]]
        for file in files:
            checks.assert_ranges(m.at / file, want.files(4)[file], 4)


def test_base_of_partial_anchors(scratch, bucket):
    """v1.3's later anchors lack tensors, which keep what they had."""
    states = models.states(8, 6, same=(3,), skip=RARE)
    base = models.write_base(scratch / "base", models.widen(states[0]), shards=2)
    want = oracle.Oracle(bucket, base)
    with Mount(bucket, base=base) as m:
        checks.publish(m, trl.Run(bucket, "v1.3", interval=4), states,
                       lambda n: checks.assert_tree(m.at, want.files(n)))
        assert m.version() == 5


# ---- --shard-size ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["1KiB", "160000", "0.3MB", "5GB"])
@pytest.mark.parametrize("with_base", [False, True])
def test_shard_size(size, with_base, scratch, bucket):
    """A layout of our own: greedy shards, our index, data at a multiple of 4096."""
    states = models.states(10, 3, models.MIXED)
    number = {"1KiB": 1024, "160000": 160000, "0.3MB": 300000, "5GB": 5 * 10**9}[size]
    base = models.write_base(scratch / "base", models.widen(states[0])) if with_base else None
    want = oracle.Oracle(bucket, base, number)
    with Mount(bucket, base=base, shard_size=size) as m:
        if with_base:
            m.wait_version(0)
            checks.assert_tree(m.at, want.files(0))
        checks.publish(m, trl.Run(bucket, "v3"), states,
                       lambda n: checks.assert_tree(m.at, want.files(n)))
        files = checks.weight_files(want.files(3))
        assert (len(files) == 1) == (size == "5GB")
        for file in files:
            assert st.split(reading.read_file(m.at / file))[2] % 4096 == 0
            checks.assert_ranges(m.at / file, want.files(3)[file], 12, 10)


# ---- objects that writers can make, though none of TRL's does them all ------------------------


def special_patterns():
    """BF16 patterns that a float comparison or conversion would lose."""
    return np.array([0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x8000, 0x0000, 0x0001, 0x8001],
                    dtype="<u2")


def hand_made(spec_state):
    """[(number, folder, blob)] of odd but legal objects, in order."""
    big, small, scale = ("model.layers.0.mlp.weight", "model.layers.0.norm.weight", "model.scale")
    last = spec_state[big].data.size - 1
    odd = special_patterns()
    every = np.arange(spec_state[small].data.size)
    empty = np.zeros(0, np.int64)
    tensor = st.Tensor("BF16", (65,), np.full(65, 0x3F80, "<u2"))
    wide = {big: ([0, last], "BF16", [1, 2]), small: ([3], "BF16", [7])}
    tensors, meta = st.load(trl.delta_blob(11, wide))
    backwards = st.dump(tensors, meta, order=sorted(tensors, reverse=True), extra=5,
                        metadata_last=True)
    return [
        (2, "deltas", trl.delta_blob(2, wide)),
        (3, "deltas", trl.delta_blob(3, {big: ([65535, 65536, 131071, 131072], "BF16", [9] * 4)},
                                     encoding="raw", generation="v3-raw")),
        (4, "deltas", trl.delta_blob(4, {small: (every, "BF16", every)})),
        (5, "deltas", trl.delta_blob(5, {small: (empty, "BF16", empty)})),
        (6, "deltas", trl.delta_blob(6, {})),
        (7, "deltas", trl.delta_blob(7, {scale: ([0], "BF16", [0x4049])}, full={small: tensor})),
        (9, "deltas", trl.delta_blob(9, {}, full={small: tensor}, sparse=False)),
        (10, "deltas", trl.delta_blob(10, {small: (np.arange(len(odd)), "BF16", odd)},
                                      encoding=None, stranger="key")),
        (11, "deltas", backwards),
        (999999, "anchors", trl.delta_blob(999999, {}, full={small: tensor}, sparse=False)),
        (1000000, "deltas", trl.delta_blob(1000000, wide)),
        (1000001, "deltas", trl.delta_blob(
            1000001, {}, full={"__empty_delta__": st.make("I32", (1,), np.zeros(1, "<u4"))})),
    ]


@pytest.mark.parametrize("f32", [False, True])
def test_odd_objects(f32, scratch, bucket):
    """U32 gaps, all elements, none, no tensors at all, full beside sparse, NaNs and signed zeros,
    a missing encoding, another order and padding, seven digits."""
    state = models.start(11)[1]
    base = models.write_base(scratch / "base", models.widen(state)) if f32 else None
    want = oracle.Oracle(bucket, base)
    trl.Run(bucket, "v3").sync(state)
    with Mount(bucket, base=base) as m:
        m.wait_version(1)
        for number, folder, blob in hand_made(state):
            trl.put(bucket / folder / f"step_{number:06d}.safetensors", blob)
            m.wait_version(number)
            checks.assert_tree(m.at, want.files(number), f"version {number}")
        m.wait_well()


@pytest.mark.parametrize("how", ["rename", "inplace", "slow"])
def test_ways_to_write(how, bucket):
    """An object is used when it is whole, however it came to be."""
    want = oracle.Oracle(bucket)
    run = trl.Run(bucket, "v3", interval=3, how=how)
    with Mount(bucket) as m:
        for state in models.states(12, 4):
            run.sync(state)
            m.wait_version(run.number)
            checks.assert_tree(m.at, want.files(run.number))
        m.wait_well()
