# SPDX-License-Identifier: Apache-2.0
"""What it takes to take in a delta, in each format that is read: from the moment it is visible in a
local directory until the version can be opened.

A model of random bf16 weights, of which --percent change by one step of bf16; our own publisher
writes wfp1, wfp1x, trl-v1, trl-v3 and xor-zstd (hfdir-xor), the tests' writers the others.  All but
wfp1, which is used as it is, become a patch file.  Packed anchors are read block by block and need
nothing when they arrive.  `cpu` is of the daemon, `peak` the most memory that was resident in it,
which includes the pages of files that it has mapped.

Two more rows are about long deltas, of --long GiB in files that are mostly holes: an XOR over one
tensor (raw blocks of zeros in a zstd frame), and, at a tenth of that, TRL v3 with every element of
one tensor (all gaps are zero), of which the patch is half as long again on disk.

Everything is in the page cache, but for what the patch files wait for the disk.  A table, then one
line of JSON.

usage: bench_ingest.py [--mib 512] [--percent 1] [--long 20] [--rounds 3]
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))

# pylint: disable=wrong-import-position
from lib import bigrun, grail, hfdir, models, mounted, primerl, publishing  # noqa: E402
from lib import safetensors_py as st  # noqa: E402
from lib import skyrl, wide  # noqa: E402

PART = 32 << 20  # bytes of a tensor
PUBLISHED = {"wfp1": "wfp1", "wfp1x": "wfp1x", "trl-v1": "trl-v1", "trl-v3": "trl-v3",
             "hfdir-xor": "xor-zstd"}


def start(mib, percent):
    """Two states of weights as they are in models, and how many elements differ."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(PART // 2, dtype=np.float32) * 0.02
    one = (normal.view("<u4") >> 16).astype("<u2")
    old, new, changed = {}, {}, 0
    for i in range(max(mib * (1 << 20) // PART, 1)):
        name = f"model.layers.{i}.weight"
        before = np.roll(one, i * 977)
        after = before.copy()
        at = rng.integers(0, before.size, int(before.size * percent / 100))
        after[at] += rng.choice(np.array([1, 65535], "<u2"), at.size)
        old[name] = st.Tensor("BF16", before.shape, before)
        new[name] = st.Tensor("BF16", after.shape, after)
        changed += int((before != after).sum())
    return old, new, changed


class Delta:
    """A source, and what is to appear in it: paths below `made`, the last one is the sign."""

    def __init__(self, source, made, paths, version, base=None):
        self.source, self.made, self.paths = source, made, paths
        self.version, self.base = version, base

    def size(self):
        """Bytes of it, without pointers and indexes."""
        return sum((self.made / p).stat().st_size for p in self.paths if p.suffix != ".json")

    def appear(self):
        """Now; the time."""
        for path in self.paths:
            to = self.source / path
            to.parent.mkdir(parents=True, exist_ok=True)
            now = time.time()
            os.utime(self.made / path, (now, now))
            began = time.perf_counter()
            os.rename(self.made / path, to)
        return began


def files_below(top):
    """All of them, relative."""
    return {p.relative_to(top) for p in top.rglob("*") if p.is_file()}


def split(work, first, last, version, base=None):
    """first() writes what is there before, last() what appears."""
    made, source = work / "made", work / "source"
    made.mkdir()
    first(made)
    shutil.copytree(made, source)
    before = {p: (made / p).stat().st_mtime_ns for p in files_below(made)}
    last(made)
    new = [p for p in files_below(made) if before.get(p) != (made / p).stat().st_mtime_ns]
    signs = (hfdir.INDEX, "weightfs.json", "manifest.json", "metadata.json", "STABLE", "READY")
    new.sort(key=lambda p: (signs.index(p.name.split("-")[0]) if p.name.split("-")[0] in signs
                            else signs.index(p.name) if p.name in signs else -1, p))
    return Delta(source, made, new, version, base)


def prepare(name, work, old, new):
    """A delta of the format."""
    if name in PUBLISHED:
        first = publishing.write_checkpoint(work / "c1", old)
        second = publishing.write_checkpoint(work / "c2", new)

        def publish(top, checkpoint):
            args = ["--encoding", PUBLISHED[name]]
            publishing.Publisher(top, work / "state", args).publish(checkpoint)
        return split(work, lambda top: publish(top, first), lambda top: publish(top, second), 2)
    if name == "hfdir-overwrite":
        def trainer(top):
            return hfdir.Trainer(top, [None, old, new], "overwrite")
        return split(work, lambda top: trainer(top).full(1), lambda top: trainer(top).delta(2), 2)
    if name == "grail":
        def window(top, i):
            trainer = grail.Trainer(top, [old, new])
            (trainer.delta if i else trainer.full)(i)
            trainer.ready(i)
        return split(work, lambda top: window(top, 0), lambda top: window(top, 1), 1050)
    if name == "skyrl":
        base = models.write_base(work / "base", old)
        return split(work, lambda top: None,
                     lambda top: skyrl.Trainer(top, [old, new], most=1 << 30).delta(1), 1, base)
    packed = name == "prime-rl-zstd"

    def trainer(top):
        return primerl.Trainer(top / "broadcasts", {1: old, 2: new}, packed=packed, groups=1)
    return split(work, lambda top: trainer(top).whole(1), lambda top: trainer(top).update(2, 1), 2)


FORMATS = (*PUBLISHED, "hfdir-overwrite", "grail", "skyrl", "prime-rl", "prime-rl-zstd")


# ---- long ones ----------------------------------------------------------------------------------

def holes_of(work, write):
    """A run whose second version appears; write(top) makes both."""
    made, source = work / "made", work / "source"
    made.mkdir()
    first, last = write(made)
    for path in first:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        os.rename(made / path, source / path)
    return Delta(source, made, last, 2)


def long_xor(top, size):
    """One tensor of that many bytes; blocks of 128 KiB of zeros, as they are."""
    wide.write_hfdir(top, size, "xor", b"x")
    block, blocks = wide.BLOCK, size // wide.BLOCK
    head = struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 7 << 3, size)
    length = len(head) + blocks * (block + 3)
    delta = Path("weight_v000002")
    path = top / delta / "model-00000-of-00001.safetensors"
    at = wide.sparse_file(path, {wide.NAME: {"dtype": "U8", "shape": [length],
                                             "data_offsets": [0, length]}}, None, length)
    with open(path, "r+b", buffering=0) as f:
        os.pwrite(f.fileno(), head, at)
        for i in range(blocks):
            os.pwrite(f.fileno(), (int(i == blocks - 1) | block << 3).to_bytes(3, "little"),
                      at + len(head) + i * (block + 3))
    return ([Path("weight_v000001/model.safetensors")],
            [delta / path.name, delta / hfdir.INDEX])


def long_trl(top, size):
    """One bf16 tensor of which every element is named: gaps of 0 in 16 bits, and values of 0."""
    count = size // 4
    meta = {**bigrun.META, "encoding": "gap_delta"}
    first, delta = (Path(p) for p in ("anchors/step_000001.safetensors",
                                      "deltas/step_000002.safetensors"))
    wide.sparse_file(top / first, {wide.NAME: {"dtype": "BF16", "shape": [count],
                                               "data_offsets": [0, 2 * count]}},
                     {**meta, "sparse": "False", "model_version": "1"}, 2 * count)
    wide.sparse_file(top / delta, {
        wide.NAME + ".idx": {"dtype": "U16", "shape": [count], "data_offsets": [0, 2 * count]},
        wide.NAME + ".val": {"dtype": "BF16", "shape": [count],
                             "data_offsets": [2 * count, 4 * count]}},
        {**meta, "sparse": "True", "model_version": "2"}, 4 * count)
    return [first], [delta]


# ---- measuring ----------------------------------------------------------------------------------

def cpu(pid):
    """Seconds of processor time."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid):
    """The most memory since it was last cleared, in MB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def measure(delta):
    """(seconds, processor seconds, peak) until the version is there."""
    args = ["--verify", "off"]
    with mounted.Mount(delta.source, base=delta.base, args=args, lifetime=3600) as m:
        mounted.wait_until(lambda: m.version() is not None, m.status)
        m.control("refresh")
        m.control("refresh")
        pid = m.process.pid
        with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
        spent, began = cpu(pid), delta.appear()
        mounted.run("wait", m.at, "--version", delta.version, "--timeout", 1800, timeout=2000)
        return time.perf_counter() - began, cpu(pid) - spent, peak(pid)


def row(name, size, changed, times):
    """One line, printed."""
    seconds, spent, most = (statistics.median(t[i] for t in times) for i in range(3))
    out = {"format": name, "bytes": size, "changed": changed, "seconds": round(seconds, 3),
           "million_per_second": round(changed / seconds / 1e6, 1),
           "gb_per_second": round(size / seconds / 1e9, 3), "cpu": round(spent, 3),
           "peak_mb": round(most)}
    print(f"{name:16}{size / 1e6:10.1f} MB{changed / 1e6:10.2f} M{seconds:9.3f} s"
          f"{out['million_per_second']:10.1f} M/s{out['gb_per_second']:8.3f} GB/s"
          f"{spent:9.2f} s{most:7.0f} MB", flush=True)
    return out


def one(name, prepared, changed, rounds):
    """Some rounds of one format, each in a place of its own."""
    times, size = [], 0
    for _ in range(rounds):
        work = Path(tempfile.mkdtemp(prefix="weightfs-bench-"))
        try:
            delta = prepared(work)
            size = delta.size()
            times.append(measure(delta))
        finally:
            shutil.rmtree(work)
    return row(name, size, changed, times)


def main():
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--percent", type=float, default=1)
    parser.add_argument("--long", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    old, new, changed = start(args.mib, args.percent)
    print(f"{'format':16}{'delta':>13}{'changed':>12}{'time':>11}{'elements':>14}{'bytes':>13}"
          f"{'cpu':>11}{'peak':>10}")
    out = [one(name, lambda work, name=name: prepare(name, work, old, new), changed, args.rounds)
           for name in FORMATS]
    del old, new
    size = int(args.long * 2**30) // wide.BLOCK * wide.BLOCK
    if size > 0:
        out.append(one("long hfdir-xor", lambda work: holes_of(
            work, lambda top: long_xor(top, size)), 0, 1))
        tenth = size // 10 // 8 * 8
        out.append(one("long trl-v3", lambda work: holes_of(
            work, lambda top: long_trl(top, tenth)), tenth // 4, 1))
    print(json.dumps({"bench": "ingest", "mib": args.mib, "percent": args.percent, "rows": out}))


if __name__ == "__main__":
    main()
