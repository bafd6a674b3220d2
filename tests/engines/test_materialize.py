"""Versions written out whole, which the kernel reads by itself.

What must hold: the bytes are the oracle's whichever way they are read, old handles keep their
version, nothing asks the daemon, and whatever cannot be had costs speed only and is said.
"""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from lib import checks, models, mounted, oracle, passthrough, reading, trl
from lib.mounted import Mount, wait_until

FILE = "model.safetensors"
ALWAYS = ["--materialize", "always"]


@pytest.fixture(autouse=True, scope="module")
def needs_passthrough():
    """Skips where there is none, and says why."""
    why = passthrough.why_not()
    if why:
        pytest.skip(why)


def serving(m):
    """What the mount says of how it is served."""
    return m.status()["serving"]


def reads(m):
    """READ requests for weights so far."""
    return m.status()["counters"]["reads"]


def is_whole(m, number):
    """Waits until a version is written out."""
    wait_until(lambda: (serving(m)["prepared"] or "").startswith(f"version {number} was written"),
               lambda: f"{serving(m)}\n{m.log_text()[-3000:]}")


def wholes(m):
    """Names of complete files in the cache directory."""
    folder = m.work / "cache" / "whole"
    return sorted(n for n in os.listdir(folder) if not n.startswith("tmp."))


def open_count(m, number):
    """Open handles of a version."""
    return next(v["open"] for v in m.status()["versions"] if v["version"] == number)


def assert_unasked(m, number, files):
    """Reading a version's weights, by whatever name, makes no request."""
    had = reads(m)
    for name in checks.weight_files(files):
        checks.assert_same(name, reading.read_file(m.at / name), files[name], "plain")
        checks.assert_same(name, reading.read_mapped(m.tree(number) / name, shared=True),
                           files[name], "by number")
    assert reads(m) == had, "somebody asked the daemon"


def xattr(path, name):
    """One of our attributes as text."""
    return os.getxattr(path, f"user.weightfs.{name}").decode()


def published(bucket, count=1, seed=1, **kwargs):
    """A run with its first state out, and the states to come."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=50)
    states = models.states(seed, count, **kwargs)
    run.sync(states[0])
    return run, states[1:]


@contextlib.contextmanager
def opened(path):
    """A descriptor for a while."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def test_both_ways_at_once(bucket):
    """Handles and maps from before go on as they were; new ones are the kernel's own business."""
    published(bucket)
    want = oracle.Oracle(bucket).files(1)
    # Long enough for the old handle to be opened before.
    args = ["--materialize", "auto", "--materialize-after", "6"]
    with Mount(bucket, args=args) as m, opened(m.at / FILE) as old:
        before = os.pread(old, 4096, 0)
        mapping = reading.map_fd(old)
        ino = os.fstat(old).st_ino
        is_whole(m, 1)
        assert serving(m)["whole_files"] == 1 and serving(m)["whole_bytes"] == len(want[FILE])
        had = reads(m)
        assert had >= 1  # the old handle's
        with opened(m.at / FILE) as new, opened(m.tree(1) / FILE) as by_number:
            assert reading.read_fd(new) == want[FILE]
            shared = reading.map_fd(by_number, shared=True)
            assert reading.mapped_bytes(shared) == want[FILE]
            shared.close()
            assert reads(m) == had, "somebody asked the daemon"
            assert os.fstat(new).st_ino == os.fstat(by_number).st_ino == ino
            assert os.stat(m.at / FILE).st_ino == ino
            assert open_count(m, 1) == 3
            assert xattr(m.at / FILE, "version") == "1" == xattr(f"/proc/self/fd/{old}", "version")
            assert os.pread(old, 4096, 0) == before
            assert reading.mapped_bytes(mapping) == want[FILE]
            assert reading.read_fd(old) == want[FILE]
            assert reading.read_file(f"/proc/self/fd/{new}") == want[FILE]
        checks.assert_tree(m.at, want)
        checks.assert_tree(m.dot / "current", want)
        checks.assert_ranges(m.at / FILE, want[FILE], 7)
        with pytest.raises(OSError, match="Read-only"):
            os.open(m.at / FILE, os.O_RDWR)
        mapping.close()


