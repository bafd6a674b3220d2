"""Fireworks' incremental snapshots: every byte of every version, and what is not shown."""

import json
import shutil

import numpy as np
import pytest

from lib import arc, checks, models, mounted, randomrun
from lib import safetensors_py as st
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")

SPEC = {**models.SMALL, "one.f32": ("F32", (3, 70001)), "q.f8": ("F8_E4M3", (64, 33)),
        "q.i8": ("I8", (1000,)), "none": ("BF16", (0, 4))}


def states_of(seed, count):
    """States that differ by any bits."""
    rng, state = models.start(seed, SPEC)
    out = [state]
    while len(out) < count:
        out.append(randomrun.moved(rng, out[-1]))
    return out


def holds(top, state):
    """The version has this state, in whatever files."""
    checks.holds(top, state, "*.safetensors")


@pytest.mark.parametrize("shards, whole, name", [(1, True, "step_{:06d}"), (2, False, "snap-{}")])
def test_every_byte(shards, whole, name, bucket):
    """Numbers with gaps, whole snapshots in between, one that comes while mounted."""
    states = states_of(81, 6)
    numbers = [3, 6, 9, 12, 15, 18]
    out = arc.Trainer(bucket, shards, name, whole)
    out.full(3, states[0])
    for i in (1, 2):
        out.delta(numbers[i], numbers[i - 1], states[i - 1], states[i])
    out.full(12, states[3])
    out.delta(15, 12, states[3], states[4])
    with Mount(bucket) as m:
        m.wait_version(15)
        assert (m.status()["format"], m.status()["writer"]) == ("arc-v2", "Fireworks")
        out.delta(18, 15, states[4], states[5])
        m.wait_version(18)
        mounted.wait_until(lambda: m.versions() == numbers, lambda: m.status())
        for number, state in zip(numbers, states):
            holds(m.tree(number), state)
        for path in m.tree(18).glob("*.safetensors"):
            checks.assert_ranges(path, path.read_bytes(), 81)
        m.wait_well()
    report = json.loads(mounted.run("verify", "--json", "-q", bucket).stdout)
    assert report["ok"] and report["whole"] == 6, report


def test_unfinished(bucket, scratch):
    """Without the request, or with a shard less than their names say, a delta is none yet."""
    states = states_of(82, 3)
    out = arc.Trainer(bucket, 2)
    out.full(1, states[0])
    out.delta(2, 1, states[0], states[1])
    with Mount(bucket) as m:
        m.wait_version(2)
        making = arc.Trainer(scratch / "making", 2)
        making.delta(3, 2, states[1], states[2])
        last = making.folder(3) / "model-00002-of-00002.safetensors"
        body = last.read_bytes()
        last.unlink()
        making.folder(3).rename(out.folder(3))
        last = out.folder(3) / last.name
        m.control("refresh")
        assert m.version() == 2
        last.write_bytes(body)
        m.wait_version(3)
        holds(m.tree(3), states[2])
        out.delta(4, 3, states[2], states[1], request=False)
        m.wait_problem("step_000004/model-00001-of-00002.safetensors")
        out.request(4, 3)
        m.wait_version(4)
        holds(m.tree(4), states[1])
        m.wait_well()


def test_nobody_says_what_it_is(bucket):
    """Files of frames are no weights, whatever the index beside them says."""
    states = states_of(83, 3)
    for shards in (1, 2):
        shutil.rmtree(bucket)
        out = arc.Trainer(bucket, shards)
        out.full(1, states[0])
        out.delta(2, 1, states[0], states[1], request=False)
        with Mount(bucket) as m:
            m.wait_version(1)
            file = f"step_000002/{min(out.files(states[0]))}"
            m.wait_problem(file, "compressed changes and no weights")
            assert m.version() == 1
            holds(m.at, states[0])


