# SPDX-License-Identifier: Apache-2.0
"""Every way of reading, of versions with 0, 1, 10 and 50 deltas, from a store over the network.

A run of --mib MiB (1 % of all elements in each delta) lies behind `rclone serve s3` on this
machine.  In each round and style (tests/bench/reader.c) each reader starts anew with nothing on
disk and reads one file three times:

  cold cache   every byte comes from the store
  warm cache   the bytes are on disk, the file's own pages were dropped
  warm pages   read again at once

Readers: mounts of the run cut off after that many deltas; `rclone mount` (with its cache: full,
ranges in parallel) of the anchor, the same bytes as with 0 deltas; and a plain local file of these,
whose "cold" is a cold page cache.  Deltas are there before the reading begins: a version is not
current earlier.

Rounds are interleaved, so that noise of the machine falls on all; ratios are medians of those
within a round.  The sums that the readers make of what they read have to agree.  A table for
people, then each row as a line of JSON.

usage: bench_matrix.py [--mib 64] [--rounds 3] [--deltas 0,1,10,50] [--styles read,threads,...]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))

# pylint: disable=wrong-import-position
from bench_read import BENCH, FILE, Process, measure, same_read_ahead  # noqa: E402
from lib import bigrun, mounted  # noqa: E402

try:
    from lib import s3_servers  # it needs boto3
except ImportError:
    s3_servers = None

STYLES = ("read", "threads", "map", "names", "direct")
TIMES = ("cold cache", "warm cache", "warm pages")
KEY = "anchors/step_000001.safetensors"
PLAIN, RCLONE = "plain file", "rclone mount"
STREAMS = 8  # ranges that rclone mount asks for at once


def read(style, path, cold, places):
    """(GB/s, sum) of one reading."""
    words = [BENCH / "reader", *(["-c"] if cold else []), style, path, places]
    out = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True,
                         timeout=300).stdout.split()
    return int(out[1]) / float(out[0]) * 1e-9, out[3]


class Bench:
    """The run, its servers, and what was read."""

    def __init__(self, args, scratch, stack):
        self.args, self.scratch = args, scratch
        self.places, self.plain = scratch / "places", scratch / "plain" / FILE
        self.rows, self.sums, self.notes = {}, {}, {}
        self.counts = [int(n) for n in args.deltas.split(",")]
        self.rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or \
            shutil.which("rclone")
        run = bigrun.BigRun(scratch / "bucket", args.mib)
        (scratch / "bucket").mkdir()
        run.anchor()
        run.write_places(self.places)
        for _ in range(max(self.counts)):
            run.delta()
        self.endpoint = stack.enter_context(s3_servers.rclone(scratch))
        for n in self.counts:
            self.cut_off(n)
        with mounted.Mount(scratch / "rclone" / self.name(self.counts[0])) as mount:
            mount.wait_version(self.counts[0] + 1, 120)
            tree = mount.tree(1) if self.counts[0] == 0 else mount.at
            self.plain.parent.mkdir()
            shutil.copyfile(tree / FILE, self.plain)

    @staticmethod
    def name(n):
        """The bucket with so many deltas."""
        return f"with-{n}-deltas"

    def cut_off(self, n):
        """A bucket with the anchor and the first n deltas: links to the same files."""
        for path in (self.scratch / "bucket").rglob("*.safetensors"):
            if int(path.stem.removeprefix("step_")) <= n + 1:
                to = self.scratch / "rclone" / self.name(n) / path.relative_to(
                    self.scratch / "bucket")
                to.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, to)

    def three(self, what, style, path):
        """Reads it three times, into the rows."""
        for number, time in enumerate(TIMES):
            speed, found = read(style, path, number < 2, self.places)
            self.rows.setdefault((what, style, time), []).append(speed)
            if self.sums.setdefault((what, style), found) != found:
                raise RuntimeError(f"{what}, {style}, {time}: other bytes than before")

    def ours(self, n, style):
        """A fresh mount and an empty cache."""
        work = Path(tempfile.mkdtemp(dir=self.scratch))
        with mounted.Mount(f"s3://{self.name(n)}", work=work, poll=30, args=[
                "--endpoint-url", self.endpoint, "--inotify", "off",
                "--materialize", "never"]) as mount:
            mount.wait_version(n + 1, 120)
            before = mount.status()["blocks"]["fetched_bytes"]
            self.three(f"{n} deltas", style, mount.at / FILE)
            fetched = mount.status()["blocks"]["fetched_bytes"] - before
        self.notes[f"{n} deltas", style] = round(fetched / self.plain.stat().st_size, 3)
        shutil.rmtree(work, ignore_errors=True)

    def theirs(self, style):
        """rclone mount of the same bytes, also with nothing on disk."""
        if self.rclone is None:
            return
        work = Path(tempfile.mkdtemp(dir=self.scratch))
        command = [self.rclone, "mount", f":s3:{self.name(self.counts[0])}", work / "mnt",
                   "--s3-provider", "Rclone", "--s3-endpoint", self.endpoint,
                   "--s3-access-key-id", s3_servers.ACCESS,
                   "--s3-secret-access-key", s3_servers.SECRET, "--read-only",
                   "--config", work / "none", "--cache-dir", work / "cache",
                   "--vfs-cache-mode", "full", "--vfs-read-chunk-streams", STREAMS,
                   "--vfs-read-chunk-size", "8M"]
        with Process(command, work / "mnt") as mount:
            same_read_ahead(mount.at)
            self.three(RCLONE, style, mount.at / KEY)
        shutil.rmtree(work, ignore_errors=True)

    def all(self):
        """All rounds."""
        for number in range(self.args.rounds):
            for style in self.args.styles.split(","):
                for n in self.counts:
                    self.ours(n, style)
                self.theirs(style)
                self.three(PLAIN, style, self.plain)
            print(f"round {number + 1} of {self.args.rounds} done", file=sys.stderr, flush=True)

    def ratio(self, what, other, style, time):
        """Median over the rounds of one reader's speed by another's; None where one is missing."""
        a, b = self.rows.get((what, style, time)), self.rows.get((other, style, time))
        return round(statistics.median(x / y for x, y in zip(a, b)), 3) if a and b else None

    def report(self):
        """The table, then JSON lines."""
        names = [f"{n} deltas" for n in self.counts] + [RCLONE, PLAIN]
        lines = [{"bench": "matrix", "what": what, "style": style, "pages": time,
                  "gbps": round(statistics.median(self.rows[what, style, time]), 3),
                  "by_plain": self.ratio(what, PLAIN, style, time),
                  "by_first": self.ratio(what, names[0], style, time),
                  "by_rclone": self.ratio(what, RCLONE, style, time),
                  "fetched": self.notes.get((what, style))}
                 for style in self.args.styles.split(",") for what in names for time in TIMES
                 if (what, style, time) in self.rows]
        for style in self.args.styles.split(","):
            print(f"\n{style:14}" + "".join(f"| {time:10}  GB/s /plain /{names[0][:2].strip():<2}"
                                            " /rclone " for time in TIMES) + "| fetched/size")
            for what in names:
                mine = [t for t in lines if (t["what"], t["style"]) == (what, style)]
                if mine:
                    print(f"  {what:12}" + "".join(
                        f"| {t['gbps']:16.2f} {t['by_plain'] or 0:6.2f} {t['by_first'] or 0:5.2f}"
                        f" {t['by_rclone'] or 0:6.2f}  " for t in mine)
                        + f"| {mine[0]['fetched'] or ''}")
        print()
        for line in lines:
            print(json.dumps(line))


def main():
    """Everything is below one directory of its own, and gone at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64, help="of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deltas", default="0,1,10,50")
    parser.add_argument("--styles", default=",".join(STYLES))
    args = parser.parse_args()
    if s3_servers is None:
        print("bench_matrix: no rows: boto3 is not installed (make setup)")
        return
    s3_servers.be_client()
    measure(Bench, args)


if __name__ == "__main__":
    main()
