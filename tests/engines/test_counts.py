"""What reading asks of the daemon, counted: requests, bytes and lookups; never time."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lib import models, mounted, oracle, reading, trl
from lib.mounted import Mount, wait_until
from lib.nginx import Nginx

FILE = "model.safetensors"
SPEC = {"big": ("BF16", (8, 1024, 1024)), "small": ("BF16", (100, 3))}
RECLAIMED = 16 * 4096  # pages that a machine short of memory may have taken back meanwhile
READ_ALL = ("import os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\nn=0\n"
            "while (b:=os.read(fd,1<<20)): n+=len(b)\nprint(n)")
READ_MAP = ("import mmap,os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\n"
            "m=mmap.mmap(fd,0,prot=mmap.PROT_READ)\nprint(sum(len(m[i:i+(1<<20)]) for i in "
            "range(0,len(m),1<<20)))")
BACKWARDS = READ_MAP.replace("range(0,len(m),1<<20)", "reversed(range(0,len(m),1<<20))")


@pytest.fixture(autouse=True)
def caches_are_kept():
    """What is counted here is counted alone."""
    with reading.kept_caches():
        yield


@pytest.fixture(name="m")
def fixture_m(bucket):
    """A mount of 16 MiB with one delta on top."""
    run = trl.Run(bucket, "v3", interval=50)
    models.publish(run, models.states(1, 2, SPEC, density=0.002))
    with Mount(bucket, args=["--materialize", "never"]) as m:
        m.wait_version(2)
        yield m


def counters(m):
    """The daemon's own counts."""
    return m.status()["counters"]


def spent(m, before):
    """What was counted since."""
    after = counters(m)
    return {key: after[key] - before[key] for key in after}


def drop(path):
    """Throws the file's pages away."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("program", [READ_ALL, READ_MAP, BACKWARDS])
def test_each_byte_once(m, program):
    """Four processes on one cold file fetch it once between them, whichever way they go."""
    path = m.at / FILE
    size = path.stat().st_size
    before = counters(m)
    readers = [subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
               for _ in range(4)]
    for reader in readers:
        assert int(reader.communicate()[0]) == size
    used = spent(m, before)
    assert size <= used["read_bytes"] <= 1.02 * size, used
    window = m.status()["serving"]["read_ahead_kb"] << 10
    most = 2 * size // min(window, 1 << 20) + 64
    if program == BACKWARDS:
        # How large the pieces are depends on who comes first, and four that race on a busy
        # machine cut each other's short; but never page by page.
        most = size // (16 << 10)
    assert used["reads"] <= most, used


def test_second_time_is_free(m, bucket):
    """Re-opened, mapped, through another name: no request; after a drop: all of them again."""
    want = oracle.Oracle(bucket).files(2)[FILE]
    assert reading.read_file(m.at / FILE) == want
    before = counters(m)
    for path in (m.at / FILE, m.tree(2) / FILE, m.dot / "current" / FILE):
        assert reading.read_file(path) == want
        assert reading.read_mapped(path, shared=True) == want
    used = spent(m, before)
    assert used["read_bytes"] <= RECLAIMED, used
    assert used["opens"] <= 10
    drop(m.at / FILE)
    assert reading.read_file(m.at / FILE) == want
    assert spent(m, before)["read_bytes"] == len(want)


def test_lookups(m):
    """A plain name is asked for each time, and once; an immutable one not at all."""
    os.stat(m.at / FILE)
    os.stat(m.tree(2) / FILE)
    before = counters(m)
    for _ in range(10):
        os.stat(m.at / FILE)
    plain = spent(m, before)["lookups"]
    assert 10 <= plain <= 16, plain  # and those of status.json itself
    tree = os.open(m.tree(2), os.O_PATH)
    try:
        before = counters(m)
        for _ in range(10):
            os.stat(FILE, dir_fd=tree)
        assert spent(m, before)["lookups"] <= 6
    finally:
        os.close(tree)


def test_reads_that_wait_keep_nobody_else(bucket, scratch):
    """More readers wait for the network than the mount has threads at rest: names are looked up,
    files opened and status read all the same."""
    run = trl.Run(bucket, "v3")
    run.sync(models.states(1, 1, {"big": ("BF16", (4096, 4096))})[0])
    want = oracle.Oracle(bucket).files(1)["model.safetensors"]
    with Nginx(bucket, scratch / "nginx") as web, \
            Mount(web.url("html") + "/", poll=3600, args=["--materialize", "never",
                                                          "--timeout", "600"]) as m:
        m.wait_version(1)
        path, got = m.at / "model.safetensors", {}
        threads = Path(f"/proc/{m.process.pid}/task")
        before = len(os.listdir(threads))
        places = [len(want) * i // 50 for i in range(1, 49)]
        workers = Path(f"/proc/{web.process.pid}/task/{web.process.pid}/children")
        stopped = [web.process.pid, *map(int, workers.read_text().split())]
        with open(path, "rb") as f:
            def read(at):
                got[at] = os.pread(f.fileno(), 4096, at)

            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            readers = [threading.Thread(target=read, args=[at]) for at in places]
            looker = threading.Thread(
                target=lambda: (os.stat(path), os.listdir(m.at), open(path, "rb").close(),
                                m.status()), daemon=True)
            try:
                for one in readers:
                    one.start()
                wait_until(lambda: len(os.listdir(threads)) > before + 16, "too few wait")
                looker.start()
                looker.join(mounted.WAIT)
                assert not looker.is_alive(), "it waits as well"
                assert any(one.is_alive() for one in readers), "nobody had to wait"
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                for one in readers:
                    one.join()
        assert all(got[at] == want[at:at + 4096] for at in places)