@pytest.mark.parametrize("meta, sentence", [
    ({"compression_format": "arc_v3"}, "arc_v2"),
    ({"checksum_format": "crc"}, "alder32"),
    ({"previous_snapshot_identity": "the one before"}, "previous_snapshot_identity"),
    ({"previous_snapshot_identity": "step_000007"}, "applies to version 7"),
])
def test_bad_request(meta, sentence, bucket):
    """A request that is not understood, or names another base, is a sentence."""
    states = states_of(84, 2)
    out = arc.Trainer(bucket)
    out.full(1, states[0])
    out.delta(2, 1, states[0], states[1], **meta)
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem("step_000002/" + arc.REQUEST, sentence)
        assert m.version() == 1


def test_inspect(bucket):
    """A shard alone is explained as what it is."""
    states = states_of(88, 2)
    arc.Trainer(bucket).delta(2, 1, states[0], states[1])
    path = bucket / "step_000002" / "model.safetensors"
    assert "shard of a delta" in mounted.run("inspect", path).stdout
    told = json.loads(mounted.run("inspect", "--json", path).stdout)
    assert told["kind"] == "changes" and len(told["tensors"]) == len(SPEC)


def test_bad_file(bucket):
    """Another format's frame, a frame for another size, a bomb, a damaged one."""
    states = states_of(85, 2)
    out = arc.Trainer(bucket)
    out.full(1, states[0])
    out.delta(2, 1, states[0], states[1])
    path = out.folder(2) / "model.safetensors"
    good, sums = st.load(path.read_bytes())
    bomb = arc.change(*[st.Tensor("U8", (1 << 22,), np.full(1 << 22, v, np.uint8)) for v in (0, 1)])
    damaged = good["one.f32"].data.copy()
    damaged[len(damaged) // 2] ^= 0xff
    cases = {"arc_v3": np.frombuffer(b"ARC3_ENVELOPE\0\x80\x05", np.uint8),
             "arc_v1": np.frombuffer(b"x\x9c\x03\0\0\0\0\1", np.uint8),
             "less than": good["q.i8"].data, "more": bomb.data, "zstd frame": damaged[:-3]}
    for sentence, data in cases.items():
        bad = {**good, "one.f32": st.Tensor("U8", (len(data),), data)}
        path.write_bytes(st.dump(bad, sums))
        with Mount(bucket) as m:
            m.wait_version(1)
            m.wait_problem("step_000002/model.safetensors", sentence)
            assert m.version() == 1


@pytest.mark.parametrize("verify", ["eager", "lazy"])
def test_another_base(verify, bucket):
    """A delta for another base than its request says, and one that is applied a second time: their
    checksums are not those of the result."""
    states = states_of(86, 4)
    out = arc.Trainer(bucket)
    out.full(1, states[0])
    out.delta(2, 1, states[0], states[1])
    out.delta(3, 2, states[2], states[3])
    with Mount(bucket, args=["--verify", verify]) as m:
        m.wait_problem("step_000003/model.safetensors")
        m.wait_version(2)
        holds(m.at, states[1])
    done = mounted.run("verify", "-q", bucket, check=False)
    assert done.returncode == 1 and "checksum" in done.stdout + done.stderr, done
    shutil.rmtree(out.folder(3))
    shutil.copytree(out.folder(2), out.folder(3))
    out.request(3, 2)
    with Mount(bucket, args=["--verify", verify]) as m:
        m.wait_problem("step_000003/model.safetensors")
        m.wait_version(2)
        holds(m.at, states[1])


def test_missing_link(bucket):
    """Without the version that it applies to a delta is not shown, until a whole one comes."""
    states = states_of(87, 4)
    out = arc.Trainer(bucket, 2)
    out.full(1, states[0])
    out.delta(3, 2, states[1], states[2])
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem("step_000003/" + arc.REQUEST, "applies to version 2")
        out.full(4, states[3])
        m.wait_version(4)
        holds(m.at, states[3])
