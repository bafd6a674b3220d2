"""The load guard through the mount: while something loads by plain path, the plain paths stay.

Every step waits for what it needs, none for time to pass: where a hold must not end meanwhile,
--settle and --max-hold are long, and where it has to end, they are short.
"""

import contextlib
import mmap
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from lib import loads, models, mounted, reading, trl
from lib.mounted import Mount, wait_until

INDEX = "model.safetensors.index.json"
LONG = 600


@pytest.fixture
def run(bucket):
    """A run whose versions are fingerprints; one is there."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3")
    run.sync(loads.fingerprint(1))
    return run


def mount(run, settle, max_hold=LONG, **kwargs):
    """Four shards of two tensors."""
    return Mount(run.root, shard_size=loads.shard_size(2), settle=settle,
                 args=["--max-hold", max_hold], **kwargs)


def publish(m, run):
    """The next version, ready under versions/; its number."""
    run.sync(loads.fingerprint(run.number + 1))
    wait_until(lambda: newest(m) == run.number, lambda: m.log_text()[-3000:])
    return run.number


def newest(m):
    """What .weightfs/newest says."""
    return int((m.dot / "newest").read_text() or 0)


def loads_of(m):
    """{pid: load} of the status."""
    return {one["pid"]: one for one in m.status()["loads"]}


def test_shards_over_a_while(run):
    """A rank that opens one shard after the other, keeping maps, while versions arrive: one
    version throughout; the status says who holds; the plain paths move once it has let go."""
    with mount(run, settle=0.2) as m:
        m.wait_version(1)
        names = loads.shards(m.at)
        assert len(names) == 4
        with loads.Ranks(m.at) as rank:
            for name in names:
                assert rank("open", name) == [1]
                publish(m, run)
                assert m.version() == 1
            assert rank("look") == {name: [1] for name in names}
            line = m.status()["line"]
            assert line.startswith("version 1 = ")
            assert f"; version 5 is ready, held back by pid {rank.pid} (python" in line
            load = loads_of(m)[rank.pid]
            assert load["holds"] and load["version"] == 1
            assert load["files"] == names and load["open"] == 8
            assert f"pid {rank.pid} " in (m.dot / "status").read_text()
            assert "\nweightfs_holding 1\n" in (m.dot / "metrics").read_text()
            rank("close")
            m.wait_version(5)
            assert rank("read", names[0]) == [5]
        wait_until(lambda: not m.status()["loads"], "a load that does not end")


def test_ranks_start_late(run):
    """Ranks that begin when those before them have closed everything get the same version, for as
    long as --settle has not passed."""
    with mount(run, settle=LONG) as m:
        m.wait_version(1)
        for _ in range(3):
            with loads.Ranks(m.at) as rank:
                assert rank("load") == [1]
            publish(m, run)
        assert m.version() == 1
        assert m.control("release") == "ok: released"
        m.wait_version(4)
        with loads.Ranks(m.at) as rank:
            assert rank("load") == [4]


def test_index_alone_holds(run):
    """The index says what is in which shard: opening it begins the load."""
    with mount(run, settle=LONG) as m:
        m.wait_version(1)
        reading.read_file(m.at / INDEX)
        publish(m, run)
        assert m.version() == 1
        assert loads_of(m)[os.getpid()]["files"] == [INDEX]


def test_maps_for_ever(run):
    """Maps that are never given up: --max-hold ends the hold, they stay what they are, others move
    on, and the next open of the same process is a new load."""
    with mount(run, settle=0.1, max_hold=1) as m, loads.Ranks(m.at) as rank:
        m.wait_version(1)
        names = loads.shards(m.at)
        assert rank("open", names[0]) == [1]
        publish(m, run)
        m.wait_version(2)
        assert "\nweightfs_holds_expired_total 1\n" in (m.dot / "metrics").read_text()
        wait_until(lambda: f"process {rank.pid} (python" in m.log_text(), "no warning")
        reading.drop_caches()
        assert rank("look") == {names[0]: [1]}
        assert rank.pid not in loads_of(m)
        assert rank("open", names[1]) == [2]
        assert rank("look") == {names[0]: [1], names[1]: [2]}
        for number in (3, 4):
            publish(m, run)
            m.wait_version(number)
        rank("close")


def test_a_load_keeps_its_view(run):
    """When the plain paths move on during a load, the process that loads does not: its further
    shards are those of the version that it began with, by the same paths."""
    with mount(run, settle=LONG) as m:
        m.wait_version(1)
        names = loads.shards(m.at)
        with loads.Ranks(m.at) as old, loads.Ranks(m.at) as young:
            assert old("open", names[0]) == [1]
            publish(m, run)
            assert m.version() == 1
            mounted.run("release", m.at)
            m.wait_version(2)
            assert young("open", names[0]) == [2]
            for name in names[1:]:
                assert old("open", name) == [1]
                assert young("open", name) == [2]
                assert old("read", names[0]) == [1]
            have = loads_of(m)
            assert not have[old.pid]["holds"] and have[young.pid]["holds"]
            assert (have[old.pid]["version"], have[young.pid]["version"]) == (1, 2)
            publish(m, run)
            assert m.version() == 2
            # Kept, though it is neither current nor newest nor (with --keep 1) among the last.
            assert 1 in m.versions()


def test_what_does_not_hold(run):
    """versions/N by path, by directory and from within it, bucket/, companions, stat and listings:
    none of them holds, however long they are open."""
    with mount(run, settle=LONG) as m, contextlib.ExitStack() as stack:
        m.wait_version(1)
        name = loads.shards(m.at)[0]

        def keep(fd):
            stack.callback(os.close, fd)
            return fd

        def others():
            tree = keep(os.open(m.tree(1), os.O_RDONLY | os.O_DIRECTORY))
            for one in (name, INDEX):
                keep(os.open(one, os.O_RDONLY, dir_fd=tree))
                keep(os.open(m.tree(1) / one, os.O_RDONLY))
                os.stat(m.at / one)
                keep(os.open(m.tree(1) / one, os.O_RDONLY))
                keep(os.open(m.dot / "current" / one, os.O_RDONLY))
            keep(os.open(m.at / "config.json", os.O_RDONLY))
            keep(os.open(m.dot / "bucket" / "anchors" / "step_000001.safetensors", os.O_RDONLY))
            os.listdir(m.at)

        others()
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
        assert m.status()["loads"] == []
        publish(m, run)
        m.wait_version(2)


def test_settle_0_is_off(run):
    """Without the guard the plain paths follow at once, under an open file too."""
    with mount(run, settle=0) as m, loads.Ranks(m.at) as rank:
        m.wait_version(1)
        names = loads.shards(m.at)
        assert rank("open", names[0]) == [1]
        publish(m, run)
        m.wait_version(2)
        assert rank("open", names[1]) == [2]
        assert m.status()["loads"] == [] and m.status()["settle_seconds"] == 0


def test_looked_up_before_and_opened_after(run):
    """A name is looked up, the plain paths move, and then the file is opened (here through a
    descriptor that is no open yet).  That open is sent back once, with a load begun on what is
    current; where that leads to the same file again, it is opened as it is."""
    with mount(run, settle=LONG) as m:
        m.wait_version(1)
        looked_up, moved, found = threading.Event(), threading.Event(), []

        def late():  # a thread of its own, that looks nothing else up in between
            path = os.open(m.at / loads.shards(m.at)[0], os.O_PATH)
            looked_up.set()
            moved.wait(mounted.WAIT)
            for _ in range(3):
                with open(f"/proc/self/fd/{path}", "rb") as f:
                    found.append(os.getxattr(f.fileno(), "user.weightfs.version"))
            os.close(path)

        thread = threading.Thread(target=late)
        thread.start()
        looked_up.wait(mounted.WAIT)
        publish(m, run)
        m.wait_version(2)
        moved.set()
        thread.join()
        assert found == [b"1"] * 3
        load = loads_of(m)[os.getpid()]
        assert load["opens"] == 0 and load["version"] == 2 and load["holds"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another pid namespace needs root")
def test_another_pid_namespace(run):
    """A mount that cannot see who asks holds for all of them together; versions/N still do not
    hold."""
    away = ["unshare", "--pid", "--fork", "--kill-child"]
    with mount(run, settle=LONG, prefix=away) as m:
        m.wait_version(1)
        name = loads.shards(m.at)[0]
        with loads.Ranks(m.tree(1)) as rank:
            assert rank("open", name) == [1]
        assert m.status()["loads"] == []
        with loads.Ranks(m.at) as one, loads.Ranks(m.at) as other:
            assert one("open", name) == [1]
            assert other("load") == [1]
            assert list(loads_of(m)) == [None]
            publish(m, run)
            assert m.version() == 1
            assert "held back by processes of another pid namespace" in m.status()["line"]
            mounted.run("release", m.at)
            m.wait_version(2)


def test_many_threads(run):
    """Threads of one process that open by both kinds of paths at the same time: one load, and
    every open by plain path is seen."""
    with mount(run, settle=LONG) as m:
        m.wait_version(1)
        names, errors = loads.shards(m.at), []

        def work(top):
            try:
                for _ in range(50):
                    for name in names:
                        with open(top / name, "rb") as f:
                            assert os.getxattr(f.fileno(), "user.weightfs.version") == b"1"
            except (OSError, AssertionError) as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=[top])
                   for top in (m.at, m.tree(1)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        # The kernel says that a file is closed, and does not wait for an answer.
        wait_until(lambda: loads_of(m)[os.getpid()]["open"] == 0, lambda: loads_of(m))
        assert loads_of(m)[os.getpid()]["opens"] == 4 * 50 * len(names)


# ---- the verbs, and who waits ----


def test_verbs(run):
    """hold, release, pin, unpin: what they say and do, and how they fail."""
    with mount(run, settle=0) as m:
        m.wait_version(1)
        assert mounted.run("hold", m.at).stdout == "held for 600 seconds\n"
        publish(m, run)
        assert m.version() == 1 and "; held for " in m.status()["line"]
        assert mounted.run("release", m.at).stdout == "released\n"
        m.wait_version(2)
        mounted.run("hold", m.at, "--for", "50ms")
        publish(m, run)
        m.wait_version(3)
        assert mounted.run("pin", m.at, 1).stdout == "pinned 1\n"
        assert [v["version"] for v in m.status()["versions"] if v["pinned"]] == [1]
        done = mounted.run("pin", m.at, 99, check=False)
        assert done.returncode == 1 and "99" in done.stderr and not done.stdout
        assert mounted.run("unpin", m.at, 1).stdout == "unpinned 1\n"
        done = mounted.run("unpin", m.at, 1, check=False)
        assert done.returncode == 1 and "version 1 is not pinned" in done.stderr
        assert mounted.run("unpin", m.at).stdout == "unpinned all\n"
    for words in (["hold"], ["release"], ["pin", "1"], ["unpin"]):
        done = mounted.run(words[0], run.root, *words[1:], check=False)
        assert done.returncode == 1 and "is not a weightfs mount" in done.stderr


def test_wait(run):
    """wait returns when a version is under versions/; with --current when plain paths show it."""
    with mount(run, settle=LONG) as m:
        m.wait_version(1)
        reading.read_file(m.at / INDEX)
        publish(m, run)
        for words in (["--after", 1], ["--version", 2], ["--version", 1], []):
            number = mounted.run("wait", m.at, "--timeout", 60, *words).stdout
            assert number == "2\n"
            assert loads.shards(m.tree(2))
        done = mounted.run("wait", m.at, "--current", "--after", 1, "--timeout", 2, check=False)
        assert done.returncode == 3 and "version 2 did not come in time" in done.stderr
        assert mounted.run("wait", m.at, "--current").stdout == "1\n"
        m.control("release")
        assert mounted.run("wait", m.at, "--current", "--after", 1).stdout == "2\n"


def test_wait_and_a_run_that_begins_again(run):
    """Who waits for what comes after a version gets the new run's first."""
    with mount(run, settle=0) as m:
        m.wait_version(1)
        publish(m, run)
        publish(m, run)
        with subprocess.Popen([mounted.BINARY, "wait", m.at, "--after", "3", "--timeout", "60"],
                              stdout=subprocess.PIPE, text=True) as waiting:
            wait_until(lambda: has_newest_open(waiting.pid), "it does not wait")
            trl.Run(run.root, "v3", interval=10).sync(loads.fingerprint(50))
            assert waiting.communicate(timeout=mounted.WAIT)[0] == "1\n"


