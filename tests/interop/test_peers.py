"""The formats of others as their own packages write them: mounts show every byte of every version.

The packages are in build/venv/peers (tools/peers.txt); where one cannot be had, its test is
skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib import arc, hfdir, mounted, models, randomrun, skyrl
from lib import safetensors_py as st
from lib.mounted import Mount

HERE = Path(__file__).resolve().parent
PEERS = mounted.TOP / "build" / "venv" / "peers"
SPEC = {**models.SMALL, "f.f32": ("F32", (3, 22001)), "h.f16": ("F16", (17, 5)),
        "q.f8": ("F8_E4M3", (64, 33)), "i.i8": ("I8", (1000,)), "none": ("BF16", (0, 4))}


def peer(package, script, *args):
    """Runs a peer's side of a test."""
    if not (PEERS / package).is_dir():
        pytest.skip(f"{package} is not installed in {PEERS}")
    env = {**os.environ, "PYTHONPATH": str(PEERS)}
    done = subprocess.run([sys.executable, str(HERE / script), *map(str, args)], env=env,
                          capture_output=True, text=True, timeout=mounted.WAIT * 4, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def states_of(seed, count, scratch):
    """States whose tensors change by any bits, also not at all; and their files."""
    rng, state = models.start(seed, SPEC)
    states = [state]
    for i in range(1, count):
        states.append(dict(states[-1]) if i == 3 else randomrun.moved(rng, states[-1]))
    folder = scratch / "states"
    folder.mkdir()
    for i, one in enumerate(states):
        (folder / f"{i}.safetensors").write_bytes(st.dump(one, {"format": "pt"}))
    return states, folder


def holds(top, state):
    """The weight files below `top` have this state, to the byte."""
    have = {}
    for path in top.glob("*.safetensors"):
        have.update(st.load_file(path)[0])
    assert {n: (t.dtype, tuple(t.shape), t.data.tobytes()) for n, t in have.items()} == \
        {n: (t.dtype, tuple(t.shape), t.data.tobytes()) for n, t in state.items()}


def test_modelexpress(bucket, scratch):
    """The trainer of ModelExpress: XOR deltas on --base, a step without a change, whole checkpoints
    in between; `verify` compares its checksums."""
    plan = ["delta", "delta", "delta", "full", "delta", "full", "delta", "delta"]
    states, folder = states_of(71, len(plan) + 1, scratch)
    peer("modelexpress_rl", "peer_modelexpress.py", folder, bucket, json.dumps(plan))
    base = models.write_base(scratch / "base", states[0])
    with Mount(bucket, base=base, keep=64) as m:
        m.wait_version(len(plan))
        mounted.wait_until(lambda: [v for v in m.versions() if v] == list(range(1, 9)),
                           lambda: m.status())
        for version in range(1, len(plan) + 1):
            holds(m.tree(version), states[version])
        assert m.status()["problems"] == []
    report = json.loads(mounted.run("verify", "--json", "-q", "--base", base, bucket).stdout)
    assert report["ok"], report


@pytest.mark.parametrize("shards", [1, 2])
def test_fireworks(shards, bucket, scratch):
    """Fireworks' package: arc_v2 of whole directories mounts; arc_v1 and arc_v3 say what to do."""
    states, _ = states_of(72, 4, scratch)
    out = arc.Trainer(bucket, shards)
    whole = arc.Trainer(scratch / "whole", shards)
    for version, state in enumerate(states, 1):
        whole.full(version, state)
    out.full(1, states[0])
    making, work = arc.Trainer(scratch / "making", shards), []
    for version in (2, 3, 4):
        work += ["arc_v2", whole.folder(version - 1), whole.folder(version), out.folder(version)]
    for version, kind in ((5, "arc_v1"), (6, "arc_v3")):
        work += [kind, whole.folder(3), whole.folder(4), making.folder(version)]
    peer("fireworks_delta_compression", "peer_fireworks.py", *work)
    for version in (2, 3, 4):
        out.request(version, version - 1)
    with Mount(bucket, keep=64) as m:
        m.wait_version(4)
        mounted.wait_until(lambda: m.versions() == [1, 2, 3, 4], lambda: m.status())
        for version, state in enumerate(states, 1):
            holds(m.tree(version), state)
        assert m.status()["problems"] == []
        for version, kind in ((5, "arc_v1"), (6, "arc_v3")):
            making.request(version, 4)  # which says arc_v2
            making.folder(version).rename(out.folder(version))
            problem = mounted.wait_until(lambda: m.status()["problems"], lambda: m.status())
            assert kind in problem[0]["error"], problem
            assert m.version() == 4
            out.folder(version).rename(making.folder(version))
            m.control("refresh")
            mounted.wait_until(lambda: not m.status()["problems"], lambda: m.status())
    report = json.loads(mounted.run("verify", "--json", "-q", bucket).stdout)
    assert report["ok"], report


def test_skyrl(bucket, scratch):
    """SkyRL's publisher: deltas in several files on --base, a step without a change; `verify`
    compares its checksums.  And its engine takes what tests/lib/skyrl.py writes."""
    states, folder = states_of(73, 6, scratch)
    for state in states[1:]:
        state["c.scale"] = states[0]["c.scale"]
    base = models.write_base(scratch / "base", states[0])
    ours = skyrl.Trainer(scratch / "ours", states, ranks=2, most=20000)
    for version in range(1, 6):
        ours.sums = "older" if version == 2 else "xxh3-128"
        ours.delta(version)
    peer("skyrl", "peer_skyrl.py", base, 5, folder, bucket, ours.root, scratch / "local")
    assert hfdir.whole(scratch / "local" / "weights") == \
        {n: t.data.tobytes() for n, t in states[5].items()}

    assert len(list((bucket / "delta-00000001").glob("delta-rank*"))) > 1
    with Mount(bucket, base=base, keep=64) as m:
        m.wait_version(5)
        mounted.wait_until(lambda: m.versions() == [0, 1, 2, 3, 4, 5], lambda: m.status())
        for version, state in enumerate(states):
            holds(m.tree(version), state)
        assert m.status()["problems"] == []
    report = json.loads(mounted.run("verify", "--json", "-q", "--base", base, bucket).stdout)
    assert report["ok"] and report["hashes"] == 4, report
