"""A publisher that dies at any moment, or finds no room: the run stays valid, the next one heals.

PUBLISH_KILLS says how many kills there are (5); `make pytest PUBLISH_KILLS=100 PYTEST_ARGS='-s -k
publisher_killed'` is the long form.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest

from lib import driven, hfdir, models, mounted, publishing, reading
from lib import safetensors_py as st
from lib.places import S3Place

KILLS = int(os.environ.get("PUBLISH_KILLS", "5"))
# Large enough to be killed amid everything.
MODEL = {"a": ("BF16", (700, 1000)), "b": ("BF16", (300, 999)), "c": ("F32", (1000,))}


class Killer:
    """Starts a publisher, kills it at a random moment of a run of usual length."""

    def __init__(self, publisher, seed):
        self.publisher, self.random = publisher, random.Random(seed)
        self.usual, self.killed = 0.2, 0

    def publish(self, path, *args):
        """To the end; notes how long it takes."""
        began = time.monotonic()
        report = self.publisher.publish(path, *args)
        self.usual += (time.monotonic() - began - self.usual) / 3
        return report

    def kill(self, path, *args):
        """Not to the end, most of the time."""
        process = subprocess.Popen(self.publisher.command(path, *args), env=self.publisher.env,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.random.uniform(0, self.usual))
        process.send_signal(signal.SIGKILL)
        self.killed += process.wait() == -signal.SIGKILL


def directory(scratch):
    """A directory: (destination, arguments, environment, what is there)."""
    return contextlib.nullcontext((scratch / "bucket", [], None, lambda: scratch / "bucket"))


@contextlib.contextmanager
def s3(scratch):
    """S3."""
    with S3Place() as place:
        def objects():
            # What a publisher that was killed had sent may still be on its way in.
            mounted.wait_until(lambda: not place.api.sockets, "somebody is still connected")
            with place.s3.lock:
                return {k.removeprefix("run/"): o.data for k, o in place.s3.objects.items()}
        yield place.url, place.args, driven.environment(place.env), objects


@pytest.mark.parametrize("where", [directory, s3], ids=["directory", "s3"])
@pytest.mark.timeout(mounted.LIFETIME + 30 * KILLS * mounted.SLOW)
def test_publisher_killed(where, scratch):
    """After each kill the run is valid, and the same command publishes what it should have."""
    want, rng = {}, random.Random(62)
    with where(scratch) as (dest, args, env, objects):
        publisher = publishing.Publisher(dest, scratch / "state",
                                         [*args, "--anchor-every", 4], env=env)
        killer = Killer(publisher, 63)
        generator, state = models.start(64, MODEL)
        for version in range(1, KILLS + 1):
            shutil.rmtree(scratch / "c", ignore_errors=True)
            path = publishing.write_checkpoint(scratch / "c", state, 1 + (version % 5 == 0))
            for _ in range(rng.choice((1, 1, 2))):
                killer.kill(path, "--version", version)
                assert publishing.newest(objects()) in (version - 1, version)
            want[version] = state
            killer.publish(path, "--version", version)
            assert publishing.newest(objects()) == version
            state = models.step(generator, state, density=0.003)
        publishing.check(objects(), want)
        print(f"{killer.killed} killed, {KILLS} versions")
        assert not publishing.strays(objects())
        if where is directory:
            assert not [p for top in ("anchors", "deltas") for p in (dest / top).rglob(".*")]
            with mounted.Mount(dest) as mount:
                mount.wait_version(max(want))
                blobs = [reading.read_file(p) for n, p in reading.tree(mount.at).items()
                         if n.endswith(".safetensors")]
                shown = {}
                for blob in blobs:
                    shown.update(st.load(blob)[0])
                assert publishing.same_state(shown, want[max(want)])


@pytest.mark.timeout(mounted.LIFETIME + 20 * KILLS * mounted.SLOW)
@pytest.mark.parametrize("encoding", ["trl-v1", "trl-v3", "xor-zstd"])
def test_publisher_killed_foreign(encoding, bucket, scratch):
    """Keys that are the same at every attempt: what a killed one left is written over, or not seen.
    """
    publisher = publishing.Publisher(bucket, scratch / "state",
                                     ["--encoding", encoding, "--anchor-every", 3])
    killer, want = Killer(publisher, 65), {}
    generator, state = models.start(66, MODEL)
    for version in range(1, KILLS + 1):
        path = publishing.write_checkpoint(scratch / f"c{version}", state)
        killer.kill(path)
        if publishing.newest(bucket) < version:
            # Another state under the number that the killed one was at.
            state = models.step(generator, state, density=0.003)
            path = publishing.write_checkpoint(scratch / f"d{version}", state)
        killer.publish(path, "--version", version)
        want[version] = state
        state = models.step(generator, state, density=0.003)
    if encoding == "xor-zstd":
        for version, known in want.items():
            assert hfdir.pull(bucket, None, version) == {n: t.data.tobytes()
                                                         for n, t in known.items()}
        return
    (bucket / "weightfs.json").unlink()  # as TRL's receivers see it
    with mounted.Mount(bucket) as mount:
        mount.wait_version(KILLS)
        shown = st.load_file(mount.at / "model.safetensors")[0]
        assert publishing.same_state(shown, want[KILLS])


def test_every_step_of_a_crash(bucket, scratch):
    """A crash between any two of the writes: the state on either side of each is taken up."""
    publisher = publishing.Publisher(bucket, scratch / "state")
    states = models.states(65, 5, models.SMALL)
    publisher.publish(states[0])
    own = next(publisher.state_dir.iterdir())

    # Before the pointer moved: pending names keys that the run does not.
    before = (own / "state.json").read_text()
    pointer = (bucket / publishing.POINTER).read_bytes()
    publisher.publish(states[1])
    pending = json.loads((own / "state.json").read_text())
    pending["keys"] = [publishing.pointer(bucket)["steps"][-1]["objects"][0]["key"]]
    (bucket / publishing.POINTER).write_bytes(pointer)
    (own / "state.json").write_text(before)
    (own / "pending.json").write_text(json.dumps(pending))
    assert publisher.publish(states[2])["kind"] == "delta"
    publishing.check(bucket, {1: states[0], 2: states[2]})
    assert not (own / "pending.json").exists()

    # After it: pending is what is.
    before = (own / "state.json").read_text()
    publisher.publish(states[3])
    (own / "pending.json").write_text((own / "state.json").read_text())
    (own / "state.json").write_text(before)
    assert publisher.publish(states[4])["kind"] == "delta"
    publishing.check(bucket, {1: states[0], 2: states[2], 3: states[3], 4: states[4]})

    # The state's own files may be damaged.
    (own / "pending.json").write_text("{")
    assert publisher.publish(states[0])["kind"] in ("delta", "anchor")
    (own / "state.json").write_text("")
    assert "belongs to another publisher" in publisher.refused(states[1])
    publisher.publish(states[1], "--take-over")


@pytest.mark.parametrize("where", [directory, s3], ids=["directory", "s3"])
def test_two_publishers_race(where, scratch):
    """Two states, one destination: at least one of each pair wins, and the run is no mixture."""
    with where(scratch) as (dest, args, env, objects):
        race(dest, args, env, objects, scratch)


def race(dest, args, env, objects, scratch):
    """Five pairs."""
    publishers = [publishing.Publisher(dest, scratch / f"state{i}", args, env=env)
                  for i in range(2)]
    states = models.states(66, 6, models.SMALL)
    paths = [publishing.write_checkpoint(scratch / f"c{i}", s) for i, s in enumerate(states)]
    publishers[0].publish(paths[0])
    newest = 1
    for i in range(5):
        done = [None, None]

        def go(k, path, done=done):
            done[k] = publishers[k].run(path, "--take-over", check=False)

        threads = [threading.Thread(target=go, args=(k, paths[(i + k) % 6])) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = sum(d.returncode == 0 for d in done)
        assert won >= 1, [d.stderr for d in done]
        for d in done:
            if d.returncode:
                text = d.stderr.decode()
                assert "was faster" in text and "--take-over" in text, text
        newest += won
        have = publishing.read_run(objects())
        assert max(have) == newest and len(have) == newest


def test_upkeep_meanwhile(bucket, scratch):
    """Compacted all the time while versions are published."""
    publisher = publishing.Publisher(bucket, scratch / "state")
    states = models.states(69, 12, models.SMALL, density=0.003)
    publisher.publish(states[0])
    stop = threading.Event()

    def upkeep():
        while not stop.is_set():
            mounted.run("compact", "-q", "--every", 2, bucket, check=False)

    thread = threading.Thread(target=upkeep)
    thread.start()
    try:
        for state in states[1:]:
            publisher.publish(state)
        mounted.wait_until(lambda: publishing.pointer(bucket)["spans"], "nothing is compacted")
    finally:
        stop.set()
        thread.join()
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_verified_meanwhile(bucket, scratch):
    """What is replaced and pruned while a run is verified is no problem of it."""
    publisher = publishing.Publisher(bucket, scratch / "state", ["--anchor-every", "2"])
    states = models.states(70, 12, models.TINY)
    publisher.publish(states[0])
    failed = []

    def verify():
        while not done.is_set():
            failed.extend(mounted.run("verify", "-q", bucket, check=False).stdout.splitlines())

    done, threads = threading.Event(), [threading.Thread(target=verify) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i, state in enumerate(states[1:]):
            path = publishing.write_checkpoint(scratch / f"c{i}", state)
            (path / "config.json").write_text(f"{i}")
            publisher.publish(path)
            mounted.run("prune", "-q", bucket)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed
    (bucket / publishing.pointer(bucket)["steps"][-1]["objects"][0]["key"]).unlink()
    assert "is not there" in mounted.run("verify", "-q", bucket, check=False).stdout


# ---- no room ------------------------------------------------------------------------------------

@pytest.fixture
def small_disk(scratch):
    """8 MB of memory as a file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    at = scratch / "small"
    at.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", at], check=False,
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield at
    subprocess.run(["umount", "-l", at], check=True)


