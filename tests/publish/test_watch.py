"""`weightfs publish --watch`: checkpoints are published when their trainer has finished them,
oldest first, by a watch that starts again where it was."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from lib import models, mounted, publishing
from lib import safetensors_py as st

INDEX = "model.safetensors.index.json"


@pytest.fixture
def output(scratch):
    """The trainer's directory."""
    path = scratch / "output"
    path.mkdir()
    return path


def command(output, bucket, scratch, *args):
    """The whole command line."""
    return [str(word) for word in (mounted.BINARY, "publish", "--watch", output, "--json",
                                   "--state-dir", scratch / "state", "--settle", "0.3", *args,
                                   bucket)]


class Watch:
    """A watch that runs; its reports and what it said."""

    def __init__(self, *where):
        self.process = subprocess.Popen(command(*where), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        self.out = self.err = ""
        for pipe in (self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)

    def read(self):
        """Takes what there is; the reports so far."""
        self.out += (self.process.stdout.read() or b"").decode()
        self.err += (self.process.stderr.read() or b"").decode()
        return [json.loads(line) for line in self.out.splitlines(keepends=True)
                if line.endswith("\n")]

    def versions(self, count):
        """Waits for so many reports; their versions."""
        mounted.wait_until(lambda: len(self.read()) >= count, lambda: self.out + self.err)
        return [r["version"] for r in self.read()]

    def said(self, text):
        """Waits until it has said that."""
        mounted.wait_until(lambda: self.read() is not None and text in self.err,
                           lambda: f"{text!r} is not in {self.err!r}")


@contextlib.contextmanager
def watching(*where):
    """A watch for the time of a block, ended as a supervisor does it."""
    one = Watch(*where)
    try:
        yield one
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(timeout=mounted.WAIT) == 0, one.err
    finally:
        one.process.kill()
        one.process.wait()
        one.read()
        one.process.stdout.close()
        one.process.stderr.close()
        assert not any(s in one.err for s in mounted.SANITIZER), one.err


def once(output, bucket, scratch, *args, code=0):
    """Publishes what is there: (versions, stderr)."""
    done = subprocess.run(command(output, bucket, scratch, "--once", *args), capture_output=True,
                          text=True, timeout=mounted.WAIT * 2, check=False)
    assert done.returncode == code, done.stderr
    assert not any(s in done.stderr for s in mounted.SANITIZER), done.stderr
    return [json.loads(line)["version"] for line in done.stdout.splitlines()], done.stderr


def write_slowly(path, state, shards, between):
    """As a trainer does: config first, the index last; between() before each piece of a file but
    the first."""
    whole = path.parent.parent / f"whole-{path.name}"
    publishing.write_checkpoint(whole, state, shards)
    path.mkdir(parents=True)
    files = sorted((p for p in whole.iterdir() if p.is_file()),
                   key=lambda p: (p.name == INDEX, p.suffix == ".safetensors", p.name))
    for file in files:
        blob = file.read_bytes()
        with open(path / file.name, "wb", buffering=0) as f:
            for at in range(0, len(blob), len(blob) // 3 + 1):
                if at and file.suffix == ".safetensors":
                    between()
                f.write(blob[at:at + len(blob) // 3 + 1])
    (path / "optimizer.pt").write_bytes(b"not weights")
    shutil.rmtree(whole)


@pytest.mark.parametrize("shards", [1, 3])
def test_slow_writers(output, bucket, scratch, shards):
    """Pieces of a file, files of a checkpoint: nothing is published before the last is there."""
    states = models.states(21, 3, models.SMALL)
    with watching(output, bucket, scratch) as watch:
        def nothing_yet():
            time.sleep(0.02)
            assert len(watch.read()) == done

        for done, state in enumerate(states):
            write_slowly(output / f"checkpoint-{10 * done + 10}", state, shards, nothing_yet)
            assert watch.versions(done + 1)[-1] == 10 * done + 10
    publishing.check(bucket, {10: states[0], 20: states[1], 30: states[2]})


def test_unfinished(output, bucket, scratch):
    """A shard that is missing, and a file cut short, hold up and do not harm."""
    states = models.states(22, 4, models.SMALL)
    for n, state in enumerate(states, 1):
        publishing.write_checkpoint(output / f"step_{n}", state, shards=2)
    lost = sorted((output / "step_2").glob("*.safetensors"))[0]
    kept = lost.read_bytes()
    lost.unlink()
    with watching(output, bucket, scratch) as watch:
        assert watch.versions(1)[0] == 1
        lost.write_bytes(kept[:-1])
        watch.said("step_2 is not finished: ")
        assert watch.versions(3) == [1, 3, 4]
        assert "weightfs: " in watch.err
    publishing.check(bucket, {1: states[0], 3: states[2], 4: states[3]})


def test_failures_are_tried_again(output, bucket, scratch):
    """A destination that cannot be written to; later it can."""
    states = models.states(23, 2, models.SMALL)
    publishing.write_checkpoint(output / "1", states[0])
    assert once(output, bucket, scratch)[0] == [1]
    shutil.rmtree(bucket / "deltas", ignore_errors=True)
    (bucket / "deltas").write_bytes(b"in the way")
    publishing.write_checkpoint(output / "2", states[1])
    versions, text = once(output, bucket, scratch, code=1)
    assert versions == [] and "not everything could be published" in text
    with watching(output, bucket, scratch) as watch:
        watch.said("it is tried again in 1 s")
        (bucket / "deltas").unlink()
        assert watch.versions(1) == [2]
    publishing.check(bucket, {1: states[0], 2: states[1]})


def test_rewritten_in_place(output, bucket, scratch):
    """The directory itself is the checkpoint, again and again; a stale index does not mislead
    (but for ten times --settle: whoever pauses longer has finished)."""
    states = models.states(24, 3, models.SMALL)
    with watching(output, bucket, scratch, "--settle", "2") as watch:
        for done, state in enumerate(states):
            new = publishing.write_checkpoint(scratch / "new", state, shards=2)
            for file in sorted(new.iterdir(), key=lambda p: (p.name == INDEX, p.name)):
                time.sleep(0.02)
                assert len(watch.read()) == done
                if file.is_file():
                    (output / file.name).write_bytes(file.read_bytes())
            assert watch.versions(done + 1)[-1] == done + 1
            (output / "trainer_state.json").write_text(str(done))
    publishing.check(bucket, dict(enumerate(states, 1)))
    assert once(output, bucket, scratch)[0] == []


def test_restart_and_names(output, bucket, scratch):
    """Each is published once, by number; what is no checkpoint is left alone."""
    states = models.states(25, 5, models.SMALL)
    for name, state in zip(("global_step_2/actor/huggingface", "global_step_10/actor/huggingface",
                            "global_step_9/actor/huggingface"), states):
        publishing.write_checkpoint(output / name, state)
    publishing.write_checkpoint(output / "tmp-checkpoint-11", states[3])
    (output / "global_step_12").mkdir()
    (output / "global_step_12" / "adapter_model.safetensors").write_bytes(
        st.dump(states[3], None))
    publishing.write_checkpoint(output, states[4])
    versions, text = once(output, bucket, scratch)
    assert versions == [2, 9, 10]
    assert "is not published: its name has no number" in text
    assert once(output, bucket, scratch)[0] == []
    publishing.check(bucket, {2: states[0], 9: states[2], 10: states[1]})
    records = [p for p in output.iterdir() if p.name.startswith(".weightfs-published-")]
    assert len(records) == 1 and len(records[0].read_text().splitlines()) == 3


def test_trained_anew(output, bucket, scratch):
    """Numbers that begin again are not taken for published ones; a new run takes them."""
    states = models.states(28, 4, models.SMALL)
    for n, state in enumerate(states[:2], 1):
        publishing.write_checkpoint(output / f"checkpoint-{n}", state)
    assert once(output, bucket, scratch)[0] == [1, 2]
    shutil.rmtree(output / "checkpoint-2")
    publishing.write_checkpoint(output / "checkpoint-1", states[2])
    versions, text = once(output, bucket, scratch)
    assert versions == [] and "checkpoint-1 is not published: the newest version" in text
    publishing.write_checkpoint(output / "checkpoint-2", states[3])
    assert once(output, bucket, scratch, "--new-run")[0] == [1, 2]
    assert once(output, bucket, scratch)[0] == []
    publishing.check(bucket, {1: states[2], 2: states[3]})


def test_count(output, bucket, scratch):
    """Numbers without the gaps of the names, also over a restart."""
    states = models.states(26, 4, models.SMALL)
    for n, state in enumerate(states[:3], 1):
        publishing.write_checkpoint(output / f"checkpoint-{n * 500}", state)
    assert once(output, bucket, scratch, "--version-from", "count")[0] == [1, 2, 3]
    publishing.write_checkpoint(output / "checkpoint-2000", states[3])
    assert once(output, bucket, scratch, "--version-from", "count")[0] == [4]
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_latest_only(output, bucket, scratch):
    """Behind by three: the newest alone."""
    states = models.states(27, 3, models.SMALL)
    for n, state in enumerate(states, 1):
        publishing.write_checkpoint(output / f"checkpoint-{n}", state)
    assert once(output, bucket, scratch, "--latest-only")[0] == [3]
    assert once(output, bucket, scratch)[0] == []
    publishing.check(bucket, {3: states[2]})


@pytest.mark.parametrize("words, says", [
    (["--once"], "--once goes with --watch"),
    (["--watch", "o", "--version", "3"], "--version-from"),
    (["--watch", "o", "checkpoint"], "takes the place of the checkpoint"),
    (["--watch", "o", "--version-from", "size"], "name or count"),
    (["--watch", "o", "--settle", "soon"], "is not a time"),
    (["checkpoint", "--uploader", "ftp"], "s3 or hf"),
])
def test_command_lines(scratch, words, says):
    """What does not fit together."""
    done = mounted.run("publish", *words, scratch / "dest", check=False)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not (scratch / "dest").exists()
