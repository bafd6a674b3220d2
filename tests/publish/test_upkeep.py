"""The upkeep of a published run: compact, prune, lease; with mounts that look on."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from lib import checks, driven, models, mounted, published, trl
from lib.published import age
from lib.strict_s3 import StrictS3


def start(bucket, count, anchors=(), seed=3, spec=models.MINI, **kwargs):
    """A run of `count` versions."""
    return published.Published(bucket, **kwargs).publish_all(
        models.states(seed, count, spec), anchors)


def pointer(bucket):
    """weightfs.json, parsed."""
    return json.loads((bucket / published.POINTER).read_bytes())


def versions(bucket):
    """[(version, kind)] of the pointer."""
    return [(s["version"], s["kind"]) for s in pointer(bucket)["steps"]]


def data(bucket):
    """Keys of all data objects."""
    return sorted(str(p.relative_to(bucket)) for folder in ("anchors", "deltas", "compact", "steps")
                  for p in (bucket / folder).rglob("*") if p.is_file())


def named(bucket):
    """Keys that the pointer names."""
    now = pointer(bucket)
    return sorted(o["key"] for e in now["steps"] + now["spans"] for o in e["objects"])


def assert_whole(bucket, run, newest):
    """A fresh mount shows exactly the newest version, without complaints about the run."""
    with mounted.Mount(bucket, keep=1) as mount:
        mount.wait_version(newest)
        checks.assert_tree(mount.at, run.weights(newest), f"version {newest}")
        assert not mount.status()["problems"]


# ---- compact ----


def test_compact_all(bucket):
    """One object for all deltas after the newest anchor; they are not needed any more."""
    run = start(bucket, 9, anchors=(3,), spec=models.SMALL)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(9)
        assert "would be merged" in mounted.run("compact", "--dry-run", bucket).stdout
        assert not pointer(bucket)["spans"]
        mounted.run("compact", "-q", bucket)
        assert [(s["base"], s["version"]) for s in pointer(bucket)["spans"]] == [(3, 9)]
        before = mount.status()["blocks"]
        run.spans = pointer(bucket)["spans"]
        run.publish(models.states(3, 10, models.SMALL)[9])
        mount.wait_version(10)
        checks.assert_tree(mount.at, run.weights(10), "followed")
        assert mount.status()["blocks"] == before and mount.status()["spans"][0]["state"] in (
            "unread", "ok")
    for version in range(4, 10):
        run.path(version).unlink()
    assert_whole(bucket, run, 10)
    assert mounted.run("compact", bucket, "--every", "99").stdout == "nothing to merge\n"


def test_compact_in_groups(bucket):
    """Spans of some versions each, and one by hand; a second run adds only what is new."""
    run = start(bucket, 12)
    mounted.run("compact", "-q", "--every", "4", bucket)
    spans = [(s["base"], s["version"]) for s in pointer(bucket)["spans"]]
    assert spans == [(1, 5), (5, 9)]
    mounted.run("compact", "-q", "--from", "9", "--to", "12", bucket)
    mounted.run("compact", "-q", "--every", "4", bucket)
    assert len(pointer(bucket)["spans"]) == 3
    for version in range(2, 13):
        run.path(version).unlink()
    assert_whole(bucket, run, 12)
    done = mounted.run("compact", "--from", "2", "--to", "40", bucket, check=False)
    assert done.returncode == 1 and "version 40 is not in the run" in done.stderr


def test_index_json(bucket):
    """The list for plain web servers follows, companions stay in it; no mount shows it."""
    run = start(bucket, 9, anchors=(4, 7))
    (bucket / "index.json").write_text(json.dumps({"objects": [
        {"key": "config.json", "size": 2}, {"key": "deltas/gone", "size": 1}]}))
    (bucket / "config.json").write_text("{}")
    for verb in ("compact", "prune"):
        mounted.run(verb, "-q", bucket)
        have = json.loads((bucket / "index.json").read_bytes())["objects"]
        sizes = {o["key"]: o["size"] for o in have}
        assert sorted(sizes) == sorted([*named(bucket), "config.json", published.POINTER])
        assert sizes[published.POINTER] == (bucket / published.POINTER).stat().st_size
    with mounted.Mount(bucket) as mount:
        mount.wait_version(9)
        checks.assert_tree(mount.at, {**run.weights(9), "config.json": b"{}"})


def test_compact_refuses_damage(bucket):
    """What is not what the pointer says is not merged."""
    run = start(bucket, 4)
    path = run.path(3)
    body = bytearray(path.read_bytes())
    body[-9] ^= 1
    path.write_bytes(body)
    done = mounted.run("compact", "-q", bucket, check=False)
    assert done.returncode == 1 and path.name in done.stderr
    assert not pointer(bucket)["spans"] and not (bucket / "compact").exists()


def test_compact_merges_what_cancels(bucket):
    """A tensor that comes back to what it was is not in the merged delta."""
    a, b = models.states(3, 2, models.MINI)
    back = {**b, "a.weight": a["a.weight"]}
    run = published.Published(bucket).publish_all([a, b, back])
    mounted.run("compact", "-q", bucket)
    key = pointer(bucket)["spans"][0]["objects"][0]["key"]
    merged = json.loads(mounted.run("inspect", "--json", bucket / key).stdout)
    assert "a.weight" not in {t["name"] for t in merged["tensors"]}
    run.path(2).unlink()
    assert_whole(bucket, run, 3)


# ---- prune ----


def test_prune_keeps_two_anchors(bucket):
    """All below the older of the newest two anchors goes; what is left is whole."""
    run = start(bucket, 12, anchors=(4, 8))
    run.span(1, 4)
    run.span(4, 8)
    orphan = bucket / "deltas/step_000013-deadbeef.safetensors"
    fresh = bucket / "deltas/step_000014-deadbeef.safetensors"
    for path in (orphan, fresh):
        path.write_bytes(b"half of something")
    age(orphan, 100000)
    before = data(bucket)
    dry = mounted.run("prune", "--dry-run", bucket).stdout.splitlines()
    assert data(bucket) == before and len(dry) == 6
    mounted.run("prune", "-q", bucket)
    assert versions(bucket)[0] == (4, "anchor") and versions(bucket)[1] == (5, "delta")
    assert data(bucket) == sorted([*named(bucket), str(fresh.relative_to(bucket))])
    assert [(s["base"], s["version"]) for s in pointer(bucket)["spans"]] == [(4, 8)]
    assert_whole(bucket, run, 12)
    mounted.run("prune", "-q", bucket)
    assert versions(bucket)[0] == (4, "anchor")


def test_prune_with_a_mount(bucket):
    """What is open, and what is kept, reads on; new versions follow."""
    states = models.states(3, 13, models.SMALL)
    run = published.Published(bucket).publish_all(states[:12], (4, 8))
    with mounted.Mount(bucket) as mount:
        mount.wait_version(12)
        mounted.wait_until(lambda: len(mount.versions()) == 12, "older versions")
        inode = os.stat(mount.at / "model.safetensors").st_ino
        mounted.run("prune", "-q", bucket)
        mounted.wait_until(lambda: mount.status()["pointer"]["oldest"] == 4, "the prune")
        checks.assert_tree(mount.at, run.weights(12), "after the prune")
        assert os.stat(mount.at / "model.safetensors").st_ino == inode
        run.steps = [s for s in run.steps if s["version"] > 4 or s == run.entry(4, "anchor")]
        run.publish(states[12])
        mount.wait_version(13)
        for number in mount.versions():
            checks.assert_tree(mount.tree(number), run.weights(number), f"version {number}")
        assert mount.status()["lineage"] == run.lineage


@pytest.mark.parametrize("anchors", [(), (3,)])
def test_prune_needs_two_anchors(anchors, bucket):
    """With fewer nothing goes, nor when one of the two is not whole."""
    run = start(bucket, 5, anchors)
    if anchors:
        run.path(3, "anchor").unlink()
    before = data(bucket)
    mounted.run("prune", "-q", bucket)
    assert data(bucket) == before and versions(bucket)[0] == (1, "anchor")


def test_prune_keep_versions_and_leases(bucket):
    """More versions, and those that somebody needs, until the lease is over."""
    start(bucket, 12, anchors=(3, 6, 9, 11))
    mounted.run("lease", bucket, "eval", "--version", 7, "--for", 600)
    mounted.run("prune", "-q", bucket)
    assert versions(bucket)[0] == (6, "anchor")
    mounted.run("lease", bucket, "eval", "--release")
    assert not (bucket / "leases/eval.json").exists()
    mounted.run("prune", "-q", "--keep-versions", 6, bucket)
    assert versions(bucket)[0] == (6, "anchor")
    (bucket / "leases").mkdir(exist_ok=True)
    (bucket / "leases/old.json").write_text('{"version": 6, "until": "2020-01-01T00:00:00Z"}')
    mounted.run("prune", "-q", bucket)
    assert versions(bucket)[0] == (9, "anchor")
    assert not (bucket / "leases/old.json").exists()
    done = mounted.run("lease", bucket, "late", "--version", 2, "--for", 5, check=False)
    assert done.returncode == 1 and "version 2 is not in" in done.stderr
    assert not (bucket / "leases/late.json").exists()
    (bucket / "leases/bad.json").write_text("{}")
    done = mounted.run("prune", bucket, check=False)
    assert done.returncode == 1 and "leases/bad.json" in done.stderr


def test_prune_interrupted(bucket):
    """Killed at any moment it leaves a run that is whole, and the next one finishes."""
    kills = int(os.environ.get("SOAK_KILLS", "6"))
    rng = random.Random(4)
    run = start(bucket, 40, anchors=range(4, 40, 4))
    for _ in range(3):
        run.publish(models.states(9, 1, models.MINI)[0], anchor=True)
    for _ in range(kills):
        one = subprocess.Popen([mounted.BINARY, "prune", "-q", bucket])
        time.sleep(rng.random() * 0.02)
        one.send_signal(signal.SIGKILL)
        one.wait()
        now = pointer(bucket)
        assert now["newest"] == 43
        assert all((bucket / key).exists() for key in named(bucket))
    assert_whole(bucket, run, 43)
    for path in data(bucket):
        age(bucket / path, 100000)
    mounted.run("prune", "-q", bucket)
    assert data(bucket) == named(bucket) and versions(bucket)[0] == (42, "anchor")


def test_prune_trl_run(bucket):
    """A run without weightfs.json: by the same rule, and never anything else."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=4)
    states = models.states(5, 14, models.SMALL)
    models.publish(run, states)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(14)
        mounted.run("prune", "-q", bucket)
        kept = data(bucket)
        assert kept[0] == "anchors/step_000008.safetensors"
        assert {int(k[-18:-12]) for k in kept} == set(range(8, 15))
        checks.publish(mount, run, models.states(5, 15, models.SMALL)[14:])
    with mounted.Mount(bucket) as mount:
        mount.wait_version(15)
        assert not mount.status()["problems"]
    mounted.run("prune", "-q", "--keep-versions", 20, bucket)
    assert [k for k in data(bucket) if k in kept] == kept


def test_over_s3(bucket):
    """The same in a bucket: conditional writes, and deletes."""
    run = start(bucket, 9, anchors=(3, 6))
    with StrictS3() as server:
        for path in bucket.rglob("*"):
            if path.is_file():
                server.put(f"run/{path.relative_to(bucket)}", path.read_bytes())
        args = ("s3://bucket/run", "--endpoint-url", server.endpoint)
        env = driven.environment(driven.keys())
        mounted.run("compact", "-q", *args, env=env)
        mounted.run("lease", *args, "x", "--version", 4, "--for", 60, env=env)
        mounted.run("prune", "-q", *args, env=env)
        now = json.loads(server.objects["run/weightfs.json"].data)
        assert [s["version"] for s in now["steps"]] == [3, 4, 5, 6, 6, 7, 8, 9]
        assert [(s["base"], s["version"]) for s in now["spans"]] == [(6, 9)]
        keys = {o["key"] for e in now["steps"] + now["spans"] for o in e["objects"]}
        have = {k[len("run/"):] for k in server.objects} - {"weightfs.json", "leases/x.json"}
        assert have == keys
    assert run.newest() == 9
