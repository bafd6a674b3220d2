"""The same against every kind of source over the network, at the same time.

A Case is a place of one kind with a run in it; everywhere() does something with all of them at
once, because most of such a test is waiting.  TIMEOUT is what a read is told to take, LIMIT what
none may take.

Where a read is to be right although something is in its way, a machine that stands still may use up
that time; then, and only then, it is allowed to fail, and is made again: see surely().
"""

import contextlib
import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor

from lib import checks, models, oracle, places, reading, trl
from lib.mounted import SLOW, WAIT, Mount, wait_until

TIMEOUT = 4 * SLOW      # --timeout of mounts
LIMIT = 10 * TIMEOUT    # a read that takes longer hangs
LONG = 2 * WAIT         # for what a store tries again several times
STATES = models.states(7, 8, models.SMALL)
MIB = 1 << 20


class Case:
    """A place of one kind and a run of three versions that the oracle sees, too."""

    def __init__(self, name, place, root):
        self.name, self.place, self.root = name, place, root
        models.write_companions(root)
        self.writer = models.publish(trl.Run(root, "v3", interval=4), STATES[:3])
        self.rest = iter(STATES[3:])
        place.upload(root)

    def files(self, number):
        """What a version has to be."""
        return oracle.Oracle(self.root, trust_times=False).files(number)

    def follow(self, m):
        """One more version, seen by a mount."""
        self.sync()
        m.wait_version(self.writer.number, LONG)
        surely_tree(m.at, self.files(self.writer.number))

    def sync(self):
        """One more version."""
        self.writer.sync(next(self.rest))
        self.place.upload(self.root)

    def mount(self, *args, poll=0.1, timeout=TIMEOUT, **kwargs):
        """A mount of the place."""
        return Mount(self.place.url, poll=poll, **kwargs, args=[
            *self.place.args, "--timeout", timeout, "--times", "ignore", *args])


@contextlib.contextmanager
def all_cases(scratch, monkeypatch):
    """{name: Case}, one of each kind, in one environment."""
    places.clean_environment(monkeypatch)
    out = []
    try:
        for name, make in places.KINDS.items():
            out.append(Case(name, make(), scratch / name))
            for key, value in out[-1].place.env.items():
                monkeypatch.setenv(key, value)
        yield {case.name: case for case in out}
    except BaseException as error:
        for case in out:
            case.place.__exit__(type(error), error, None)
        raise
    for case in out:
        case.place.__exit__(None, None, None)


def everywhere(cases, act, names=None):
    """act(case) for all kinds (or those named) at the same time; what failed is said by kind."""
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {name: pool.submit(act, case) for name, case in cases.items()
                   if names is None or name in names}
    for name, future in running.items():
        if future.exception():
            raise AssertionError(f"{name}: {future.exception()}") from future.exception()


def in_time(act):
    """act()'s value, or the errno of its OSError; an assertion when it takes too long."""
    begin = time.monotonic()
    try:
        value = act()
    except OSError as error:
        value = error.errno
    took = time.monotonic() - begin
    assert took < LIMIT, f"{took:.1f} s"
    return value


def surely(act):
    """The value of act(), a read that may fail only when its time is over; then it is made again.
    It has not been given its time when it fails much before TIMEOUT: a store that falls silent has
    used up half of it, and one that asks for a second's rest is not asked in the last second."""
    end = time.monotonic() + LONG
    while True:
        begin = time.monotonic()
        try:
            return act()
        except OSError as error:
            took = time.monotonic() - begin
            if error.errno != errno.EIO or took < 0.65 * TIMEOUT or time.monotonic() > end:
                raise


def surely_file(path):
    """All of a file."""
    return surely(lambda: reading.read_file(path))


def surely_tree(top, want):
    """checks.assert_tree(), by such reads."""
    checks.assert_tree(top, want, read=surely_file)


def read(path, data):
    """Reads a file: True when it is right, False when that is EIO; all else fails."""
    got = in_time(lambda: reading.read_file(path))
    assert os.stat(path).st_size == len(data)
    if got == errno.EIO:
        return False
    assert not isinstance(got, int), errno.errorcode[got]
    assert len(got) == len(data) and got == data
    return True


def surely_at(f, at, length):
    """Bytes of an open file."""
    return surely(lambda: os.pread(f.fileno(), length, at))


def read_at(f, at, length):
    """Bytes of an open file, or an errno."""
    return in_time(lambda: os.pread(f.fileno(), length, at))


def eventually(path, data):
    """Now that all is well it is read."""
    wait_until(lambda: read(path, data), f"{path} cannot be read")


def forget(f):
    """Asks the kernel to drop an open file's pages."""
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