def test_switches(bucket):
    """Each version is written out in turn; handles and maps of all of them stay what they are."""
    run, states = published(bucket, 4)
    want = oracle.Oracle(bucket)
    held = []
    with Mount(bucket, args=ALWAYS) as m, contextlib.ExitStack() as stack:
        for number in range(1, 5):
            if number > 1:
                run.sync(states[number - 2])
            is_whole(m, number)
            files = want.files(number)
            checks.assert_tree(m.at, files)
            checks.assert_tree(m.tree(number), files)
            assert_unasked(m, number, files)
            fd = stack.enter_context(opened(m.at / FILE))
            held.append((number, fd, reading.map_fd(fd), files[FILE]))
            assert xattr(m.at / FILE, "version") == str(number)
        for number, fd, mapping, blob in held:
            checks.assert_same(FILE, reading.read_fd(fd), blob, f"version {number}")
            checks.assert_same(FILE, reading.mapped_bytes(mapping), blob, f"version {number}")
            # The kernel says that a file is closed, and does not wait for an answer.
            wait_until(lambda n=number: open_count(m, n) == 1, m.status)
            mapping.close()
        assert len(wholes(m)) == 4, "what is open stays"
        stack.close()
        run.sync(models.states(9, 1)[0])
        is_whole(m, 5)
        wait_until(lambda: len(wholes(m)) == 1, lambda: f"left over: {wholes(m)}")
        assert serving(m)["whole_files"] == 1
        checks.assert_tree(m.tree(2), want.files(2))


def test_many_are_kept_where_there_is_room(bucket):
    """With a size to keep to, older versions stay whole; the least recently used goes first."""
    run, states = published(bucket, 5)
    size = len(oracle.Oracle(bucket).files(1)[FILE])
    args = [*ALWAYS, "--materialize-size", str(size * 3 + 200000)]
    with Mount(bucket, args=args) as m:
        is_whole(m, 1)
        for i, state in enumerate(states):
            run.sync(state)
            is_whole(m, i + 2)
        wait_until(lambda: len(wholes(m)) == serving(m)["whole_files"] == 3, lambda: serving(m))
        had = reads(m)
        for number in (3, 4, 5):
            reading.read_file(m.tree(number) / FILE)
        assert reads(m) == had
        want = oracle.Oracle(bucket)
        for number in range(1, 6):
            checks.assert_tree(m.tree(number), want.files(number))


def test_shards(bucket):
    """Every shard is a whole file of its own."""
    published(bucket)
    want = oracle.Oracle(bucket, shard_size=200000).files(1)
    with Mount(bucket, shard_size=200000, args=[*ALWAYS, "--warm"]) as m:
        is_whole(m, 1)
        assert serving(m)["whole_files"] == len(checks.weight_files(want)) > 1
        checks.assert_tree(m.at, want)
        assert_unasked(m, 1, want)
        assert serving(m)["warmed_bytes"] == 0


def test_killed(bucket):
    """What was open reads on after the daemon's death, also places nobody has looked at."""
    published(bucket)
    want = oracle.Oracle(bucket).files(1)[FILE]
    with Mount(bucket, args=ALWAYS, expect_exit=-signal.SIGKILL) as m:
        is_whole(m, 1)
        with opened(m.at / FILE) as fd:
            mapping = reading.map_fd(fd)
            m.process.send_signal(signal.SIGKILL)
            m.process.wait()
            with pytest.raises(OSError):
                os.stat(m.at / FILE)
            assert reading.read_fd(fd) == want
            assert reading.mapped_bytes(mapping) == want
            mapping.close()


def test_restart(bucket, scratch):
    """A finished file is used again after a kill, once its bytes were checked; leftovers go."""
    run, states = published(bucket, 2)
    want = oracle.Oracle(bucket)
    with Mount(bucket, args=ALWAYS, work=scratch, expect_exit=-signal.SIGKILL) as m:
        is_whole(m, 1)
        m.process.send_signal(signal.SIGKILL)
        m.process.wait()
    folder = scratch / "cache" / "whole"
    (name,) = wholes(m)
    (folder / f"tmp.{name[:32]}.0").write_bytes(b"half of it")
    (folder / "tmp.try.left").write_bytes(b"")
    with Mount(bucket, args=ALWAYS, work=scratch) as m:
        is_whole(m, 1)
        assert "before, and checked" in serving(m)["prepared"]
        wait_until(lambda: os.listdir(folder) == [name], lambda: os.listdir(folder))
        checks.assert_tree(m.at, want.files(1))
        assert_unasked(m, 1, want.files(1))
    damaged = folder / name
    with open(damaged, "r+b") as f:
        f.seek(300000)
        byte = f.read(1)
        f.seek(300000)
        f.write(bytes([byte[0] ^ 1]))
    with Mount(bucket, args=ALWAYS, work=scratch) as m:
        is_whole(m, 1)
        assert "is damaged" in m.log_text()
        checks.assert_tree(m.at, want.files(1))
        run.sync(states[0])
        is_whole(m, 2)
        checks.assert_tree(m.at, want.files(2))
        wait_until(lambda: len(wholes(m)) == 1, "the replaced version's file stays")
    for cut in (0, 1000):
        (name,) = wholes(m)
        os.truncate(folder / name, cut)
        with Mount(bucket, args=ALWAYS, work=scratch) as m:
            is_whole(m, 2)
            checks.assert_tree(m.at, want.files(2))


