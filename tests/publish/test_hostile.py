"""A trainer's surroundings as they should not be: what is in the way is left out, or is named."""

import itertools
import json
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest

from lib import models, mounted, publishing
from lib import safetensors_py as st


@pytest.fixture
def publisher(bucket, scratch):
    """Into a directory."""
    return publishing.Publisher(bucket, scratch / "state")


@pytest.fixture(name="states")
def some_states():
    """A few."""
    return models.states(37, 4, models.SMALL)


def weights(path, state):
    """Replaces the weights of a checkpoint of one file."""
    (path / "model.safetensors").write_bytes(st.dump(state, {"format": "pt"}))
    return path


# ---- one thing inside another -------------------------------------------------------------------

def test_run_and_state_in_the_checkpoint(scratch, states):
    """Neither is taken for companions: each version would hold all those before it."""
    path = publishing.write_checkpoint(scratch / "c", states[0])
    publisher = publishing.Publisher(path / "run", path / "state")
    publishing.Publisher(path / "other", scratch / "state").publish(path)
    seen = set()
    for state in states:
        publisher.publish(weights(path, state))
        keys = publishing.Objects(path / "run").keys()
        seen.add(frozenset(k for k in keys if not k.startswith("deltas/")))
    assert len(seen) == 1 and not [k for k in seen.pop() if k.startswith(("run", "st", "other"))]
    publishing.check(path / "run", dict(enumerate(states, 1)))


@pytest.mark.parametrize("versions", ["name", "count"])
def test_run_and_state_in_the_watched(scratch, states, versions):
    """What is published is not published again."""
    output = scratch / "output"
    for i, state in enumerate(states[:2], 1):
        publishing.write_checkpoint(output / f"checkpoint-{i}", state)
    command = [mounted.BINARY, "publish", "--watch", output, "--once", "--settle", "0.1",
               "--state-dir", output / "state", "--version-from", versions]
    for lines in (2, 0, 0):
        done = subprocess.run([*command, output / "run"], capture_output=True, text=True,
                              timeout=mounted.WAIT, check=True)
        assert (done.stdout.count("\n"), done.stderr) == (lines, "")
    publishing.check(output / "run", dict(enumerate(states[:2], 1)))
    done = subprocess.run([*command, output], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the destination are one" in done.stderr


# ---- files that are none ------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_pipes(publisher, bucket, scratch, states, name):
    """Nobody waits for a writer that never comes."""
    path = publishing.write_checkpoint(scratch / "c", states[0])
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    assert f"{name} is not a regular file" in publisher.refused(path)
    os.mkfifo(path / "pipe.json")
    (path / name).unlink()
    publisher.publish(weights(path, states[0]))
    publishing.check(bucket, {1: states[0]})


@pytest.mark.parametrize("name", ["y" * 240, "new\nline"])
def test_weight_files_of_impossible_names(publisher, bucket, scratch, states, name):
    """They are named, with what helps, before anything is uploaded."""
    path = scratch / "c"
    path.mkdir()
    (path / f"{name}.safetensors").write_bytes(st.dump(states[0]))
    (path / "other.safetensors").write_bytes(st.dump({"z": states[0]["b.weight"]}))
    text = publisher.refused(path)
    assert name[:3] in text and "rename it" in text
    assert not publishing.Objects(bucket).keys()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(bucket, scratch, states, closed):
    """No file of the run or of the state becomes what messages are written to."""
    publisher = publishing.Publisher(bucket, scratch / "state", ["--log-level", "debug"])
    for state in states[:3]:
        path = weights(publishing.write_checkpoint(scratch / "c", states[0]), state)
        subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *publisher.command(path)],
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=mounted.WAIT,
                       check=False)
    publishing.check(bucket, dict(enumerate(states[:3], 1)))
    own = next((scratch / "state").iterdir())
    assert (own / "lock").read_text().count("\n") == 1


