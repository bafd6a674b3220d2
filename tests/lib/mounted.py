"""A mount to look at: starts the program, waits until it is usable, and leaves nothing behind.

Every mount has its own directories, its own cache and an outside watchdog that aborts the FUSE
connection if a test hangs in it (a process stuck in a page fault cannot help itself).
WEIGHTFS_VARIANT chooses the binary, WEIGHTFS overrides it.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from lib import leaks

TOP = Path(__file__).resolve().parents[2]
VARIANT = os.environ.get("WEIGHTFS_VARIANT", "release")
BINARY = Path(os.environ.get("WEIGHTFS", TOP / "build" / VARIANT / "weightfs"))
SLOW = 5 if VARIANT in ("asan", "tsan") else 1
# First thing in a mount namespace of one's own: its copies of the mounts of tests that run at the
# same time would keep those alive after their unmounting.
ALONE = """
awk '$3 ~ /^fuse/ { print $2 }' /proc/mounts | while read -r copy; do umount -c -l "$copy"; done
"""
# Far above what anything takes, also on a machine that is slow or stands still for a while.
WAIT = 60 if SLOW == 1 else 30 * SLOW
LIFETIME = 400 if SLOW == 1 else 150 * SLOW
SANITIZER = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer",
             "runtime error:")


def run(*args, check=True, timeout=WAIT, **kwargs):
    """Runs the program with these arguments to its end; output as text."""
    done = subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True,
                          timeout=timeout, check=False, **kwargs)
    assert not any(s in done.stderr for s in SANITIZER), done.stderr
    if check:
        assert done.returncode == 0, (args, done.returncode, done.stderr)
    return done


def wait_until(condition, what, timeout=None):
    """Looks until condition() is true and returns its value; fails with what() or `what`."""
    end = time.monotonic() + (timeout or WAIT)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.01)


def deliver(process, number):
    """Sends a signal and waits until it has been taken."""
    process.send_signal(number)

    def taken():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            pending = [int(line.split()[1], 16) for line in lines
                       if line.startswith(("SigPnd:", "ShdPnd:"))]
            return not any(mask >> (number - 1) & 1 for mask in pending)
        return True

    wait_until(taken, f"signal {number} is not taken")


def is_mounted(path):
    """Is this path a mount point (also a dead one)?"""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        return any(line.split()[4] == str(path) for line in f)


def threads_of(pid):
    """What each thread of a process waits in: its name, the kernel's function and stack."""
    said = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for name in ("comm", "wchan", "stack"):
            with contextlib.suppress(OSError):
                said.append((task / name).read_text().strip())
    return "\n".join(said)


def remove_in_use(path):
    """Removes a directory into which a program may be writing just now."""
    def gone():
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)

    wait_until(gone, f"{path} cannot be removed")


def is_copied(path):
    """Is it mounted in a mount namespace that somebody made meanwhile?  Then it lives on there."""
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if any(line.split()[4] == str(path) for line in table.read_text().splitlines()):
                return True
    return False


def abort_file(path):
    """The kernel's switch that ends a FUSE connection."""
    return f"/sys/fs/fuse/connections/{os.minor(os.stat(path).st_dev)}/abort"


def unmount(path):
    """Unmounts by fusermount3, lazily if it is busy for long."""
    for attempt in range(20):
        done = subprocess.run(["fusermount3", "-u", str(path)], capture_output=True, check=False)
        if done.returncode == 0 or not is_mounted(path):
            return
        time.sleep(0.05 * (attempt + 1))
    subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


class Shown:
    """What a directory with a .weightfs says: a mount's, or that of a run in it."""

    at = dot = None

    def log_text(self):
        """What the daemon has said so far."""
        raise NotImplementedError

    def version(self):
        """The current version as a number, or None while there is none."""
        text = (self.dot / "version").read_text().strip()
        return int(text) if text.isdigit() else None

    def status(self):
        """status.json, parsed."""
        return json.loads((self.dot / "status.json").read_text())

    def problem(self, name):
        """The sentence about an object, or None; names are compared by their end."""
        for one in self.status()["problems"]:
            if one["object"] == name:
                return one["error"]
        return None

    def control(self, command):
        """Writes one command and returns the reply line."""
        fd = os.open(self.dot / "control", os.O_RDWR)
        try:
            os.write(fd, command.encode() + b"\n")
            return os.pread(fd, 4096, 0).decode().strip()
        finally:
            os.close(fd)

    def wait_version(self, number, timeout=None):
        """Waits until this version is the current one."""
        wait_until(lambda: self.version() == number,
                   lambda: f"version is {self.version()}, not {number}: "
                           f"{json.dumps(self.status(), indent=1)}\n{self.log_text()[-3000:]}",
                   timeout)

    def wait_problem(self, name, *parts):
        """Waits until status names this object, in a sentence that has all of these parts, and
        returns it.  What is written in more than one step may have had another before."""
        def found():
            sentence = self.problem(name)
            return sentence and all(part in sentence for part in parts) and sentence

        return wait_until(found, lambda: f"no problem with {name} that has {parts}: "
                                         f"{self.status()}\n{self.log_text()[-3000:]}")

    def wait_well(self):
        """Waits until there is no problem, after a change: a look may have met it half done."""
        wait_until(lambda: self.status()["problems"] == [], self.status)

    def versions(self):
        """The numbers listed under versions/, ascending."""
        return sorted(int(name) for name in os.listdir(self.dot / "versions"))

    def tree(self, number):
        """The directory of one version."""
        return self.dot / "versions" / str(number)

    def wait_tree(self, number):
        """The same, when it is there: of a run that a mount finds, the newest version is shown at
        once, those below it one after the other."""
        wait_until(self.tree(number).exists, lambda: f"no {number} among {self.versions()}")
        return self.tree(number)