def test_killed_while_writing(bucket, scratch):
    """Kills at any moment of the writing: the next mount is right, and nothing is left over."""
    published(bucket, spec={"big": ("BF16", (1024, 4096))})
    want = oracle.Oracle(bucket).files(1)
    for _ in range(int(os.environ.get("SOAK_KILLS", "4"))):
        with Mount(bucket, args=ALWAYS, work=scratch, expect_exit=-signal.SIGKILL) as m:
            m.process.send_signal(signal.SIGKILL)
            m.process.wait()
    with Mount(bucket, args=ALWAYS, work=scratch) as m:
        is_whole(m, 1)
        checks.assert_tree(m.at, want)
        wait_until(lambda: len(os.listdir(scratch / "cache" / "whole")) == 1, "leftovers")


def test_two_mounts_write_once(bucket, scratch):
    """Mounts that share a cache directory share the files as well."""
    published(bucket, spec={"big": ("BF16", (1024, 4096))})
    want = oracle.Oracle(bucket).files(1)
    cache = ["--cache-dir", scratch / "shared"]
    with Mount(bucket, args=[*ALWAYS, *cache]) as a, Mount(bucket, args=[*ALWAYS, *cache]) as b:
        for m in (a, b):
            is_whole(m, 1)
            checks.assert_tree(m.at, want)
            assert_unasked(m, 1, want)
        wait_until(lambda: len(os.listdir(scratch / "shared" / "whole")) == 1, "two files")


def test_budget_too_small(bucket):
    """Then it is not done, status says so, and everything works without."""
    published(bucket, spec={"big": ("BF16", (1024, 1024))})
    want = oracle.Oracle(bucket).files(1)
    with Mount(bucket, args=[*ALWAYS, "--materialize-size", "1M"]) as m:
        wait_until(lambda: serving(m)["prepared"], "nothing was tried")
        assert "--materialize-size is 1 MiB" in serving(m)["prepared"]
        checks.assert_tree(m.at, want)
        assert not wholes(m) and reads(m) > 0


@pytest.fixture
def small_disk(scratch):
    """A file system of 12 MiB."""
    at = scratch / "disk"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12M", "none", at], check=True)
    yield at
    subprocess.run(["umount", "-l", at], check=True)


def test_disk_full(bucket, small_disk):
    """A version that does not fit is left out, until there is room again; the next is not."""
    run, _ = published(bucket, spec={"big": ("BF16", (1024, 1024))})
    want = oracle.Oracle(bucket)
    with Mount(bucket, args=[*ALWAYS, "--cache-dir", small_disk]) as m:
        is_whole(m, 1)
        with opened(m.at / FILE) as fd:
            filler = small_disk / "filler"
            free = shutil.disk_usage(small_disk).free
            filler.write_bytes(bytes(free - (1 << 20)))
            run.sync(models.states(5, 1, {"big": ("BF16", (1024, 1024))})[0])
            m.wait_version(2)
            wait_until(lambda: "has no room" in (serving(m)["prepared"] or ""),
                       lambda: f"{serving(m)}")
            checks.assert_tree(m.at, want.files(2))
            assert reading.read_fd(fd) == want.files(1)[FILE]
            filler.unlink()
            is_whole(m, 2)
            checks.assert_tree(m.at, want.files(2))
        run.sync(models.states(6, 1, {"big": ("BF16", (1024, 1024))})[0])
        is_whole(m, 3)
        checks.assert_tree(m.at, want.files(3))


