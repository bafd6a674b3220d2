"""No secret in anything that the program writes: what every test of this suite is searched for.

Each secret that a test hands out has MARK in it: tokens, keys, session tokens, passwords, and the
signatures of the fakes' links (a fake that is shown another one fails its test).  Whatever the
program then says or leaves behind is searched for it, also in base64 and hexadecimal: output of
every process (watch_processes), pytest's capture, logs, what a mount shows of itself, and every
file below a test's directories before they are removed.  conftest.py fails the test, or the run,
on a find.

A file that a test itself fills with a secret is written by put(), and has to stay as it was.
"""

import base64
import contextlib
import os
import stat
import subprocess
import threading
from pathlib import Path

MARK = "MARKED"
# Of a file so many bytes are searched at its begin and as many at its end, holes left out.
PART = 32 << 20
# Parts of signed requests and links, in what is short enough to be text.
SIGNED = (b"Signature=", b"Key-Pair-Id", b"X-Amz-Sec", b"X-Amz-Sig", b"X-Amz-Cred", b"AWS4-HMAC",
          b"Bearer ")
TEXT = 1 << 20
SHOWN = ("status", "status.json", "metrics", "version", "newest")


def spellings(word):
    """The mark as it is, in base64 at its three alignments, and in hexadecimal."""
    out = [word, word.hex().encode(), word.hex().upper().encode()]
    for shift in range(3):
        # The characters that hold nothing but bits of the word.
        text = base64.b64encode(bytes(shift) + word)
        out.append(text[(shift * 8 + 5) // 6:(shift + len(word)) * 8 // 6])
    return tuple(out)


MARKS = spellings(MARK.encode())


def unmarked(*secrets):
    """Those without a mark: a leak of them would not be seen."""
    return [secret for secret in secrets if secret and MARK not in secret]


def first_mark(data, marks=MARKS):
    """(mark, what is around it) or None."""
    for mark in marks:
        at = data.find(mark)
        if at >= 0:
            return mark, data[max(0, at - 60):at + 30]
    return None


def parts(path, part=PART):
    """The bytes of a file that are searched, in a few pieces that overlap; holes are skipped."""
    with open(path, "rb", buffering=0) as f:
        size, at, done = os.fstat(f.fileno()).st_size, 0, 0
        while at < size and done < 2 * part:
            try:
                begin = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole
                return
            if begin > at:
                at = begin
            if done == part and size - at > part:
                at = size - part
                continue
            try:
                end = min(os.lseek(f.fileno(), at, os.SEEK_HOLE), at + part - done % part)
            except OSError:  # it has been cut meanwhile
                return
            yield os.pread(f.fileno(), end - at + 64, at)
            done += end - at
            at = end


class Search:
    """Takes everything and keeps the finds: sentences with where and what."""

    def __init__(self):
        self.lock, self.finds, self.own = threading.Lock(), [], {}
        self.looked_at = 0

    def text(self, where, data):
        """Searches bytes or text."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        if data:
            hit = first_mark(data, MARKS + SIGNED if len(data) <= TEXT else MARKS)
            with self.lock:
                self.looked_at += 1
                if hit:
                    self.finds.append(f"{hit[0].decode()} in {where}: {hit[1]!r}")

    def file(self, path):
        """Searches one file, its name and its attributes."""
        if self.own.get(str(path)) == "foreign":
            return
        self.text("a name", os.fsencode(path))
        try:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                self.text(f"the link {path}", os.fsencode(os.readlink(path)))
            if not stat.S_ISREG(info.st_mode):
                return
            self.attributes(path)
            mine = self.own.get(str(path))
            for data in parts(path):
                if data != mine:
                    self.text(path, data)
        except FileNotFoundError:  # a process that still runs has removed it
            return

    def attributes(self, path):
        """Of a file."""
        for key in os.listxattr(path, follow_symlinks=False):
            self.text(f"{key} of {path}", os.getxattr(path, key, follow_symlinks=False))

    def tree(self, top):
        """Everything below a directory, but not in what is mounted there."""
        device = os.lstat(top).st_dev
        for folder, folders, names in os.walk(top):
            folders[:] = [f for f in folders if self.enters(os.path.join(folder, f), device)]
            for name in folders + names:
                with contextlib.suppress(PermissionError):
                    self.file(os.path.join(folder, name))

    @staticmethod
    def enters(path, device):
        """Is it a directory of the same file system?  (A dead mount cannot be looked at.)"""
        try:
            return os.lstat(path).st_dev == device
        except OSError:
            return False

    def mount(self, dot, at):
        """What a mount shows of itself, and the attributes of its files."""
        for name in SHOWN:
            with contextlib.suppress(OSError):
                self.text(name, (Path(dot) / name).read_bytes())
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(at))[:20]:
                self.attributes(os.path.join(at, name))

    def take(self):
        """The finds so far, which are forgotten."""
        with self.lock:
            finds, self.finds = self.finds, []
        return finds


SEARCH = Search()


def put(path, text, mode=0o600):
    """Writes a file with a secret in it that the program may read, and must leave alone."""
    path = Path(path)
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(data)
    path.chmod(mode)
    SEARCH.own[str(path)] = data
    return path


def foreign(path):
    """A file that another program writes: it is not searched."""
    SEARCH.own[str(path)] = "foreign"
    return path


def watch_processes(programs):
    """From now on what these programs write into pipes that are read by communicate() (and so by
    subprocess.run) is searched."""
    plain = subprocess.Popen

    class Watched(plain):
        """The same, with an ear at the pipes."""

        def communicate(self, *args, **kwargs):
            out = super().communicate(*args, **kwargs)
            words = self.args if isinstance(self.args, (list, tuple)) else [self.args]
            if any(os.fspath(word) in programs for word in words
                   if isinstance(word, (str, os.PathLike))):
                for name, text in zip(("output", "errors"), out):
                    self.search(name, words, text)
            return out

        @staticmethod
        def search(name, words, text):
            """By the verb, for a sentence that says where."""
            SEARCH.text(f"the {name} of {' '.join(map(str, words[:3]))}", text)

    subprocess.Popen = Watched
