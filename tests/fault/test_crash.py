"""A cache that survives anything: kill -9 at any moment, damage, foreign files, a full disk.

After each of these every byte is right, and of what the cache still has (by a second implementation
of its format) nothing is fetched again.  SOAK_KILLS says how many kills there are (5).
"""

import contextlib
import itertools
import mmap
import os
import random
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest

from lib import blockfiles, checks, models, oracle, places, reading, trl
from lib.blockfiles import PIECE
from lib.mounted import BINARY, Mount, is_mounted, remove_in_use, unmount, wait_until

KILLS = int(os.environ.get("SOAK_KILLS", "5"))
MODEL = {"a.weight": ("BF16", (1500, 1000)), "b.weight": ("BF16", (700, 1600)),
         "c.weight": ("BF16", (33,))}
MIB = 1 << 20


class Source:
    """A growing run in a place, next to a large file; what each version is, without reading it."""

    def __init__(self, place, root, seed=1):
        self.place, self.root = place, root
        root.mkdir()
        self.rng, self.state = models.start(seed, MODEL)
        self.writer = trl.Run(root, "v3", interval=5)
        self.versions, self.header = {}, None
        self.data, self.extra = np.random.default_rng(seed), "big.dat"
        self.big = self.data.bytes(12 * MIB + 1234)
        place.put("big.dat", self.big)
        self.grow()

    def add_file(self):
        """Another file, which nobody has read yet."""
        self.extra = f"extra{len(self.place.known)}.dat"
        self.place.put(self.extra, self.data.bytes(4 * MIB + 99))

    def grow(self):
        """Publishes one more version."""
        path = self.writer.sync(self.state)
        blob = path.read_bytes()
        if self.header is None:
            self.header = oracle.rewrite_metadata(blob)
        self.versions[self.writer.number] = oracle.Oracle(self.root).refill(self.header, self.state)
        self.state = models.step(self.rng, self.state)
        self.place.put(str(path.relative_to(self.root)), blob, path.stat().st_mtime)

    @property
    def newest(self):
        """The newest version's number."""
        return self.writer.number

    def fetched(self, since):
        """{key: pieces} that the server was asked for."""
        out = {}
        for target, first, last in self.place.ranges(self.place.data, since):
            key = self.place.key_of(target)
            if key is not None:
                last = len(self.place.known[key]) - 1 if last is None else last
                out.setdefault(key, []).extend(blockfiles.pieces_in(first, last))
        return out


def mount(source, work, *args, **kwargs):
    """A mount of the source with a cache that lasts."""
    return Mount(source.place.url, work=work, keep=100, poll=0.05, **kwargs,
                 args=["--times", "ignore", *source.place.args, *args])


def read_pieces(path, data, pieces):
    """Reads these pieces and, as far as the kernel is concerned, nothing else."""
    buffer = mmap.mmap(-1, PIECE)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for n in pieces:
            got = os.preadv(fd, [buffer], n * PIECE)
            assert buffer[:got] == data[n * PIECE:(n + 1) * PIECE], (path, n)
    finally:
        buffer.close()
        os.close(fd)


def check_versions(m, source):
    """Every version that the mount has."""
    m.wait_version(source.newest)
    for number in m.versions():
        if number:
            checks.assert_same("model.safetensors", reading.read_file(
                m.tree(number) / "model.safetensors"), source.versions[number], number)
    assert reading.read_file(m.at / "big.dat") == source.big


# ---- kills ---------------------------------------------------------------------------------------


class Reader(threading.Thread):
    """Reads at random, and compares, until the file system is gone."""

    def __init__(self, m, source, seed):
        super().__init__(daemon=True)
        self.m, self.source, self.rng = m, source, random.Random(seed)
        self.wrong, self.count = None, 0

    def run(self):
        while True:
            try:
                self.once()
            except (OSError, ValueError):
                if self.m.process.poll() is not None:
                    return

    def once(self):
        """One file, a few ranges of it."""
        number = self.m.version()
        key = self.rng.choice(["big.dat", self.source.extra])
        path, want = self.m.dot / "bucket" / key, self.source.place.known[key]
        if number and self.rng.random() < 0.5:
            path, want = self.m.tree(number) / "model.safetensors", self.source.versions[number]
        with open(path, "rb", buffering=0) as f:
            at = self.rng.randrange(len(want))
            for _ in range(self.rng.randrange(1, 12)):
                length = self.rng.choice([100, 70000, 700000])
                # One that is killed in the middle has given what it had.
                got = os.pread(f.fileno(), length, at)
                if not got or got != want[at:at + len(got)]:
                    self.wrong = (path, at, length)
                self.count += 1
                at = (at + length) % len(want)


