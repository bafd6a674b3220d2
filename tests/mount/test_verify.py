"""`weightfs verify`: a run that is right, and each thing that can be wrong with it."""

import json
import os

import pytest

from lib import models, mounted, trl

pytestmark = pytest.mark.usefixtures("own_cache")


def verify(bucket, *words, code=0):
    """Runs the verb; its JSON."""
    done = mounted.run("verify", "--json", "-q", bucket, *words, check=False)
    assert done.returncode == code, done
    assert done.stderr == ""
    have = json.loads(done.stdout)
    assert have["ok"] == (code == 0) == (not have["problems"])
    return have


def damage(path, at):
    """Flips a bit and keeps the time, as a disk would."""
    times = path.stat()
    blob = bytearray(path.read_bytes())
    blob[at] ^= 4
    path.write_bytes(blob)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("generation", ["v1.0", "v1.3", "v2", "v3"])
def test_whole_run(generation, bucket):
    """Nothing to say about a good run; the first generation has hashes that are compared."""
    models.write_companions(bucket)
    models.publish(trl.Run(bucket, generation), models.states(31, 5, models.SMALL))
    have = verify(bucket)
    objects = sum(1 for p in bucket.rglob("*") if p.is_file() and "/." not in str(p))
    assert have["objects"] == objects and have["whole"] == have["versions"] == 5
    assert have["hashes"] == (5 if generation == "v1.0" else 0)
    done = mounted.run("verify", bucket)
    assert done.stdout == "" and "0 problems" in done.stderr


def test_wrong_values(bucket):
    """A flipped bit in values is well-formed: only the hash of the state tells."""
    run = models.publish(trl.Run(bucket, "v1.0"), models.states(32, 4, models.SMALL))
    damage(run.path(False, 3), -1)
    have = verify(bucket, code=1)
    assert have["whole"] == 4 and have["hashes"] < 4
    assert any("deltas/step_000003" in p["object"] and "hash" in p["error"]
               for p in have["problems"])


def test_broken_object(bucket):
    """A truncated delta is named once, and what builds on it is not whole."""
    run = models.publish(trl.Run(bucket, "v3"), models.states(33, 5, models.SMALL))
    path = run.path(False, 3)
    times = path.stat()
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    have = verify(bucket, code=1)
    assert [p["object"] for p in have["problems"]] == ["deltas/step_000003.safetensors"]
    assert have["whole"] == 2 and have["versions"] == 5


def test_nothing_there(scratch, bucket):
    """An empty place is no run; a missing one is an error."""
    assert "no anchor" in verify(bucket, code=1)["problems"][0]["error"]
    done = mounted.run("verify", scratch / "nowhere", check=False)
    assert done.returncode == 1 and "nowhere" in done.stderr