def has_newest_open(pid):
    """Has it come that far?"""
    with contextlib.suppress(OSError):
        return any(os.readlink(fd).endswith("/.weightfs/newest")
                   for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_wait_ends_when_nobody_answers(run):
    """--timeout is kept also when the mount's process does nothing at all."""
    with mount(run, settle=0) as m:
        m.wait_version(1)
        m.process.send_signal(signal.SIGSTOP)
        try:
            done = mounted.run("wait", m.at, "--timeout", 0.1, check=False)
        finally:
            m.process.send_signal(signal.SIGCONT)
        assert done.returncode == 3 and "does not answer" in done.stderr


def wakes(poller):
    """Does it say so within a moment?  (Long where it has to, short where it must not.)"""
    return bool(poller(mounted.WAIT * 1000))


@pytest.mark.parametrize("how", ["poll", "epoll"])
def test_poll(run, how):
    """newest wakes when a version is ready, version when the plain paths move, not before."""
    def watch(fd):
        if how == "poll":
            p = select.poll()
            p.register(fd, select.POLLIN)
            return p.poll
        p = select.epoll()
        p.register(fd, select.EPOLLIN)
        return lambda ms: p.poll(ms / 1000)

    with mount(run, settle=LONG) as m, open(m.dot / "newest", "rb", buffering=0) as n, \
            open(m.dot / "version", "rb", buffering=0) as v:
        m.wait_version(1)
        reading.read_file(m.at / INDEX)
        on_newest, on_version = watch(n), watch(v)
        for file in (n, v):
            assert os.pread(file.fileno(), 64, 0) == b"1\n"
        assert not on_newest(0) and not on_version(0)
        run.sync(loads.fingerprint(2))
        assert wakes(on_newest) and os.pread(n.fileno(), 64, 0) == b"2\n"
        assert not on_version(0)
        m.control("release")
        assert wakes(on_version) and os.pread(v.fileno(), 64, 0) == b"2\n"
        assert not on_newest(0) and not on_version(0)


def test_a_map_alone_holds(run):
    """The file is closed and only its map is left: that is open, too."""
    with mount(run, settle=0.05) as m:
        m.wait_version(1)
        fd = os.open(m.at / loads.shards(m.at)[0], os.O_RDONLY)
        kept = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        os.close(fd)
        publish(m, run)
        publish(m, run)
        wait_until(lambda: loads_of(m)[os.getpid()]["seconds"] > 0.3, "time stands still")
        assert m.version() == 1
        kept.close()
        m.wait_version(3)