def test_cut_while_it_is_compressed(bucket, scratch):
    """Without a copy of its own the publisher reads the trainer's files to the end: one that is
    cut meanwhile is named, and ends nothing but this version."""
    _, state = models.start(5, {f"t{i}": ("BF16", (1000, 1000)) for i in range(12)})
    path = publishing.write_checkpoint(scratch / "c", state, companions=False)
    publisher = publishing.Publisher(bucket, scratch / "state", ["--no-state",
                                                                 "--compress-anchors"])
    blob = (path / "model.safetensors").read_bytes()
    for _ in range(3):
        process = subprocess.Popen(publisher.command(path), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)

        def encoding():
            """It has begun to write the compressed file, or is through."""
            found = list((scratch / "state").rglob("packed-0"))
            return process.poll() is not None or (found and found[0].stat().st_size > 0)

        mounted.wait_until(encoding, "it does not come to compressing")
        os.truncate(path / "model.safetensors", 4096)
        out, err = process.communicate(timeout=mounted.WAIT)
        assert process.returncode == (0 if out else 1), (process.returncode, err)
        assert out or "model.safetensors was written to while it was read" in err, err
        (path / "model.safetensors").write_bytes(blob)
    publisher.publish(path)
    assert publishing.same_state(publishing.read_run(bucket)[publishing.newest(bucket)], state)
    assert not publishing.strays(bucket)


# ---- a state that somebody has edited -----------------------------------------------------------

def test_what_killed_writers_left(publisher, bucket, states):
    """Goes a day later; what is younger may be on its way, and other dotfiles are somebody's."""
    publisher.publish(states[0])
    files = {name: bucket / name for name in (
        ".weightfs.json.tmp.12.3", "anchors/.step_000002-0123abcd.safetensors.tmp.99.1",
        ".notes.tmp", ".a.tmp.1.x", "anchors/.young.tmp.7.7")}
    for name, path in files.items():
        path.write_text("x")
        if "young" not in name:
            os.utime(path, (time.time() - 100000,) * 2)
    publisher.publish(states[1], "--anchor")
    assert [n for n, p in files.items() if p.exists()] == [*files][2:]


@pytest.mark.parametrize("args", [("--encoding", "xor-zstd"), ("--encoding", "trl-v3"), ()])
def test_written_through_a_map(bucket, scratch, args):
    """Which leaves no trace in the file's times: what was published is what was hashed, or nothing
    is published."""
    _, state = models.start(6, {f"t{i}": ("BF16", (1000, 1000)) for i in range(4)})
    path = publishing.write_checkpoint(scratch / "c", state, companions=False)
    publisher = publishing.Publisher(bucket, scratch / "state", ["--no-state", *args])
    publisher.publish(path)
    done = threading.Event()

    def scribble(view):
        for i in itertools.cycle(range(4096, len(view), 4093)):
            if done.is_set():
                break
            view[i] ^= 1

    with open(path / "model.safetensors", "r+b") as f, mmap.mmap(f.fileno(), 0) as view:
        for i in range(4096, len(view), 4096):
            view[i] ^= 1
        thread = threading.Thread(target=scribble, args=(view,))
        thread.start()
        try:
            for _ in range(3):
                said = publisher.run(path, check=False)
                assert said.returncode == 0 or b"was written to while" in said.stderr, said
        finally:
            done.set()
            thread.join()
    assert mounted.run("verify", "-q", bucket, check=False).stdout == ""


@pytest.mark.parametrize("change", [
    {"companions": 5}, {"patches": [1, None]}, {"patches": ["../../x"]}, {"orphans": [7]},
    {"orphans": ["../../../state"]}, {"patches": {}, "orphans": "x", "companions": []}])
def test_state_of_other_types(publisher, bucket, states, change):
    """What makes no sense in it is as good as not there."""
    publisher.publish(states[0])
    publisher.publish(states[1])
    path = next(publisher.state_dir.iterdir()) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    publisher.publish(states[2])
    publishing.check(bucket, dict(enumerate(states[:3], 1)))


def test_last_number(publisher, states):
    """After the largest number there is none, and the sentence says what helps."""
    publisher.publish(states[0], "--version", 2**63 - 1)
    text = publisher.refused(states[1])
    assert "no number is above it" in text and "--new-run" in text


def test_damaged_pointer_has_a_remedy(publisher, bucket, states):
    """Which works."""
    publisher.publish(states[0])
    (bucket / publishing.POINTER).write_text("{")
    assert "remove it and begin a new run" in publisher.refused(states[1])
    (bucket / publishing.POINTER).unlink()
    assert publisher.publish(states[1], "--new-run")["version"] == 1
    publishing.check(bucket, {1: states[1]})


# ---- nothing is made that was not asked for -----------------------------------------------------

