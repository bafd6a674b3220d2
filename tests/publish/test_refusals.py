"""What `weightfs publish` will not do, and the sentence that says why and what helps."""

import contextlib
import json
import os
import subprocess
import time

import pytest

from lib import models, mounted, publishing, trl
from lib import safetensors_py as st


@pytest.fixture
def publisher(bucket, scratch):
    """Into a directory."""
    return publishing.Publisher(bucket, scratch / "state")


@pytest.fixture(name="states")
def some_states():
    """A few."""
    return models.states(31, 5, models.SMALL)


# ---- somebody else's run ------------------------------------------------------------------------

def test_another_publisher(publisher, bucket, scratch, states):
    """The second is told whose the run is; --take-over goes on with an anchor, and then the first
    is the one that is refused."""
    other = publishing.Publisher(bucket, scratch / "other")
    publisher.publish(states[0])
    text = other.refused(states[1])
    host = os.uname().nodename
    assert f"on {host} published version 1 at 20" in text
    assert "--take-over" in text and "--new-run" in text
    publishing.check(bucket, {1: states[0]})
    report = other.publish(states[1], "--take-over")
    assert (report["version"], report["kind"]) == (2, "anchor")
    assert other.publish(states[2])["kind"] == "delta"
    assert "belongs to another publisher" in publisher.refused(states[3])
    # With --against, even taking over needs no anchor.
    path = publishing.write_checkpoint(scratch / "c", states[2])
    assert publisher.publish(states[3], "--take-over", "--against", path)["kind"] == "delta"
    publishing.check(bucket, dict(enumerate(states[:4], 1)))


def test_new_run(publisher, bucket, scratch, states):
    """A new lineage counts from 1."""
    publisher.publish(states[0])
    publisher.publish(states[1])
    before = publishing.pointer(bucket)["lineage"]
    assert publisher.publish(states[2], "--new-run")["version"] == 1
    assert publisher.publish(states[3])["version"] == 2
    assert publishing.pointer(bucket)["lineage"] != before
    publishing.check(bucket, {1: states[2], 2: states[3]})
    other = publishing.Publisher(bucket, scratch / "other")
    assert other.publish(states[4], "--new-run")["version"] == 1
    assert publisher.refused(states[4])
    assert publisher.refused(states[4], "--take-over", "--new-run", code=2)


def test_a_lost_state(publisher, bucket, states):
    """Our own state says something else than the run: an anchor goes on, and it is said."""
    publisher.publish(states[0])
    own = next(publisher.state_dir.iterdir())
    old = (own / "state.json").read_text()
    publisher.publish(states[1])
    (own / "state.json").write_text(old)
    report = publisher.publish(states[2])
    assert report["kind"] == "anchor" and "local state at 1" in report["note"]
    publishing.check(bucket, dict(enumerate(states[:3], 1)))


def test_a_damaged_copy(publisher, bucket, states):
    """A delta is never published on bytes that are not those of the version before."""
    publisher.publish(states[0])
    publisher.publish(states[1])
    with open(publisher.slot() / "model.safetensors", "r+b") as f:
        f.seek(-3, os.SEEK_END)
        f.write(b"\xff")
    report = publisher.publish(states[2])
    assert report["kind"] == "anchor" and "is damaged" in report["note"], report
    (publisher.slot() / "model.safetensors").unlink()
    report = publisher.publish(states[3])
    assert report["kind"] == "anchor" and "cannot be used" in report["note"], report
    publishing.check(bucket, dict(enumerate(states[:4], 1)))


def test_damaged_patches(publisher, bucket):
    """The last state is a copy and patches on it; they are trusted as little."""
    states = models.states(32, 6, models.SMALL, density=0.003)
    for state in states[:3]:
        publisher.publish(state)
    patches = sorted(next(publisher.state_dir.iterdir()).glob("patches/*"))
    assert len(patches) == 2
    blob = bytearray(patches[0].read_bytes())
    blob[-300] ^= 1
    patches[0].write_bytes(blob)
    report = publisher.publish(states[3])
    assert report["kind"] == "anchor" and "is damaged" in report["note"], report
    assert publisher.publish(states[4])["kind"] == "delta"
    for patch in next(publisher.state_dir.iterdir()).glob("patches/*"):
        patch.write_bytes(patch.read_bytes()[:100])
    report = publisher.publish(states[5])
    assert report["kind"] == "anchor" and "cannot be used" in report["note"], report
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_a_run_of_trl(publisher, bucket, states):
    """What another program wrote is not hidden without a word."""
    trl.Run(bucket, "v3").sync(states[0])
    text = publisher.refused(states[1])
    assert "another program wrote (anchors/step_000001.safetensors)" in text
    assert not (bucket / publishing.POINTER).exists()
    publisher.publish(states[1], "--new-run")
    publishing.check(bucket, {1: states[1]})


def test_a_vanished_run(publisher, bucket, states):
    """An empty place where there was a run: perhaps it is not mounted."""
    publisher.publish(states[0])
    (bucket / publishing.POINTER).unlink()
    assert "is it mounted?" in publisher.refused(states[1])
    publisher.publish(states[1], "--new-run")
    publishing.check(bucket, {1: states[1]})


def test_two_at_once(publisher, scratch, states):
    """On one machine the state directory's lock says who is at work."""
    path = publishing.write_checkpoint(scratch / "c", states[0])
    reader, writer = os.pipe()
    first = subprocess.Popen(publisher.command("-"), stdin=reader, stdout=subprocess.PIPE)
    try:
        mounted.wait_until(lambda: list(publisher.state_dir.glob("*/slot-*/*")), "nothing began")
        assert f"process {first.pid} on " in publisher.refused(path)
        with open(writer, "wb") as out:
            out.write((path / "model.safetensors").read_bytes())
        assert first.wait(timeout=mounted.WAIT) == 0
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            first.kill()
        first.stdout.close()
        first.wait()


