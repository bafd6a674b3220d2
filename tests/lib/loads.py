"""Loads by programs of their own (lib/rank.py), of models whose every tensor says its version."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from lib import mounted, rank
from lib import safetensors_py as st


def fingerprint(version, tensors=8, size=512):
    """A state whose tensors are all of this version, to their last element."""
    bits = np.full(size, rank.FIRST + version, "<u2")
    return {f"layer.{i:03d}.weight": st.make("BF16", (size,), bits) for i in range(tensors)}


def shard_size(tensors_per_shard, size=512):
    """--shard-size for that many tensors in each shard of a fingerprint()."""
    return tensors_per_shard * size * 2


class Ranks:
    """One rank, or `count` of them that act together; a context manager."""

    def __init__(self, top, pause=0.0, count=None, prefix=()):
        words = [*prefix, sys.executable, "-S", rank.__file__, str(top), str(pause)]
        self.process = subprocess.Popen(words + ([str(count)] if count else []),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind:
            self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        code = self.process.wait(timeout=mounted.WAIT)
        assert kind or code == 0, code

    @property
    def pid(self):
        """Of the process (with `count`: of the one that forks)."""
        return self.process.pid

    def begin(self, *words):
        """Sends a command."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def end(self):
        """The answer to what begin() sent."""
        line = self.process.stdout.readline()
        assert line, "the rank has died"
        return json.loads(line)

    def __call__(self, *words):
        self.begin(*words)
        return self.end()


def shards(top):
    """Names of the shards of a model directory."""
    return sorted(p.name for p in Path(top).glob("model-*.safetensors"))
