"""What stays and what moves: handles, mappings, inodes, times, the current pointer, restarts."""

import os
import select
import shutil
import signal
import subprocess
import sys

import pytest

from lib import checks, models, mounted, oracle, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount, wait_until

MODEL = "model.safetensors"


def opened(path):
    """An open file descriptor."""
    return os.open(path, os.O_RDONLY)


class Held:
    """Everything a loader can hold of one version, taken at one moment."""

    def __init__(self, mount, want):
        self.want = want
        self.fds = [opened(mount.at / MODEL) for _ in range(4)]
        self.shared = reading.map_fd(self.fds[0], True)
        self.private = reading.map_fd(self.fds[1])
        self.half_read = reading.map_fd(self.fds[2])
        reading.mapped_bytes(self.half_read, 0, len(want) // 2)
        self.stat = os.fstat(self.fds[0])

    def check(self):
        """All of it still is that version."""
        for mapping in (self.shared, self.private, self.half_read):
            assert reading.mapped_bytes(mapping) == self.want
        for fd in self.fds:
            assert reading.read_fd(fd) == self.want
            now = os.fstat(fd)
            assert (now.st_ino, now.st_size, now.st_mtime_ns) == (
                self.stat.st_ino, self.stat.st_size, self.stat.st_mtime_ns)

    def close(self):
        """Lets go."""
        for mapping in (self.shared, self.private, self.half_read):
            mapping.close()
        for fd in self.fds:
            os.close(fd)


@pytest.mark.parametrize("generation", ["v1.3", "v3"])
def test_old_handles_keep_their_version(generation, bucket):
    """Ten newer versions, dropped caches: what was opened does not move, new opens do."""
    run = trl.Run(bucket, generation, interval=4)
    states = models.states(20, 12)
    want = oracle.Oracle(bucket)
    with Mount(bucket, keep=2) as m:
        checks.publish(m, run, states[:2])
        held = Held(m, want.files(2)[MODEL])
        seen = [os.stat(m.at / MODEL)]
        for state in states[2:]:
            checks.publish(m, run, [state])
            if run.number % 4 == 0:
                reading.drop_caches()
                held.check()
            assert reading.read_file(m.at / MODEL) == want.files(run.number)[MODEL]
            seen.append(os.stat(m.at / MODEL))
        reading.drop_caches()
        held.check()
        assert reading.read_file(m.tree(2) / MODEL) == held.want
        assert os.stat(m.tree(2) / MODEL).st_ino == held.stat.st_ino
        held.close()
        assert len({s.st_ino for s in seen}) == len(seen) == 11
        assert len({s.st_size for s in seen}) == 1
        times = [s.st_mtime_ns for s in seen]
        assert all(a < b for a, b in zip(times, times[1:]))
        wait_until(lambda: m.versions() == [11, 12], lambda: f"kept: {m.versions()}")


def test_one_inode_under_every_name(bucket):
    """The same (file, version) is the same inode under MOUNT, versions/N and current/."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3")
    with Mount(bucket) as m:
        inodes = set()
        for state in models.states(21, 3, models.SMALL):
            checks.publish(m, run, [state])
            n = run.number
            assert os.readlink(m.dot / "current") == f"versions/{n}"
            names = [m.at / MODEL, m.tree(n) / MODEL, m.dot / "current" / MODEL]
            stats = [os.stat(name) for name in names]
            assert len({(s.st_dev, s.st_ino, s.st_mtime_ns) for s in stats}) == 1
            assert not inodes & {stats[0].st_ino}
            inodes.add(stats[0].st_ino)
        configs = {os.stat(m.tree(n) / "config.json").st_ino for n in (1, 2, 3)}
        assert len(configs) == 1


def test_a_directory_handle_keeps_its_version(bucket):
    """A loader that walks versions/N by openat never sees another version."""
    run = trl.Run(bucket, "v3")
    states = models.states(22, 4, models.SMALL)
    want = oracle.Oracle(bucket)
    with Mount(bucket, keep=1) as m:
        checks.publish(m, run, states[:1])
        folder = os.open(m.tree(1), os.O_RDONLY | os.O_DIRECTORY)
        checks.publish(m, run, states[1:])
        fd = os.open(MODEL, os.O_RDONLY, dir_fd=folder)
        assert reading.read_fd(fd) == want.files(1)[MODEL]
        os.close(fd)
        os.close(folder)


def test_long_chain(bucket):
    """More deltas than anybody would like: the newest, the kept, an open one and any pinned one
    stay right while old patches are folded."""
    run = trl.Run(bucket, "v3", interval=1000)
    states = models.states(46, 90, models.SMALL, density=0.03)
    names = st.torch_order(states[0])

    def look(top, number):
        blob = reading.read_file(top / MODEL)
        assert blob.endswith(b"".join(states[number - 1][n].data.tobytes() for n in names))
        return blob

    with Mount(bucket, keep=3) as m:
        checks.publish(m, run, states[:10])
        fd = opened(m.at / MODEL)
        tenth = look(m.at, 10)
        checks.publish(m, run, states[10:], lambda n: look(m.at, n))
        reading.drop_caches()
        assert reading.read_fd(fd) == tenth
        os.close(fd)
        for number in (1, 2, 10, 33, 64, 65, 88, 90):
            m.control(f"pin {number}")
            look(m.tree(number), number)
    with Mount(bucket) as m:
        m.wait_version(90)
        look(m.at, 90)
        for number in m.versions():
            look(m.tree(number), number)


def test_keep_pin_and_open(bucket):
    """`--keep N` retires old versions, except the open and the pinned ones."""
    run = trl.Run(bucket, "v3")
    states = models.states(23, 8, models.SMALL)
    want = oracle.Oracle(bucket)

    def settles(m, numbers):
        wait_until(lambda: m.versions() == numbers, lambda: f"{m.versions()}, not {numbers}")

    with Mount(bucket, keep=3) as m:
        checks.publish(m, run, states[:2])
        fd = opened(m.tree(1) / MODEL)
        m.control("pin 2")
        checks.publish(m, run, states[2:6])
        settles(m, [1, 2, 4, 5, 6])
        listed = {v["version"]: v for v in m.status()["versions"]}
        assert listed[1]["open"] == 1 and listed[6]["open"] == 0
        assert listed[2]["pinned"] and not listed[1]["pinned"]
        assert [n for n, v in listed.items() if v["current"]] == [6]
        assert reading.read_fd(fd) == want.files(1)[MODEL]
        os.close(fd)
        settles(m, [2, 4, 5, 6])
        assert reading.read_file(m.tree(2) / MODEL) == want.files(2)[MODEL]
        m.control("unpin 2")
        settles(m, [4, 5, 6])
        with pytest.raises(FileNotFoundError):
            os.stat(m.tree(2) / MODEL)
        m.control("pin 3")
        assert m.versions() == [3, 4, 5, 6]
        checks.assert_tree(m.tree(3), want.files(3))
        m.control("pin 1")
        m.control("unpin")
        settles(m, [4, 5, 6])
        checks.publish(m, run, states[6:])
        settles(m, [6, 7, 8])


def test_control_answers(bucket):
    """Every command answers; what is not a command, or asks for what is not there, is refused."""
    models.publish(trl.Run(bucket, "v3"), models.states(24, 2, models.SMALL))
    with Mount(bucket) as m:
        m.wait_version(2)
        for good in ("refresh", "pin 1", "unpin 1", "unpin", "hold 1", "release", "prefetch"):
            assert m.control(good), good
        for bad in ("frobnicate", "pin", "pin x", "pin -1", "hold", "hold soon", "", "pin 1 2",
                    "x" * 5000):
            with pytest.raises(OSError) as error:
                m.control(bad)
            assert error.value.errno == 22, bad
        for absent in ("pin 77", "unpin 2"):
            with pytest.raises(FileNotFoundError):
                m.control(absent)
        done = subprocess.run(["sh", "-c", f"echo refresh > {m.dot}/control"], check=False)
        assert done.returncode == 0


def test_hold_keeps_current_while_newest_moves(bucket):
    """`hold` stops the plain paths, not versions/; `release` lets them go on."""
    run = trl.Run(bucket, "v3")
    states = models.states(25, 3, models.SMALL)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        checks.publish(m, run, states[:1])
        m.control("hold 3600")
        run.sync(states[1])
        wait_until(lambda: (m.dot / "newest").read_text() == "2\n", "newest did not move")
        assert m.version() == 1 and m.status()["newest"] == 2
        assert reading.read_file(m.at / MODEL) == want.files(1)[MODEL]
        assert reading.read_file(m.tree(2) / MODEL) == want.files(2)[MODEL]
        m.control("release")
        m.wait_version(2)
        assert reading.read_file(m.at / MODEL) == want.files(2)[MODEL]


def poll_once(fd, seconds):
    """The poll(2) events of a descriptor."""
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLPRI)
    return poller.poll(int(seconds * 1000))


@pytest.mark.parametrize("name", ["version", "newest"])
def test_poll(name, bucket):
    """poll(2), select(2) and epoll wake when the number changes, and only then."""
    run = trl.Run(bucket, "v3")
    states = models.states(26, 4, models.SMALL)
    with Mount(bucket) as m:
        checks.publish(m, run, states[:1])
        fd = opened(m.dot / name)
        assert os.pread(fd, 100, 0) == b"1\n"
        assert poll_once(fd, 0) == []
        run.sync(states[1])
        assert poll_once(fd, mounted.WAIT)
        assert os.pread(fd, 100, 0) == b"2\n"
        assert poll_once(fd, 0) == []
        epoll = select.epoll()
        epoll.register(fd, select.EPOLLIN | select.EPOLLPRI)
        run.sync(states[2])
        assert epoll.poll(mounted.WAIT)
        epoll.close()
        assert os.pread(fd, 100, 0) == b"3\n"
        run.sync(states[3])
        readable, _, urgent = select.select([fd], [], [fd], mounted.WAIT)
        assert readable or urgent
        assert os.pread(fd, 100, 0) == b"4\n"
        os.close(fd)


def test_wait_verb(bucket):
    """`weightfs wait` returns when the version is there, 3 when time is up."""
    run = trl.Run(bucket, "v3")
    states = models.states(27, 3, models.SMALL)
    with Mount(bucket) as m:
        checks.publish(m, run, states[:1])
        assert mounted.run("wait", m.at, "--version", 1, "--timeout", mounted.WAIT).returncode == 0
        late = mounted.run("wait", m.at, "--after", 1, "--timeout", 0.2, check=False)
        assert late.returncode == 3 and late.stderr.count("\n") == 1, late
        waiting = subprocess.Popen([str(mounted.BINARY), "wait", str(m.at), "--after", "1",
                                    "--timeout", str(mounted.WAIT)])
        run.sync(states[1])
        assert waiting.wait(timeout=mounted.WAIT) == 0
        assert m.version() == 2
        waiting = subprocess.Popen([str(mounted.BINARY), "wait", str(m.at), "--version", "3"])
        run.sync(states[2])
        assert waiting.wait(timeout=mounted.WAIT) == 0
        bad = mounted.run("wait", bucket, "--after", 1, "--timeout", mounted.WAIT, check=False)
        assert bad.returncode == 1 and bad.stderr.startswith("weightfs: ")


# ---- runs that restart ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["rename", "slow"])
def test_restart_in_the_same_directory(how, bucket):
    """A trainer that starts again from 1 over an old run begins a new lineage: the old run's higher
    numbers are still in the bucket and are not shown."""
    first = models.states(30, 6, models.SMALL)
    second = models.states(31, 4, models.SMALL)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        checks.publish(m, trl.Run(bucket, "v3", interval=4), first)
        old = m.status()["lineage"]
        old_blob = want.files(6)[MODEL]
        fd = opened(m.at / MODEL)
        again = trl.Run(bucket, "v3", interval=4, how=how)
        for i, state in enumerate(second):
            checks.publish(m, again, [state])
            assert m.version() == i + 1 == want.numbers()[-1]
            checks.assert_tree(m.at, want.files(i + 1))
        status = m.status()
        assert status["lineage"] != old and len(status["lineage"]) == 8
        assert os.getxattr(m.at / MODEL, "user.weightfs.lineage").decode() == status["lineage"]
        assert (bucket / "deltas" / "step_000006.safetensors").exists()
        if how == "rename":
            assert reading.read_fd(fd) == old_blob
        os.close(fd)
    with Mount(bucket) as m:
        m.wait_version(4)
        checks.assert_tree(m.at, want.files(4))
        assert m.status()["newest"] == 4


def test_times_can_be_ignored(bucket):
    """`--times ignore`: a copied bucket, whose times mean nothing, is one run."""
    run = trl.Run(bucket, "v3")
    states = models.states(32, 4, models.SMALL)
    for state in states:
        path = run.sync(state)
        os.utime(path, ns=((10 - run.number) * 10**9,) * 2)
    with Mount(bucket, args=["--times", "ignore"]) as m:
        m.wait_version(4)
        checks.assert_tree(m.at, oracle.Oracle(bucket, trust_times=False).files(4))
    with Mount(bucket) as m:
        m.wait_version(1)
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(1))


@pytest.mark.parametrize("generation", ["v1.3", "v3"])
def test_mtime_grows_whatever_the_objects_say(generation, bucket):
    """Objects with one and the same time: mtimes still grow, in each version's tree as well."""
    run = trl.Run(bucket.parent / "making", generation, interval=3)
    times = []
    with Mount(bucket) as m:
        for state in models.states(39, 8, models.MINI):
            path = run.sync(state)
            os.utime(path, ns=(10**18, 10**18))
            there = bucket / path.relative_to(run.root)
            there.parent.mkdir(exist_ok=True)
            path.rename(there)
            m.wait_version(run.number)
            times.append(os.stat(m.at / MODEL).st_mtime_ns)
        assert all(a < b for a, b in zip(times, times[1:])), times
        for number, when in enumerate(times, 1):
            assert os.stat(m.tree(number) / MODEL).st_mtime_ns == when


def test_holes(bucket):
    """v1.x: a missing number blocks what follows until it comes, or until a complete anchor."""
    models.publish(trl.Run(bucket, "v1.2", interval=9), models.states(33, 9, models.SMALL))
    away = bucket.parent / "away"
    away.mkdir()
    late = {n: bucket / "deltas" / f"step_{n:06d}.safetensors" for n in range(3, 9)}
    late[9] = bucket / "anchors" / "step_000009.safetensors"
    for path in late.values():
        os.rename(path, away / path.name)

    def arrive(number):
        os.rename(away / late[number].name, late[number])

    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        m.wait_version(2)
        arrive(4)
        arrive(5)
        wait_until(lambda: [p for p in m.status()["problems"] if "3" in p["error"]],
                   lambda: f"nothing said: {m.status()}")
        assert m.version() == 2
        arrive(3)
        m.wait_version(5)
        checks.assert_tree(m.at, want.files(5))
        arrive(7)
        wait_until(lambda: m.status()["problems"], lambda: f"nothing said: {m.status()}")
        assert m.version() == 5
        arrive(9)
        m.wait_version(9)
        checks.assert_tree(m.at, want.files(9))


def test_hole_grace(bucket):
    """v2/v3: a hole is waited for a while, since an object may still be under way."""
    run = trl.Run(bucket, "v3")
    states = models.states(43, 5, models.SMALL, same=(3,))
    want = oracle.Oracle(bucket)
    with Mount(bucket, hole_grace=1000) as m:
        checks.publish(m, run, states[:3])
        path = run.sync(states[3]) or run.sync(states[4])
        assert path.name == "step_000005.safetensors"
        wait_until(lambda: m.status()["problems"], lambda: f"nothing said: {m.status()}")
        assert m.version() == 3
    with Mount(bucket, hole_grace=0.3) as m:
        m.wait_version(5)
        checks.assert_tree(m.at, want.files(5))
        m.control("pin 4")
        assert reading.read_file(m.at / MODEL) == want.files(5)[MODEL]


# ---- objects that change or go away -----------------------------------------------------------


def test_rewritten_in_place_is_never_mixed(bucket):
    """The anchor under an open version is overwritten: its reader gets old bytes or EIO."""
    run = trl.Run(bucket, "v3", interval=50)
    states = models.states(34, 3)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        checks.publish(m, run, states)
        blob = want.files(3)[MODEL]
        fds = [opened(m.at / MODEL), opened(m.at / MODEL)]
        mapping = reading.map_fd(fds[0])
        reading.mapped_bytes(mapping, 0, 200000)
        anchor = bucket / "anchors" / "step_000001.safetensors"
        other = models.states(35, 1)[0]
        trl.put(anchor, trl.delta_blob(1, {}, full=other, sparse=False), "inplace")
        reading.drop_caches()
        failed = 0
        for at in range(0, len(blob), 4096):
            for read in (lambda a: os.pread(fds[1], 4096, a),
                         lambda a: reading.mapped_bytes(mapping, a, min(a + 4096, len(blob)))):
                try:
                    assert read(at) == blob[at:at + 4096], at
                except OSError as error:
                    assert error.errno in (5, 14, 116), error
                    failed += 1
        assert failed, "the overwritten bytes cannot have been read from anywhere"
        mapping.close()
        for fd in fds:
            os.close(fd)
        m.wait_version(1)
    with Mount(bucket) as m:
        m.wait_version(1)
        checks.assert_tree(m.at, want.files(1))


def test_deleted_newest(bucket):
    """One object goes away after its version was shown: the current version does not go back."""
    run = trl.Run(bucket, "v3")
    states = models.states(41, 5, models.SMALL)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        checks.publish(m, run, states[:4])
        blob = want.files(4)[MODEL]
        (bucket / "deltas" / "step_000004.safetensors").unlink()
        for _ in range(3):
            m.control("refresh")
        assert m.version() == 4
        assert reading.read_file(m.at / MODEL) == blob


def test_pruned_upstream(bucket):
    """A pruner removes what a complete anchor makes superfluous: the run goes on."""
    run = trl.Run(bucket, "v3", interval=4)
    states = models.states(42, 7, models.SMALL)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        checks.publish(m, run, states[:6])
        lineage = m.status()["lineage"]
        files = {n: want.files(n) for n in want.numbers()}
        for name in ("anchors/step_000001", "deltas/step_000002", "deltas/step_000003"):
            (bucket / f"{name}.safetensors").unlink()
        m.control("refresh")
        for number, blobs in files.items():
            checks.assert_tree(m.tree(number), blobs)
        checks.publish(m, run, states[6:])
        assert reading.read_file(m.at / MODEL) == want.files(7)[MODEL]
        assert m.status()["lineage"] == lineage


def test_deleted_upstream(bucket):
    """The bucket's objects go away: what is open and what is kept can still be read."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=3)
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        numbers = checks.publish(m, run, models.states(36, 5))
        files = {n: want.files(n) for n in numbers}
        fd = opened(m.at / MODEL)
        for path in sorted(bucket.glob("*/step_*")):
            path.unlink()
        m.control("refresh")
        reading.drop_caches()
        assert reading.read_fd(fd) == files[5][MODEL]
        os.close(fd)
        checks.assert_tree(m.at, files[5])
        for number in numbers:
            checks.assert_tree(m.tree(number), files[number])
        assert m.version() == 5


def test_bucket_directory_is_made_anew(bucket):
    """The whole source vanishes and another directory takes its name: what is shown stays
    meanwhile, and then the new run appears."""
    run = trl.Run(bucket, "v3")
    want = oracle.Oracle(bucket)
    with Mount(bucket) as m:
        checks.publish(m, run, models.states(37, 3, models.SMALL))
        blob = want.files(3)[MODEL]
        away = bucket.parent / "away"
        os.rename(bucket, away)
        m.control("refresh")
        reading.drop_caches()
        assert reading.read_file(m.at / MODEL) == blob
        shutil.rmtree(away)
        assert m.version() == 3 and reading.read_file(m.at / MODEL) == blob
        again = trl.Run(bucket, "v3")
        for state in models.states(44, 2, models.SMALL):
            again.sync(state)
        m.wait_version(2)
        checks.assert_tree(m.at, want.files(2))


READER = """
import os, sys, hashlib
path, rounds = sys.argv[1], int(sys.argv[2])
for _ in range(rounds):
    fd = os.open(path, os.O_RDONLY)
    version = os.getxattr(fd, "user.weightfs.version").decode()
    parts, at = [], 0
    while piece := os.pread(fd, 65536, at):
        parts.append(piece)
        at += len(piece)
    os.close(fd)
    print(version, hashlib.sha256(b"".join(parts)).hexdigest(), flush=True)
"""


def test_readers_during_publication(bucket, tmp_path):
    """Processes that open and read all the time while versions arrive only ever see whole ones."""
    run = trl.Run(bucket, "v3", interval=5)
    states = models.states(38, 14)
    want = oracle.Oracle(bucket)
    said = [tmp_path / f"reader{i}" for i in range(3)]
    with Mount(bucket) as m:
        checks.publish(m, run, states[:1])
        readers = []
        for path in said:
            with open(path, "w", encoding="ascii") as out:
                readers.append(subprocess.Popen(
                    [sys.executable, "-c", READER, str(m.at / MODEL), "1000000"], stdout=out))
        checks.publish(m, run, states[1:])
        for path in said:
            wait_until(lambda path=path: path.stat().st_size > 0, lambda: "a reader says nothing")
        sums = {str(n): reading.sha256(want.files(n)[MODEL]) for n in want.numbers()}
        for reader in readers:
            reader.send_signal(signal.SIGTERM)
            reader.wait(timeout=mounted.WAIT)
    for path in said:
        # The last line may have been cut off by the signal.
        lines = [line.split() for line in path.read_text().split("\n")[:-1]]
        assert [line for line in lines if sums.get(line[0]) != line[1]] == []