def test_why_not_written_stays_when_it_is_warmed(bucket):
    """What is said of the warming does not hide that."""
    published(bucket, spec={"big": ("BF16", (1024, 1024))})
    with Mount(bucket, args=[*ALWAYS, "--warm", "--materialize-size", "1M"]) as m:
        wait_until(lambda: "MiB warmed" in (serving(m)["prepared"] or ""), lambda: serving(m))
        assert "not written out: the version has 2 MiB to write" in serving(m)["prepared"]
        m.wait_version(1)


def weaker(*words):
    """A command prefix that drops CAP_SYS_ADMIN's use: another user, or just the right."""
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv to drop root's rights")
    return ["setpriv", *words]


def test_without_root(bucket, scratch):
    """An ordinary user gets a mount that works without, and reads why."""
    published(bucket)
    work = scratch / "work"
    for folder in (work, work / "mnt", work / "cache"):
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    user = weaker("--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
    probe = subprocess.run([*user, mounted.BINARY, "--version"], capture_output=True, check=False)
    if probe.returncode or not os.access("/dev/fuse", os.W_OK) or \
            subprocess.run([*user, "test", "-w", "/dev/fuse"], check=False).returncode:
        pytest.skip("that user cannot run the program or open /dev/fuse here")
    command = [*user, mounted.BINARY, "mount", "-f", *ALWAYS, "--cache-dir", work / "cache",
               bucket, work / "mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=mounted.WAIT)
    assert done.returncode == 1
    assert "--materialize always: passthrough needs CAP_SYS_ADMIN" in done.stderr
    assert not mounted.is_mounted(work / "mnt")
    with Mount(bucket, prefix=user, work=work) as m:
        subprocess.run([*user, mounted.BINARY, "wait", m.at, "--version", "1", "--timeout",
                        str(mounted.WAIT)], check=True)
        look = subprocess.run([*user, "cat", m.dot / "status", m.at / FILE], capture_output=True,
                              check=False)
        assert look.returncode == 0, (look, m.log_text())
        assert b"passthrough: off: passthrough needs CAP_SYS_ADMIN" in look.stdout
        assert look.stdout.endswith(oracle.Oracle(bucket).files(1)[FILE])


def test_off(bucket):
    """`never` is never."""
    published(bucket)
    with Mount(bucket, args=["--materialize", "never", "--materialize-after", "0"]) as m:
        assert serving(m)["passthrough"] == {"on": False, "why": "--materialize never"}
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(1))
        assert not (m.work / "cache" / "whole").exists()


def lay(what, at):
    """Puts a thing of that kind there."""
    if what == "directory":
        at.mkdir()
    elif what == "pipe":
        os.mkfifo(at)
    elif what == "link":
        at.symlink_to(at.parent.parent / "victim")
    else:
        at.write_bytes(bytes(100000))


@pytest.mark.parametrize("what", ["directory", "pipe", "link", "file"])
@pytest.mark.parametrize("temp", [False, True])
def test_others_things_under_our_names(bucket, scratch, what, temp):
    """What lies there under a name of ours is not used, waited for, or written through."""
    published(bucket)
    with Mount(bucket, args=ALWAYS, work=scratch) as m:
        is_whole(m, 1)
        (name,) = wholes(m)
    folder, victim = scratch / "cache" / "whole", scratch / "cache" / "victim"
    victim.write_bytes(b"precious")
    (folder / name).unlink()
    lay(what, folder / (f"tmp.{name[:34]}" if temp else name))
    with Mount(bucket, args=ALWAYS, work=scratch) as m:
        is_whole(m, 1)
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(1))
        wait_until(lambda: os.listdir(folder) == [name], lambda: os.listdir(folder))
    assert victim.read_bytes() == b"precious"


def test_cache_is_deleted(bucket):
    """Safe at any time: what is open reads on, and the next version is written out again."""
    run, states = published(bucket, 3)
    want = oracle.Oracle(bucket)
    with Mount(bucket, args=[*ALWAYS, "--warm"]) as m:
        is_whole(m, 1)
        with opened(m.at / FILE) as fd:
            for number in (2, 3):
                while (m.work / "cache").exists():  # in which somebody may just be writing
                    shutil.rmtree(m.work / "cache", ignore_errors=True)
                run.sync(states[number - 2])
                m.wait_version(number)
                is_whole(m, number)
                checks.assert_tree(m.at, want.files(number))
                assert_unasked(m, number, want.files(number))
            assert reading.read_fd(fd) == want.files(1)[FILE]