class Mount(Shown):
    """One foreground mount, a context manager.  `at`: its mount point, `dot`: .weightfs in it.

    The load guard is off unless a settle time is given: most tests read while versions arrive and
    look for the newest."""

    def __init__(self, source, base=None, shard_size=None, keep=None, poll=0.1, hole_grace=0,
                 settle=0, args=(), prefix=(), work=None, expect_exit=0,
                 lifetime=LIFETIME):
        self.source = source if "://" in str(source) else Path(source)
        self.prefix, self.expect_exit, self.lifetime = list(prefix), expect_exit, lifetime
        self.work = Path(work or tempfile.mkdtemp(prefix="weightfs-test-"))
        self.own_work = work is None
        self.at = self.work / "mnt"
        self.dot = self.at / ".weightfs"
        self.log_path = self.work / "log"
        self.args = ["--poll", poll, "--hole-grace", hole_grace, "--settle", settle,
                     "--cache-dir", self.work / "cache"]
        for flag, value in (("--base", base), ("--shard-size", shard_size), ("--keep", keep)):
            if value is not None:
                self.args += [flag, value]
        self.args += list(args)
        self.process = self.watchdog = self.log = None

    def __enter__(self):
        for folder in (self.at, self.work / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self._stop()
            self._remove_work()
            raise
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None and self.process.poll() is None:
            leaks.SEARCH.mount(self.dot, self.at)
        code = self._stop()
        text = self.log_text()
        self._remove_work()
        found = [line for line in text.splitlines() if any(s in line for s in SANITIZER)]
        if kind is None:
            assert not found, text
            assert code == self.expect_exit, f"exit code {code}\n{text[-4000:]}"

    def _remove_work(self):
        if self.own_work:
            leaks.SEARCH.tree(self.work)
            shutil.rmtree(self.work, ignore_errors=True)

    def _start(self):
        reader, writer = os.pipe()
        command = [*self.prefix, BINARY, "mount", "-f", "--ready-fd", writer, *self.args,
                   self.source, self.at]
        self.log = open(self.log_path, "ab")
        try:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=self.log,
                stderr=self.log, pass_fds=[writer])
        finally:
            os.close(writer)
        with open(reader, "rb", buffering=0) as pipe:
            ready, _, _ = select.select([pipe], [], [], WAIT)
            word = pipe.read(16) if ready else b"(nothing in time)"
        assert word == b"ready\n", f"the mount said {word!r}: {self.log_text()[-4000:]}"
        self._watch()

    def live_on(self):
        """From now on it has its lifetime again: for one that serves many tests."""
        self._unwatch()
        self._watch()

    def _unwatch(self):
        if self.watchdog:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.watchdog.pid, signal.SIGKILL)
            self.watchdog.wait()
        self.watchdog = None

    def _watch(self):
        with contextlib.suppress(OSError):
            self.watchdog = subprocess.Popen(
                ["sh", "-c", f"sleep {self.lifetime}; echo 1 > {abort_file(self.at)}"],
                start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _stop(self):
        if is_mounted(self.at):
            unmount(self.at)
        code = None
        if self.process:
            code = self._reap()
        self._unwatch()
        if self.log:
            self.log.close()
        return code

    def _reap(self):
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=5)
            if is_copied(self.at):
                self.process.terminate()
        left = threads_of(self.process.pid)
        with contextlib.suppress(OSError), open(abort_file(self.at), "w") as f:
            f.write("1")
        self.process.kill()
        self.process.wait()
        return f"killed: it did not end after the unmount\n{left}"

    def log_text(self):
        """What the daemon has said so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def run(self, path):
        """One of several runs, by its directory."""
        return RunShown(self, path)


class RunShown(Shown):
    """A run of a mount that has several."""

    def __init__(self, mount, path):
        self.mount, self.at = mount, mount.at / path
        self.dot = self.at / ".weightfs"

    def log_text(self):
        return self.mount.log_text()
