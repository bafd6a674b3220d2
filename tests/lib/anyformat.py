"""Any run in any format: adapters from lib/randomrun.py's steps to the writers of each format.

    writer = WRITERS["trl-v3"](root, scratch, seed)
    writer.write(segments)            # all of the run, objects a second apart; or step by step:
    for _ in writer.steps(segments):  # with the times that it is
    writer.states                     # {version: state} of what a mount must show
    writer.mount_args                 # e.g. --base

A writer says which dtypes its format's deltas can carry.  Times are in the past and ascend, so what
a mount makes of a restart does not depend on how fast the test is.
"""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np

from lib import arc, grail, hfdir, models, primerl, publishing, randomrun, skyrl, trl
from lib import safetensors_py as st


class Writer:
    """What all have in common: numbers from 1, and the clock."""

    dtypes = randomrun.DTYPES
    gap = 1  # between the numbers of versions
    rising = False  # numbers never begin again

    def __init__(self, root, scratch, seed):
        self.root, self.scratch = Path(root), Path(scratch)
        self.rng = np.random.default_rng([seed, 1])
        self.clock = int(time.time()) - 100000
        self.states, self.mount_args, self.stamped = {}, [], {}
        self.pause = 0.02  # file systems count in ticks of some milliseconds
        self.left = False  # objects of an earlier run are there, and status says so

    def write(self, segments):
        """All of the run."""
        self.pause = 0
        for _ in self.steps(segments):
            self.stamp()

    def steps(self, segments):
        """The same, one step after the other, and not so fast that times cannot tell them apart."""
        for i, steps in enumerate(segments):
            self.states, before = {}, None
            self.begin(steps, i > 0)
            for number, (kind, state) in enumerate(steps, 1):
                last = number == len(steps)
                folder = self.folder(number)
                if folder:
                    shutil.rmtree(folder, ignore_errors=True)
                if self.step(number, kind, before, state, last):
                    self.states[number * self.gap] = state
                yield
                time.sleep(self.pause)
                before = state

    def begin(self, steps, again):
        """A trainer starts, possibly where another was."""

    def folder(self, number):
        """Where all of a version goes, and nothing of another; None: nowhere."""

    def start(self, steps, again):
        """Of directories: a trainer that begins again clears the place, or leaves what is there.
        (Where all are whole, or numbers never begin again, the highest number of all counts.)"""
        self.left = again and not self.rising and any(s.kind == "delta" for s in steps) and \
            self.rng.random() < 0.5
        if again and not self.left:
            shutil.rmtree(self.root)
            self.root.mkdir()

    def stamp(self):
        """What is new since the last time is a second younger than all before."""
        self.clock += 1
        for path in sorted(self.root.rglob("*")):
            told = path.stat()
            if path.is_file() and self.stamped.get(path) != (told.st_ino, told.st_mtime_ns):
                os.utime(path, (self.clock, self.clock))
                told = path.stat()
                self.stamped[path] = (told.st_ino, told.st_mtime_ns)

    def step(self, number, kind, before, state, last):
        """Publishes one; is it a version?"""
        raise NotImplementedError


def changes(before, state):
    """{name: (positions, dtype, values)} of what differs in any bit."""
    out = {}
    for name, t in state.items():
        at = np.flatnonzero(before[name].data != t.data)
        if len(at):
            out[name] = (at, t.dtype, t.data[at])
    return out


class Trl(Writer):
    """TRL's objects, with every change in them."""

    generation = "v3"

    def step(self, number, kind, before, state, last):
        run = trl.Run(self.root, self.generation)
        if kind in ("anchor", "both"):
            meta = {"format": "sparse_weight_patch", "version": "1", "sparse": "False",
                    "model_version": str(number)}
            if run.gen.encoding:
                meta["encoding"] = run.gen.encoding
            trl.put(run.path(True, number), st.dump(state, meta))
        if kind == "anchor":
            return True
        pairs = changes(before, state)
        # v2 and v3 skip the object of a step without changes; what is skipped last is not seen.
        if not pairs and kind == "delta" and run.gen.encoding and not last and \
                self.rng.random() < 0.5:
            return False
        blob = trl.delta_blob(number, pairs, self.generation)
        trl.put(run.path(False, number), blob)
        return True


class TrlV1(Trl):
    """Plain I32 indices; a step without changes is a delta without tensors."""

    generation = "v1.3"


class TrlRaw(Trl):
    """v2 with absolute positions."""

    generation = "v2-raw"


class Checkpoints(Writer):
    """A whole checkpoint a step, numbers with gaps, one file or shards."""

    def begin(self, steps, again):
        self.gap = int(self.rng.integers(1, 100))
        if again:
            shutil.rmtree(self.root)
            self.root.mkdir()

    def step(self, number, kind, before, state, last):
        shards = int(self.rng.integers(1, 3)) if len(state) > 1 else 1
        publishing.write_checkpoint(self.root / f"checkpoint-{number * self.gap}", state, shards)
        return True


