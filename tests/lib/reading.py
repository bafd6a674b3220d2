"""The ways programs read files, each returning bytes to compare.

Mapped memory is always read by write(2) from the mapping, never by touching it: where the daemon
answers EIO the test gets an OSError instead of dying of SIGBUS, and no page fault is waited for
with the interpreter locked.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import subprocess
import time

from lib import mounted


def sha256(blob):
    """Hex digest of bytes."""
    return hashlib.sha256(blob).hexdigest()


def read_file(path):
    """Plain open, read to the end, close."""
    with open(path, "rb", buffering=0) as f:
        return f.readall()


def read_patiently(path):
    """The same, again and again while it is an error: a mount's --timeout may be short for a
    machine that stands still for a moment, and the next read goes on from what has come."""
    end = time.monotonic() + mounted.WAIT
    while True:
        try:
            return read_file(path)
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def read_fd(fd):
    """All of an open file, by pread in 256 KiB pieces until there is no more."""
    out, at = [], 0
    while True:
        piece = os.pread(fd, 256 * 1024, at)
        if not piece:
            return b"".join(out)
        out.append(piece)
        at += len(piece)


def map_fd(fd, shared=False):
    """A read-only mapping of a whole file."""
    return mmap.mmap(fd, 0, flags=mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE,
                     prot=mmap.PROT_READ)


def mapped_bytes(mapping, begin=0, end=None):
    """Bytes of a mapping; OSError (EFAULT) where it cannot be read."""
    end = len(mapping) if end is None else end
    fd = os.memfd_create("mapped")
    try:
        with memoryview(mapping) as view:
            at = begin
            while at < end:
                at += os.write(fd, view[at:end])
        return os.pread(fd, end - begin, 0)
    finally:
        os.close(fd)


def read_mapped(path, shared):
    """A file through a mapping."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if os.fstat(fd).st_size == 0:
            return b""
        with map_fd(fd, shared) as mapping:
            return mapped_bytes(mapping)
    finally:
        os.close(fd)


def read_direct(path):
    """A file through O_DIRECT, in 1 MiB pieces into page-aligned memory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    try:
        out, at = [], 0
        while True:
            got = os.preadv(fd, [buffer], at)
            if got == 0:
                return b"".join(out)
            out.append(buffer[:got])
            at += got
    finally:
        buffer.close()
        os.close(fd)


def read_sendfile(path):
    """A file through sendfile(2) into a memory file."""
    source, target = os.open(path, os.O_RDONLY), os.memfd_create("sendfile")
    try:
        at = 0
        while True:
            sent = os.sendfile(target, source, at, 1 << 20)
            if sent == 0:
                return os.pread(target, at, 0)
            at += sent
    finally:
        os.close(source)
        os.close(target)


METHODS = {
    "read": read_file,
    "mmap private": lambda path: read_mapped(path, False),
    "mmap shared": lambda path: read_mapped(path, True),
    "O_DIRECT": read_direct,
    "sendfile": read_sendfile,
}


def random_ranges(rng, size, count):
    """(offset, length) pairs: anywhere, short and long, some across the end."""
    for _ in range(count):
        length = int(rng.choice([1, 2, 3, 7, 511, 4096, 4097, 70000, 200001]))
        yield int(rng.integers(0, size + 1)), int(rng.integers(1, length + 1))


def sha256_processes(paths):
    """{path: digest} by one sha256sum process per path, all at the same time."""
    running = {path: subprocess.Popen(["sha256sum", path], stdout=subprocess.PIPE, text=True)
               for path in paths}
    out = {}
    for path, process in running.items():
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, path
        out[path] = text.split()[0].lstrip("\\")
    return out


def tree(top):
    """{relative path: path} of the regular files below a directory, as listed."""
    out = {}
    for folder, _, names in os.walk(top):
        for name in names:
            full = os.path.join(folder, name)
            out[os.path.relpath(full, top)] = full
    return out


DROP = "/proc/sys/vm/drop_caches"


def drop_caches():
    """Asks the kernel to forget clean pages, inodes and names; False where we may not.  It does so
    for the whole machine, but not while somebody has kept_caches()."""
    try:
        with open(DROP, "w", encoding="ascii") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.write("3\n")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def kept_caches():
    """No test that runs at the same time throws the kernel's caches away meanwhile: for those that
    count what has to be read again."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # nobody may, then
            fcntl.flock(stack.enter_context(open(DROP, "w", encoding="ascii")), fcntl.LOCK_SH)
        yield
