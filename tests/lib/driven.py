"""tests/drive/drive_s3 held by a pipe: one S3 store, without a mount around it."""

import os
import subprocess
from typing import NamedTuple

from lib import leaks, mounted

BINARY = mounted.BINARY.parent / "drive" / "drive_s3"
AWS = ("AWS_", "BOTO_")


class Listed(NamedTuple):
    """A row of a listing."""

    size: int
    err: int
    id: str


class Failed(Exception):
    """An answer "err NAME sentence"."""

    def __init__(self, line):
        self.name, _, self.sentence = line.partition(" ")
        super().__init__(line)


def environment(extra, home="/nonexistent"):
    """Nothing of this machine's AWS settings, and no metadata service."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(AWS) and "proxy" not in k.lower()}
    return {**env, "HOME": home, "AWS_EC2_METADATA_DISABLED": "true", **extra}


def keys(access="AKIDMARKED", secret="SECRETMARKED", token=None):
    """The environment with a key."""
    env = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
    return {**env, "AWS_SESSION_TOKEN": token} if token else env


class Store:
    """A context manager; raises Failed.  Whatever it prints is searched for secrets."""

    def __init__(self, url, *args, env=None, home="/nonexistent"):
        self.process = subprocess.Popen(
            [str(BINARY), url, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env=environment(keys() if env is None else env, home))
        self.listing, self.hidden = {}, 0

    def __enter__(self):
        try:
            self.result()
        except Failed:
            self.end()
            raise
        return self

    def __exit__(self, kind, *_):
        errors = self.end()
        if kind is None:
            assert self.process.returncode == 0 and not errors, errors

    def end(self):
        """Lets it go, and returns what it said on standard error."""
        _, errors = self.process.communicate("quit\n" if self.process.poll() is None else None,
                                             timeout=mounted.WAIT)
        return errors

    def result(self):
        """The answer to the last command."""
        line = self.process.stdout.readline().rstrip("\n")
        leaks.SEARCH.text("an answer of drive_s3", line)
        if line == "":
            raise AssertionError(f"it is gone: {self.process.communicate()[1]}")
        if line.startswith("err "):
            raise Failed(line[4:])
        return line[3:]

    def send(self, *words):
        """A command without waiting for its answer."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def ask(self, *words):
        """A command and its answer."""
        self.send(*words)
        return self.result()

    def list(self, prefix=""):
        """{key: Listed}"""
        count, self.hidden = map(int, self.ask("list", prefix).split())
        rows = [self.process.stdout.readline().split() for _ in range(count)]
        self.listing = {bytes.fromhex(r[3]).decode("utf-8", "surrogateescape"):
                        Listed(int(r[0]), int(r[1]), r[2]) for r in rows}
        return self.listing

    def open(self, key):
        """A handle."""
        return int(self.ask("open", key.encode().hex()))

    def read(self, handle, off, length):
        """Bytes."""
        return bytes.fromhex(self.ask("read", handle, off, length))

    def get(self, key):
        """A whole listed object, in two ranges."""
        handle, size = self.open(key), self.listing[key].size
        try:
            half = size // 2
            return self.read(handle, 0, half) + self.read(handle, half, size - half)
        finally:
            self.ask("close", handle)

    def put(self, key, path, verb="put"):
        """Writes a file's content."""
        self.ask(verb, key.encode().hex(), path)

    def remove(self, key):
        """Deletes an object, if it is what was listed last."""
        self.ask("remove", key.encode().hex())


def sentence(url, *args, **kwargs):
    """What a listing fails with: (errno's name, sentence)."""
    try:
        with Store(url, *args, **kwargs) as store:
            store.list()
    except Failed as error:
        return error.name, error.sentence
    raise AssertionError("it did not fail")