class HfDir(Writer):
    """slime's directories.  It begins on a base, or with a whole checkpoint."""

    encoding = "xor"

    def begin(self, steps, again):
        self.start(steps, again)
        self.based = not again and self.rng.random() < 0.5
        if self.based:
            base = models.write_base(self.scratch / "base", steps[0].state)
            self.mount_args = ["--base", base]
            os.utime(base / "model.safetensors", (self.clock, self.clock))
        self.trainer = hfdir.Trainer(self.root, [s.state for s in steps], self.encoding,
                                     shards=int(self.rng.integers(1, 4)),
                                     stated=bool(self.rng.random() < 0.5),
                                     sums=str(self.rng.choice(["xxh3-128", "adler32"])))

    def folder(self, number):
        return self.trainer.folder(number)

    def step(self, number, kind, before, state, last):
        if number == 1 and self.based:
            self.trainer.states = [state] + self.trainer.states
            self.trainer.delta(1)
        elif kind == "delta":
            self.trainer.states = {number - 1: before, number: state}
            self.trainer.delta(number)
        else:
            self.trainer.states = {number: state}
            self.trainer.full(number)
        return True


class HfDirOverwrite(HfDir):
    """The same with lists of bytes."""

    encoding = "overwrite"


class Arc(Writer):
    """Fireworks' snapshots; the first is whole, the numbers have gaps."""

    def begin(self, steps, again):
        self.start(steps, again)
        self.gap = self.gap if again else int(self.rng.integers(1, 9))
        most = min(3, len(steps[0].state))
        self.out = arc.Trainer(self.root, int(self.rng.integers(1, most + 1)),
                               whole=bool(self.rng.random() < 0.5))

    def folder(self, number):
        return self.out.folder(number * self.gap)

    def step(self, number, kind, before, state, last):
        at = number * self.gap
        if kind == "delta":
            self.out.delta(at, at - self.gap, before, state)
        else:
            self.out.full(at, state)
        return True


class Grail(Writer):
    """grail's windows: an anchor has a delta, too, but for the first."""

    gap = 30
    rising = True
    dtypes = randomrun.FLOATS

    def begin(self, steps, again):
        self.start(steps, again)
        self.out = grail.Trainer(self.root, {}, int(self.rng.choice([2, 3, 31])),
                                 shards=int(self.rng.integers(1, 3)) if len(steps[0].state) > 1
                                 else 1, window=lambda i: self.gap * i)

    def folder(self, number):
        return self.out.folder(number)

    def step(self, number, kind, before, state, last):
        self.out.states[number] = state
        if number > 1:
            self.out.delta(number, stated=bool(self.rng.random() < 0.5))
        if kind != "delta":
            self.out.full(number)
        self.out.ready(number)
        return True


class SkyRl(Writer):
    """Deltas only, on a base; a fresh place for each run."""

    def begin(self, steps, again):
        self.start(steps, again)
        base = models.write_base(self.scratch / "base", steps[0].state)
        self.mount_args = ["--base", base]
        os.utime(base / "model.safetensors", (self.clock, self.clock))
        self.out = skyrl.Trainer(self.root, {}, int(self.rng.integers(1, 4)),
                                 int(self.rng.choice([200, 1 << 20])),
                                 str(self.rng.choice(["xxh3-128", "sha256", "older"])))

    def folder(self, number):
        return self.out.folder(number)

    def step(self, number, kind, before, state, last):
        self.out.states.update({number - 1: state if before is None else before, number: state})
        self.out.delta(number)
        return True


class PrimeRl(Writer):
    """Broadcasts: whole ones, and sparse ones on the one before."""

    def begin(self, steps, again):
        self.start(steps, again)
        self.out = primerl.Trainer(self.root, {}, wide=bool(self.rng.random() < 0.5),
                                   packed=bool(self.rng.random() < 0.5),
                                   sums=bool(self.rng.random() < 0.5),
                                   groups=int(self.rng.integers(1, 3)))

    def folder(self, number):
        return self.out.folder(number)

    def step(self, number, kind, before, state, last):
        self.out.states[number] = state
        if kind == "delta":
            self.sparse(number)
        else:
            self.whole(number)
        return True

    def whole(self, number):
        """A checkpoint."""
        self.out.whole(number)

    def sparse(self, number):
        """What changed."""
        self.out.update(number)


class PrimeRlOlder(PrimeRl):
    """The format of the branch before that."""

    def whole(self, number):
        self.out.whole(number, older=True)

    def sparse(self, number):
        self.out.older(number)


class Published(Writer):
    """`weightfs publish`; a restart is --new-run."""

    args = ()

    def begin(self, steps, again):
        self.again = again
        self.out = publishing.Publisher(self.root, self.scratch / "state", self.args)

    def stamp(self):
        """Times mean nothing here."""

    def step(self, number, kind, before, state, last):
        args = ["--anchor"] if kind != "delta" else []
        if number == 1 and self.again:
            args = ["--new-run"]
        report = self.out.publish(state, "--version", str(number), *args)
        assert report["version"] == number, json.dumps(report)
        return True


class PublishedWfp1x(Published):
    """The smaller encoding, which is made from the last bytes."""

    args = ("--encoding", "wfp1x", "--compress-anchors")


WRITERS = {
    "trl-v1": TrlV1, "trl-v2-raw": TrlRaw, "trl-v3": Trl, "checkpoints": Checkpoints,
    "hfdir-xor": HfDir, "hfdir-overwrite": HfDirOverwrite, "grail": Grail, "skyrl": SkyRl,
    "prime-rl": PrimeRl, "prime-rl-older": PrimeRlOlder, "arc": Arc, "wfp1": Published,
    "wfp1x": PublishedWfp1x,
}