def test_places_that_are_not_there(publisher, bucket, scratch, states):
    """A slip of the hand leaves no directory, and no lease on nothing."""
    for words in (["prune"], ["compact"], ["lease", "--version", 1, "--for", 9],
                  ["lease", "--release"]):
        done = mounted.run(*words, scratch / "typo", *(["x"] if words[0] == "lease" else []),
                           check=False)
        assert done.returncode == 1 and "does not exist" in done.stderr, done.stderr
    bucket.mkdir(exist_ok=True)
    done = mounted.run("lease", "--version", 1, "--for", 9, bucket, "x", check=False)
    assert done.returncode == 1 and "holds no run" in done.stderr
    assert not list(bucket.iterdir()) and not (scratch / "typo").exists()
    shutil.rmtree(bucket)
    publisher.publish(states[0], "--dry-run")
    assert not bucket.exists()


def test_compacted_twice_at_once(publisher, bucket, states):
    """Who comes second takes away what it has uploaded."""
    for state in states:
        publisher.publish(state)
    running = [subprocess.Popen([mounted.BINARY, "compact", "-q", bucket]) for _ in range(4)]
    assert [process.wait(timeout=mounted.WAIT) for process in running] == [0] * 4
    assert len(publishing.pointer(bucket)["spans"]) == 1
    assert not publishing.strays(bucket)
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_killed_again_and_again(publisher, bucket, scratch):
    """Several attempts that came to nothing, of different kinds, before one that does."""
    _, state = models.start(6, {"a": ("BF16", (700, 1000)), "b": ("F32", (300, 99))})
    publisher.publish(state)
    path = publishing.write_checkpoint(scratch / "c", state)
    for args in (["--anchor"], ["--encoding", "wfp1x"], ["--compress-anchors", "--anchor"]):
        for wait in (0.01, 0.03, 0.05):
            before = publishing.newest(bucket)
            process = subprocess.Popen(publisher.command(path, *args), stderr=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL)
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert publishing.newest(bucket) in (before, before + 1)
    report = publisher.publish(path)
    assert not publishing.strays(bucket)
    assert publishing.same_state(publishing.read_run(bucket)[report["version"]], state)


# ---- encodings that change ----------------------------------------------------------------------

@pytest.mark.parametrize("first, second, anchor", [
    ("wfp1x", "wfp1", False), ("trl-v3", "wfp1", False), ("wfp1x", "trl-v3", True),
    ("wfp1", "trl-v1", True), ("trl-v1", "trl-v3", True), ("xor-zstd", "wfp1", False),
    ("wfp1x", "xor-zstd", True), ("trl-v3", "xor-zstd", True), ("xor-zstd", "trl-v3", True)])
def test_another_encoding(publisher, states, first, second, anchor):
    """A delta is for those who have what it is based on; others get an anchor."""
    for state in states[:2]:
        publisher.publish(state, "--encoding", first)
    assert publisher.publish(states[2], "--encoding", second)["anchor"] is anchor
    assert publisher.publish(states[3], "--encoding", second)["anchor"] is (
        not anchor and second == "wfp1x")


def test_steps_without_change_between(publisher, states):
    """They are of no encoding: what counts is the version before them."""
    for encoding, anchor in (("wfp1", True), ("trl-v3", True), ("trl-v3", False)):
        assert publisher.publish(states[0], "--encoding", encoding)["anchor"] is anchor
    assert not publisher.publish(states[1], "--encoding", "trl-v3")["anchor"]
    assert "does not go with" in publisher.refused(states[2], "--encoding", "trl-v3",
                                                   "--compress-anchors")


def test_compact_around_others(bucket, scratch):
    """What cannot be merged is no reason not to merge the rest."""
    states = models.states(38, 9, models.SMALL)
    path = scratch / "base"
    publisher = publishing.Publisher(bucket, scratch / "state", ["--against", path])
    for i, state in enumerate(states, 1):
        publisher.publish(state, "--encoding", "wfp1x" if i == 5 else "wfp1")
        publishing.write_checkpoint(path, state)
    mounted.run("compact", "-q", bucket)
    assert [(s["base"], s["version"]) for s in publishing.pointer(bucket)["spans"]] == [
        (1, 4), (5, 9)]
    publishing.check(bucket, dict(enumerate(states, 1)))
    with mounted.Mount(bucket, keep=1) as mount:
        mount.wait_version(9)
        blob = (mount.at / "model.safetensors").read_bytes()
        assert publishing.same_state(st.load(blob)[0], states[8])