def test_damaged_pointer(publisher, bucket, states):
    """Not guessed at."""
    publisher.publish(states[0])
    good = (bucket / publishing.POINTER).read_text()
    for bad in (good[:-10], good.replace('"version": 1', '"version": 7', 1), "[]"):
        (bucket / publishing.POINTER).write_text(bad)
        assert "weightfs.json" in publisher.refused(states[1])
    (bucket / publishing.POINTER).write_text(good)
    publisher.publish(states[1])


# ---- checkpoints that are none ------------------------------------------------------------------

def test_bad_checkpoints(publisher, bucket, scratch, states):
    """Each is refused with the file's name, and nothing is written."""
    path = scratch / "c"
    assert "does not exist" in publisher.refused(path)
    path.mkdir()
    assert "is no checkpoint" in publisher.refused(path)
    (path / "model.safetensors").write_bytes(b"short")
    assert "model.safetensors: " in publisher.refused(path)
    whole = st.dump(states[0], {"format": "pt"})
    (path / "model.safetensors").write_bytes(whole[:-1])
    assert "model.safetensors: " in publisher.refused(path)
    (path / "model.safetensors").write_bytes(st.dump({}))
    assert "has no tensors" in publisher.refused(path)
    assert "standard input: " in publisher.refused("-", input=whole[:1000])
    assert publishing.Objects(bucket).keys() == set()
    (bucket / "model.safetensors").write_bytes(whole)
    assert "one directory" in publisher.refused(bucket)


def test_bad_indexes(publisher, scratch, states):
    """An index and files that disagree are a checkpoint that is being written."""
    path = publishing.write_checkpoint(scratch / "c", states[0], 2)
    index = path / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    moved = {**good["weight_map"], "a.weight": "model-00002-of-00002.safetensors"}
    missing = {k: v for k, v in good["weight_map"].items() if k != "a.weight"}
    for weights, word in ((moved, '"a.weight" is in model-00002'), (missing, "names 3 tensors"),
                          ({**good["weight_map"], "a.weight": "../x.safetensors"}, "no name of"),
                          ({}, "no weight_map")):
        index.write_text(json.dumps({"weight_map": weights}))
        assert word in publisher.refused(path)
    index.write_text("{")
    assert "not valid JSON" in publisher.refused(path)
    index.write_text(json.dumps(good))
    (path / "model.safetensors").write_bytes(st.dump(states[0]))
    assert "has both model.safetensors and an index" in publisher.refused(path)
    (path / "model.safetensors").unlink()
    (path / "model-00001-of-00002.safetensors").rename(path / "gone")
    assert "model-00001-of-00002.safetensors cannot be opened" in publisher.refused(path)
    index.unlink()
    (path / "gone").rename(path / "model-00001-of-00002.safetensors")
    (path / "other.safetensors").write_bytes(
        (path / "model-00001-of-00002.safetensors").read_bytes())
    assert "is in both" in publisher.refused(path)


# ---- places that cannot be written to -----------------------------------------------------------

def test_destinations(scratch, states):
    """What is no place to write to."""
    (scratch / "file").write_text("x")
    for dest, word in ((scratch / "file", "not a directory"), ("https://host/x", "can be written"),
                       ("gs://bucket/x", "can be written"), ("hf://org/model", "only buckets"),
                       ("s3:/bucket/run", "is written s3://"), ("", "has no name"),
                       ("hf:buckets/a/b", "is written hf://")):
        publisher = publishing.Publisher(dest, scratch / "state")
        assert word in publisher.refused(states[0], cwd=scratch), dest
    assert not (scratch / "s3:").exists()
    publisher = publishing.Publisher("./s3:/run", scratch / "state")
    publisher.publish(states[0], cwd=scratch)
    publishing.check(scratch / "s3:" / "run", {1: states[0]})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable(publisher, bucket, states):
    """Permission denied is said, and forgotten when it is gone."""
    bucket.chmod(0o555)
    assert "Permission denied" in publisher.refused(states[0])
    bucket.chmod(0o755)
    publisher.publish(states[0])
    publishing.check(bucket, {1: states[0]})


def test_usage(publisher, scratch, states):
    """The command line."""
    path = publishing.write_checkpoint(scratch / "c", states[0])
    for args, word in ((["--encoding", "zip"], "there are wfp1"), (["--version", "0"], "--version"),
                       (["--anchor-every", "x"], "--anchor-every"), (["--jobs", "0"], "--jobs"),
                       (["--keep", "3"], "no option --keep"), (["x"], "unexpected argument")):
        assert word in publisher.refused(path, *args, code=2), args


# ---- clocks -------------------------------------------------------------------------------------

def test_clock_set_back(publisher, bucket, states):
    """All that was written lies in the future: numbers decide, times never."""
    publisher.publish(states[0])
    publisher.publish(states[1])
    later = time.time() + 10 * 365 * 86400
    text = (bucket / publishing.POINTER).read_text()
    (bucket / publishing.POINTER).write_text(text.replace('"2026-', '"2036-').replace(
        f'"{time.gmtime().tm_year}-', '"2036-'))
    for top in (bucket, publisher.state_dir):
        for path in top.rglob("*"):
            os.utime(path, (later, later))
    assert publisher.publish(states[2])["kind"] == "delta"
    publishing.check(bucket, dict(enumerate(states[:3], 1)))
    with mounted.Mount(bucket) as mount:
        mount.wait_version(3)
        publisher.publish(states[3])
        mount.wait_version(4)
        assert mount.status()["problems"] == []