def work_and_kill(source, work, rng, *args):
    """One life: reads, new versions, and SIGKILL before it is ready or some time after."""
    readers = []
    with contextlib.ExitStack() as stack:
        if rng.random() < 0.2:
            m = Mount(source.place.url, work=work)
            for folder in (m.at, work / "cache"):
                folder.mkdir(parents=True, exist_ok=True)
            early = subprocess.Popen(
                [str(w) for w in (BINARY, "mount", "-f", *m.args, *source.place.args, *args,
                                  source.place.url, m.at)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            time.sleep(rng.random() * 0.1)
            early.kill()
            early.wait()
            early.stdout.read()  # until a helper that mounts for it has ended, too
            early.stdout.close()
            if is_mounted(m.at):
                unmount(m.at)
            return
        m = stack.enter_context(mount(source, work, *args, expect_exit=-9))
        readers = [Reader(m, source, rng.random()) for _ in range(3)]
        for reader in readers:
            reader.start()
        end = time.monotonic() + rng.random() * 0.6
        if rng.random() < 0.6:
            time.sleep(rng.random() * 0.2)
            source.grow()
        time.sleep(max(0, end - time.monotonic()))
        m.process.kill()
        m.process.wait()
        for reader in readers:
            reader.join()
            assert reader.wrong is None


def some_pieces(before, rng, count):
    """Pieces that the cache still has, in an order that nothing is read ahead for."""
    every = [(key, n) for key, one in before.items() for n in one.good]
    return rng.sample(every, len(every) if count is None else min(count, len(every)))


@pytest.mark.parametrize("kind,limit", [("http", None), ("hub", "16M")], ids=["roomy", "tiny"])
def test_kills(kind, limit, scratch, monkeypatch):
    """kill -9 at random moments of reading, evicting and changing versions, restart on the same
    cache: every byte right, and nothing fetched that the cache still had."""
    rng, args = random.Random(os.environ.get("SOAK_SEED", kind)), []
    if limit:
        args = ["--cache-size", limit]
    kills = -(-KILLS // 2)
    total = dict.fromkeys(("kept", "torn", "fetched", "again", "evicted", "calm"), 0)
    with places.KINDS[kind]() as place:
        places.enter(place, monkeypatch)
        source, work = Source(place, scratch / "run"), scratch / "work"
        for _ in range(kills):
            source.add_file()
            work_and_kill(source, work, rng, *args)
            before = blockfiles.kept(work / "cache")
            mark = place.data.mark()
            with mount(source, work, *args) as m:
                for key, n in some_pieces(before, rng, 40 if limit else None):
                    read_pieces(m.dot / "bucket" / key, place.known[key], [n])
                fetched = source.fetched(mark)
                evicted = m.status()["blocks"]["evicted_bytes"]
                again = sum(len(one.good & set(fetched.get(key, ())))
                            for key, one in before.items())
                assert again * PIECE <= evicted, (again, evicted)
                check_versions(m, source)
                if limit:
                    assert m.status()["blocks"]["disk_bytes"] <= 17 * MIB
            total["kept"] += sum(len(one.good) for one in before.values())
            total["torn"] += sum(len(one.recorded - one.good) for one in before.values())
            total["fetched"] += sum(map(len, source.fetched(mark).values()))
            total["again"] += again
            total["evicted"] += evicted // PIECE
            total["calm"] += evicted == 0
    print(f"{kills} kills, pieces: {total}")
    assert total["kept"] > 0
    assert limit or total["again"] == 0


# ---- damage --------------------------------------------------------------------------------------


def write_at(path, at, data):
    """Overwrites a part of a file."""
    with path.open("r+b") as f:
        f.seek(at)
        f.write(data)


def flip(path, at, bit=3):
    """Flips a bit."""
    with path.open("rb") as f:
        f.seek(at)
        byte = f.read(1)[0]
    write_at(path, at, bytes([byte ^ (1 << bit)]))


def another(one, all_of_them):
    """An object that is not this one."""
    return next(o for o in all_of_them.values() if o.key != one.key)


def replaced(path, make):
    """Something else where a file was."""
    path.unlink()
    make(path)


def letter(path):
    """A file outside of the cache that this file is in."""
    return path.parents[2] / "letter"


DAMAGE = {
    "a bit of data": lambda o, _: flip(o.data, 5 * PIECE + 77),
    "zeros": lambda o, _: write_at(o.data, 3 * PIECE - 5, bytes(2 * PIECE)),
    "data cut": lambda o, _: os.truncate(o.data, 7 * PIECE + 11),
    "data empty": lambda o, _: os.truncate(o.data, 0),
    "data gone": lambda o, _: o.data.unlink(),
    "a bit of a record": lambda o, _: flip(o.index, 4096 + 8 * 6 + 2),
    "records of zeros": lambda o, _: write_at(o.index, 4096, bytes(8 * 4)),
    "random records": lambda o, _: write_at(o.index, 4096, random.Random(1).randbytes(8 * 9)),
    "index cut": lambda o, _: os.truncate(o.index, 4096 + 8 * 9 + 3),
    "index empty": lambda o, _: os.truncate(o.index, 0),
    "index gone": lambda o, _: o.index.unlink(),
    "a bit of the header": lambda o, _: flip(o.index, 33),
    "garbage for an index": lambda o, _: o.index.write_bytes(b"#!/bin/sh\n" * 2000),
    "another's index": lambda o, all_: shutil.copy(another(o, all_).index, o.index),
    "another's data": lambda o, all_: shutil.copy(another(o, all_).data, o.data),
    "both another's": lambda o, all_: [shutil.copy(another(o, all_).index, o.index),
                                       shutil.copy(another(o, all_).data, o.data)],
    "a directory for data": lambda o, _: replaced(o.data, os.mkdir),
    "a fifo for an index": lambda o, _: replaced(o.index, os.mkfifo),
    "a link for data": lambda o, _: replaced(o.data, lambda p: p.symlink_to(letter(p))),
}
UNREAD = {"a directory for data", "a fifo for an index", "a link for data"}
UNCOUNTED = {"records of zeros", "index empty", "index gone", *UNREAD}


@pytest.fixture
def warm(scratch, monkeypatch):
    """A run that has been read through a mount, once: (source, work directory, its cache)."""
    with places.WebPlace() as place:
        places.enter(place, monkeypatch)
        source = Source(place, scratch / "run")
        source.grow()
        work = scratch / "work"
        with mount(source, work) as m:
            check_versions(m, source)
        before = blockfiles.kept(work / "cache")
        assert {one.good for one in before.values()} == {
            frozenset(range(blockfiles.pieces_of(one.size))) for one in before.values()}
        yield source, work, before


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage(warm, damage):
    """Found, counted, fetched again, and only that; then the cache is whole again."""
    source, work, before = warm
    somebodys = letter(before["big.dat"].data)
    somebodys.write_text("dear")
    DAMAGE[damage](before["big.dat"], before)
    left = {}
    if damage not in UNREAD:
        left = blockfiles.kept(work / "cache")
    mark = source.place.data.mark()
    with mount(source, work) as m:
        check_versions(m, source)
        blocks = m.status()["blocks"]
        assert (blocks["damaged"] > 0) == (damage not in UNCOUNTED), blocks
        assert f"\nweightfs_block_damaged_total {blocks['damaged']}\n" in \
            (m.dot / "metrics").read_text()
    fetched = source.fetched(mark)
    for key, one in before.items():
        lost = set(one.good) - set(left[key].good if key in left else ()) \
            if damage not in UNREAD else set(one.good if key == "big.dat" else ())
        assert set(fetched.get(key, ())) == lost, key
        assert len(fetched.get(key, ())) == len(lost), "something was fetched twice"
    if damage not in UNREAD:
        assert {k: o.good for k, o in blockfiles.kept(work / "cache").items()} == \
            {k: o.good for k, o in before.items()}
    assert somebodys.read_text() == "dear"


def test_foreign_files(warm):
    """What is not the cache's is left alone and disturbs nobody."""
    source, work, _ = warm
    blocks = work / "cache" / "blocks"
    foreign = {blocks / "README": b"a person's", blocks / "short.data": b"x",
               blocks / ("0" * 32): b"no suffix", blocks / ("z" * 32 + ".index"): b"not hex",
               work / "cache" / "notes.txt": b"y"}
    for path, data in foreign.items():
        path.write_bytes(data)
    (blocks / "folder.index").mkdir()
    (blocks / ("a" * 32 + ".index")).mkdir()
    (blocks / ("b" * 32 + ".data")).write_bytes(bytes(300000))
    (blocks / ("c" * 32 + ".index")).write_bytes(b"\xff" * 9000)
    mark = source.place.data.mark()
    with mount(source, work) as m:
        check_versions(m, source)
    assert source.fetched(mark) == {}
    assert {path: path.read_bytes() for path in foreign} == foreign
    assert (blocks / "folder.index").is_dir()


@pytest.mark.parametrize("what", ["blocks", "cache"])
def test_cache_vanishes(warm, what):
    """Its directory removed under a mount: not an error; the bytes are fetched."""
    source, work, _ = warm
    with mount(source, work) as m:
        m.wait_version(source.newest)
        remove_in_use(work / "cache" / "blocks" if what == "blocks" else work / "cache")
        check_versions(m, source)
        source.grow()
        check_versions(m, source)


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(scratch):
    """64 MB of memory as a file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    at = scratch / "work" / "cache"
    at.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", at], check=False,
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield at
    subprocess.run(["umount", "-l", at], check=True)


def fill(path):
    """Writes until there is no space."""
    with path.open("wb", buffering=0) as f:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                for _ in itertools.count():
                    f.write(bytes(size))


def test_larger_than_the_disk(small_disk, scratch, monkeypatch):
    """More than fits is read, twice; the oldest goes, and the disk never fills up."""
    with places.WebPlace() as place:
        source = Source(places.enter(place, monkeypatch), scratch / "run")
        huge = np.random.default_rng(5).bytes(90 * MIB)
        place.put("huge.bin", huge)
        with mount(source, scratch / "work") as m:
            check_versions(m, source)
            assert reading.read_direct(m.dot / "bucket" / "huge.bin") == huge
            read_pieces(m.dot / "bucket" / "huge.bin", huge, range(80))
            check_versions(m, source)
            blocks = m.status()["blocks"]
            assert blocks["evicted_bytes"] > 40 * MIB and blocks["disk_bytes"] < 64 * MIB
            assert shutil.disk_usage(small_disk).free > 0


@pytest.mark.parametrize("when", ["before", "while"])
def test_full_disk(small_disk, scratch, monkeypatch, when):
    """Filled up by others before the mount or under it: reads go on uncached, nothing is an error,
    and with space again it caches again."""
    with places.WebPlace() as place:
        source = Source(places.enter(place, monkeypatch), scratch / "run")
        more = {f"more{n}.bin": np.random.default_rng(n).bytes(9 * MIB) for n in range(3)}
        for name, data in more.items():
            place.put(name, data)
        if when == "before":
            fill(small_disk / "filler")
        with mount(source, scratch / "work") as m:
            if when == "while":
                check_versions(m, source)
                fill(small_disk / "filler")
            top = m.dot / "bucket"
            assert reading.read_file(top / "more0.bin") == more["more0.bin"]
            source.grow()
            check_versions(m, source)
            (small_disk / "filler").unlink()
            stored = m.status()["blocks"]["stored_bytes"]

            def stores():
                for name, data in more.items():
                    fd = os.open(top / name, os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(fd)
                    assert reading.read_file(top / name) == data
                return m.status()["blocks"]["stored_bytes"] > stored

            wait_until(stores, m.status)
            check_versions(m, source)
