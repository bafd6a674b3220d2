"""Those who watch the mount get an event at each switch."""

import ctypes
import os
import select
import shutil
import signal
import struct
import subprocess
import time

import pytest

from lib import models, mounted, passthrough, trl
from lib.mounted import Mount, wait_until

IN_ATTRIB = 0x4
IN_ALL = 0xFFF
FILE = "model.safetensors"


class Watcher:
    """An inotify instance."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK)
        assert self.fd >= 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def add(self, path, mask=IN_ATTRIB):
        """Watches a path; its number."""
        number = self.libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        assert number >= 0, os.strerror(ctypes.get_errno())
        return number

    def events(self, wanted, timeout=mounted.WAIT):
        """Collects (watch, mask, name) until all of `wanted` (watch, name) have come."""
        end, seen = time.monotonic() + timeout, []
        while not wanted <= {(number, name) for number, _, name in seen}:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"no event in time: {seen}"
            blob, at = os.read(self.fd, 65536), 0
            while at < len(blob):
                number, mask, _, length = struct.unpack_from("iIII", blob, at)
                name = blob[at + 16:at + 16 + length].rstrip(b"\0").decode()
                seen.append((number, mask, name))
                at += 16 + length
        return seen


@pytest.fixture
def run(bucket):
    """A run with one version out."""
    run = trl.Run(bucket, "v3", interval=50)
    run.sync(models.states(1, 1, models.SMALL)[0])
    return run


@pytest.mark.parametrize("materialize", ["never", "always"])
def test_events_at_each_switch(bucket, run, materialize):
    """For the directory with the name, for the file that the name meant, for version and newest."""
    if materialize == "always" and passthrough.why_not():
        pytest.skip(passthrough.why_not())
    with Mount(bucket, args=["--materialize", materialize]) as m, Watcher() as w:
        assert m.status()["serving"]["inotify"] == {"on": True, "why": None}
        top, dot = w.add(m.at), w.add(m.dot)
        for number, state in enumerate(models.states(2, 3, models.SMALL), 2):
            wait_until(lambda n=number: materialize == "never" or f"version {n - 1} was"
                       in (m.status()["serving"]["prepared"] or ""), "nothing is written out")
            file = w.add(m.at / FILE)
            run.sync(state)
            seen = w.events({(top, FILE), (dot, "version"), (dot, "newest"), (file, "")})
            assert all(mask == IN_ATTRIB for _, mask, _ in seen), seen
            assert m.version() == number
            assert os.getxattr(m.at / FILE, "user.weightfs.version") == str(number).encode()


def test_nobody_else_may(bucket, run):
    """Times are not anybody's to set, whoever asks."""
    with Mount(bucket) as m:
        for path in (m.at, m.at / FILE, m.dot / "version"):
            with pytest.raises(OSError, match="Read-only"):
                os.utime(path)
            with pytest.raises(OSError, match="Read-only"):
                os.chmod(path, 0o600)


def test_off(bucket, run):
    """Switched off, or refused by the kernel before it asks us: status says so."""
    with Mount(bucket, args=["--inotify", "off"]) as m:
        assert m.status()["serving"]["inotify"] == {"on": False, "why": "--inotify off"}
    with Mount(bucket, args=["-o", "ro"]) as m:
        inotify = m.status()["serving"]["inotify"]
        assert not inotify["on"] and "read-only" in inotify["why"]
        run.sync(models.states(2, 1, models.SMALL)[0])
        m.wait_version(2)


# Answers about attributes never come while FLAG exists, and FLAG.asked says that one was asked for.
SILENT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
int fuse_reply_attr(void *req, const void *attr, double timeout)
{
	int (*real)(void *, const void *, double) = dlsym(RTLD_NEXT, "fuse_reply_attr");

	if (access(FLAG, F_OK) == 0) {
		close(open(FLAG ".asked", O_CREAT | O_WRONLY, 0600));
		for (;;)
			pause();
	}
	return real(req, attr, timeout);
}
"""


@pytest.mark.skipif(mounted.SLOW != 1, reason="sanitizers want to be the first library")
def test_killed_while_it_touches(bucket, run, tmp_path):
    """The herald's unanswered request does not keep a killed mount from being dead."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    library, flag, asked = (tmp_path / name for name in ("silent.so", "flag", "flag.asked"))
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", f'-DFLAG="{flag}"', "-o",
                    library, "-ldl"], input=SILENT, text=True, check=True)
    with Mount(bucket, prefix=["env", f"LD_PRELOAD={library}"],
               expect_exit=-signal.SIGKILL) as m:
        m.wait_version(1)
        flag.touch()
        run.sync(models.states(2, 1, models.SMALL)[0])
        wait_until(asked.exists, "nobody was asked")
        m.process.kill()
        assert m.process.wait(timeout=mounted.WAIT) == -signal.SIGKILL
        with pytest.raises(OSError, match="not connected"):
            os.stat(m.at)


def test_events_of_one_of_several_runs(bucket):
    """In the directory of the run that has moved, and in no other."""
    states = models.states(4, 3, models.SMALL)
    runs = {name: trl.Run(bucket / name, "v3", interval=50) for name in ("a", "team/b")}
    for one in runs.values():
        one.sync(states[0])
    with Mount(bucket) as m, Watcher() as w:
        tops = {name: w.add(m.at / name) for name in runs}
        for number, (name, one) in enumerate(runs.items(), 1):
            assert m.run(name).status()["serving"]["inotify"] == {"on": True, "why": None}
            one.sync(states[number])
            seen = w.events({(tops[name], FILE)})
            assert {watch for watch, _, _ in seen} == {tops[name]}, seen
            m.run(name).wait_version(2)