def fill(path):
    """Writes until there is no space."""
    with path.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4096))


@pytest.mark.parametrize("what", ["bucket", "state"])
def test_disk_full(what, small_disk, scratch):
    """A sentence; what was there stays; with room the same command works."""
    dest = small_disk / "bucket" if what == "bucket" else scratch / "bucket"
    state = small_disk / "state" if what == "state" else scratch / "state"
    publisher = publishing.Publisher(dest, state, work=scratch / "checkpoints")
    states = models.states(67, 4, models.SMALL)
    publisher.publish(states[0])
    publisher.publish(states[1])
    fill(small_disk / "ballast")
    text = publisher.refused(states[2], "--anchor")
    assert "No space left" in text, text
    publishing.check(dest, {1: states[0], 2: states[1]})
    (small_disk / "ballast").unlink()
    assert publisher.publish(states[2])["kind"] == "delta"
    assert publisher.publish(states[3])["kind"] == "delta"
    publishing.check(dest, dict(enumerate(states, 1)))
    assert not [p for p in dest.rglob(".*") if "tmp" in p.name]


def test_checkpoint_written_meanwhile(scratch):
    """A checkpoint that changes while it is read is not published."""
    _, state = models.start(68, {"a": ("F32", (4 << 20,))})
    path = publishing.write_checkpoint(scratch / "c", state)
    places = itertools.count()

    def caught():
        """Written to as soon as the copy of it is begun; a moment later is too late, and fair."""
        place = scratch / str(next(places))
        publisher = publishing.Publisher(place / "bucket", place / "state")
        process = subprocess.Popen(publisher.command(path), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not list(publisher.state_dir.glob("*/slot-*/*")):
            time.sleep(0.001)
        with open(path / "model.safetensors", "r+b") as f:
            f.seek(-4, os.SEEK_END)
            f.write(os.urandom(4))
        _, text = process.communicate(timeout=mounted.WAIT)
        if process.returncode == 0:
            assert list(publishing.read_run(publisher.dest)) == [1]
            return None
        assert "was written to while it was read" in text, text
        return publisher

    publisher = mounted.wait_until(caught, "it is published whatever is written to it")
    assert publishing.POINTER not in publishing.Objects(publisher.dest).keys()
    publisher.publish(path)
    assert list(publishing.read_run(publisher.dest)) == [1]
