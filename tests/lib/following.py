"""For tests of `weightfs follow`: a mounted run that grows, engines, and follow itself."""

import json
import os
import signal
import subprocess
import threading

from lib import engines, models, mounted, trl
from lib.mounted import Mount, wait_until


class Follow:
    """`weightfs follow` in the background; `lines` are the updates that it has reported."""

    def __init__(self, mount, *args, env=None, expect=0):
        self.expect = expect
        self.lines, self.raw = [], []
        # Nobody is asked in between, but where a test wants that: calls can be counted.
        command = [mounted.BINARY, "follow", mount.at, "--retry-delay", "0.05", "--check", "0",
                   *args]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **(env or {})}, start_new_session=True)
        self.errors = []
        self.threads = [threading.Thread(target=self._read_lines, daemon=True),
                        threading.Thread(target=self._read_errors, daemon=True)]
        for thread in self.threads:
            thread.start()

    def _read_lines(self):
        for line in self.process.stdout:
            self.raw.append(line)
            self.lines.append(json.loads(line))

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            self.process.kill()
            self.process.wait()
            print("".join(self.errors), self.lines)
            return
        self.term()
        assert self.wait() == self.expect, (self.errors, self.lines)

    def term(self):
        """Tells it to end, if it has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """Its exit code, with all output read."""
        code = self.process.wait(timeout=mounted.WAIT)
        for thread in self.threads:
            thread.join(timeout=mounted.WAIT)
        assert not any(s in line for line in self.errors for s in mounted.SANITIZER), self.errors
        return code

    def update(self, number):
        """The number-th report (from 0)."""
        wait_until(lambda: len(self.lines) > number or self.process.poll() is not None,
                   lambda: f"no report {number}: {self.lines} {self.errors}")
        wait_until(lambda: len(self.lines) > number,
                   lambda: f"follow has ended: {self.lines} {self.errors}")
        return self.lines[number]

    def said(self, text):
        """Waits until it has said that on standard error."""
        wait_until(lambda: text in "".join(self.errors), lambda: f"{text!r}: {self.errors}")

    def reported(self, version, result="ok"):
        """The report of a version with this result."""
        def find():
            return next((line for line in self.lines if line["version"] == version
                         and line["result"] == result), None)
        return wait_until(find, lambda: f"no {result} of {version}: {self.lines} {self.errors}")


def once(rig, *args, check=True, **kwargs):
    """Follow with --once; the report and the completed process."""
    done = mounted.run("follow", rig.mount.at, "--retry-delay", "0.02", "--once", *args,
                       check=check, **kwargs)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return (lines[-1] if lines else None), done


class Rig:
    """A mounted run that grows on demand, and servers that are closed at the end."""

    def __init__(self, bucket, **kwargs):
        self.run = trl.Run(bucket, "v3", interval=4)
        self.states = iter(models.states(7, 40, models.MINI, density=0.2))
        self.grow()
        self.mount = Mount(bucket, **kwargs)
        self.servers = []

    def grow(self, count=1):
        """That many versions more in the bucket; the number of the last."""
        for _ in range(count):
            self.run.sync(next(self.states))
        return self.run.number

    def publish(self):
        """One version more, and in the mount."""
        number = self.grow()
        self.mount.wait_version(number)
        return number

    def server(self, kind, **kwargs):
        """A stand-in."""
        one = kind(**kwargs)
        self.servers.append(one)
        return one

    def digest(self, number):
        """The checksum of a version's weights."""
        return engines.digest(self.mount.tree(number))

    def path(self, number):
        """Where an engine is told to look."""
        return str(self.mount.tree(number).resolve())

    def pinned(self):
        """The versions that are pinned."""
        return sorted(v["version"] for v in self.mount.status()["versions"] if v["pinned"])
