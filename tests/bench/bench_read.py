# SPDX-License-Identifier: Apache-2.0
"""Reading a version, against a bare FUSE daemon, a local file and rclone mount (rows 5 and 6).

A run of --mib MiB with --deltas deltas (1 % of all elements each) lies in a local directory, so
the base's bytes are near.  Read in the styles of tests/bench/reader.c: of versions with 0, 1, 10
and more deltas on top of the anchor, of "bare" (bare_fuse.c: the same bytes answered from memory,
with the same settings), of a plain file, of `rclone mount` of the same bytes, and of a version
written out (passthrough).

  cold   the file's own pages are dropped before: each page is asked for
  warm   read again at once: pages in the kernel.  A version written out is always warm

Rounds are interleaved, what is compared is read back to back, and the figure is the median of the
ratios within a round: a busy machine makes all slower, and absolute figures mean little.  A helper
keeps free memory in small pieces (see reader.c, "hold").  Requests and bytes are the daemon's own
counts.  A table for people, then each row as a line of JSON.

usage: bench_read.py [--mib 192] [--rounds 3] [--deltas 50] [--styles read,threads,map,names,...]
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))

# pylint: disable=wrong-import-position
from lib import bigrun, mounted  # noqa: E402

BENCH = mounted.BINARY.parent / "bench"
FILE = "model.safetensors"
STYLES = ("read", "threads", "map", "names", "back", "direct")
WARM = ("read", "threads", "map", "names")
ONCE = ("read", "map")  # what rclone mount is asked for: it takes ten times as long as all others
READ_AHEAD = "1024"


def cpu_seconds(pid):
    """Processor seconds of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reader(style, path, cold, places):
    """(seconds, bytes, the reader's processor seconds)."""
    words = [BENCH / "reader", *(["-c"] if cold else []), style, path, places]
    out = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True,
                         timeout=120).stdout.split()
    return float(out[0]), int(out[1]), float(out[2])


class Process:
    """Another daemon with a mount, as a context manager."""

    def __init__(self, command, at):
        self.at = at
        at.mkdir(exist_ok=True)
        self.process = subprocess.Popen([str(w) for w in command], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not mounted.is_mounted(at):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} does not mount")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        mounted.unmount(self.at)
        self.process.terminate()
        self.process.wait(20)


def same_read_ahead(at):
    """Gives another mount the window that weightfs gives its own."""
    dev = os.stat(at).st_dev
    with contextlib.suppress(OSError):
        path = Path(f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb")
        path.write_text(READ_AHEAD)


class Bench:
    """What is read, and what came of it."""

    def __init__(self, args, scratch, stack):
        self.args, self.scratch = args, scratch
        self.places = scratch / "places"
        self.files, self.pids, self.rows = {}, {}, {}
        self.run = bigrun.BigRun(self.make("bucket"), args.mib)
        self.run.anchor()
        self.run.write_places(self.places)
        for _ in range(args.deltas):
            self.run.delta()
        self.mount = stack.enter_context(mounted.Mount(
            scratch / "bucket", keep=2000, work=self.make("work"),
            args=["--materialize", "never", "--inotify", "off"]))
        self.mount.wait_version(args.deltas + 1, 120)
        self.counts = [n for n in (0, 1, 10, 50, 100) if n <= args.deltas]
        for n in self.counts:
            self.mount.control(f"pin {n + 1}")
            self.add(f"{n} deltas", self.mount.tree(n + 1) / FILE, self.mount.process.pid)
        self.size = (self.mount.tree(1) / FILE).stat().st_size
        self.plain = scratch / "plain" / FILE
        self.make("plain")
        shutil.copyfile(self.mount.tree(1) / FILE, self.plain)
        self.add("plain file", self.plain, None)
        self.others(stack)

    def make(self, name):
        """A directory below the scratch one."""
        path = self.scratch / name
        path.mkdir(exist_ok=True)
        return path

    def add(self, name, path, pid):
        """Something to read."""
        self.files[name], self.pids[name] = path, pid

    def others(self, stack):
        """The bare daemon, rclone mount, and a version that is written out."""
        bare = stack.enter_context(Process([BENCH / "bare_fuse", self.plain,
                                            self.scratch / "bare"], self.scratch / "bare"))
        same_read_ahead(bare.at)
        self.add("bare", bare.at / "file", bare.process.pid)
        rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or \
            shutil.which("rclone")
        if rclone:
            other = stack.enter_context(Process(
                [rclone, "mount", self.scratch / "plain", self.scratch / "rclone", "--read-only",
                 "--config", self.scratch / "none", "--cache-dir", self.scratch / "rcache",
                 "--vfs-cache-mode", "off"], self.scratch / "rclone"))
            same_read_ahead(other.at)
            self.add("rclone mount", other.at / FILE, other.process.pid)
        else:
            print("bench_read: no rows of rclone mount: rclone is not installed (make setup)")
        if os.geteuid() != 0:
            print("bench_read: no rows of passthrough: it is for root")
            return
        whole = stack.enter_context(mounted.Mount(
            self.scratch / "bucket", work=self.make("whole"), args=["--materialize", "always"]))
        with contextlib.suppress(AssertionError):
            mounted.wait_until(lambda: whole.status()["serving"]["whole_files"], "", 60)
            self.add("written out", whole.at / FILE, whole.process.pid)

    def one(self, name, style, cold):
        """One reading, into the rows."""
        pid = self.pids[name]
        ours = pid == self.mount.process.pid
        before = self.mount.status()["counters"] if ours else None
        cpu = cpu_seconds(pid) if pid else 0
        seconds, total, client = reader(style, self.files[name], cold, self.places)
        row = self.rows.setdefault((name, style, cold), {"gbps": [], "cpu": [], "client": [],
                                                         "asked": [], "reads": []})
        row["gbps"].append(total / seconds * 1e-9)
        row["client"].append(client / total * 2**30)
        if pid:
            row["cpu"].append((cpu_seconds(pid) - cpu) / total * 2**30)
        if ours:
            after = self.mount.status()["counters"]
            row["asked"].append((after["read_bytes"] - before["read_bytes"]) / self.size)
            row["reads"].append(after["reads"] - before["reads"])

    def all(self):
        """All rounds."""
        quick = [name for name in self.files if name != "rclone mount"]
        for number in range(self.args.rounds):
            for style in self.args.styles.split(","):
                for name in self.files if number == 0 and style in ONCE else quick:
                    self.one(name, style, True)
                for name in quick if style in WARM else ():
                    reader(style, self.files[name], False, self.places)
                    self.one(name, style, False)
            for name in quick:
                reader("read", self.files[name], False, self.places)
                self.one(name, "random", False)

    def ratio(self, a, b):
        """Median over the rounds of one row's speed by another's; None where one is missing."""
        if a not in self.rows or b not in self.rows:
            return None
        return round(statistics.median(x / y for x, y in zip(self.rows[a]["gbps"],
                                                             self.rows[b]["gbps"])), 3)

    def four(self):
        """Four processes read one file, cold: what was asked for, by its size."""
        path = self.files[f"{self.counts[-1]} deltas"]
        reader("random", path, True, self.places)
        with open(path, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = self.mount.status()["counters"]["read_bytes"]
        words = [str(BENCH / "reader"), "read", str(path)]
        for p in [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(4)]:
            p.wait()
        return round((self.mount.status()["counters"]["read_bytes"] - before) / self.size, 4)

    def report(self):
        """The table, the goals, and JSON lines."""
        lines = []
        for (name, style, cold), row in self.rows.items():
            line = {"bench": "read", "what": name, "style": style, "cold": cold}
            for key, values in row.items():
                if values:
                    line[key] = round(statistics.median(values), 3)
            line["by_bare"] = self.ratio((name, style, cold), ("bare", style, cold))
            line["by_plain"] = self.ratio((name, style, cold), ("plain file", style, cold))
            line["by_unpatched"] = self.ratio((name, style, cold), ("0 deltas", style, cold))
            lines.append(line)
        for cold in (True, False):
            for style in dict.fromkeys(line["style"] for line in lines):
                if not any(t["style"] == style and t["cold"] == cold for t in lines):
                    continue
                print(f"\n{'cold' if cold else 'warm'}, {style:8}   GB/s  /bare /plain    CPU s/GiB"
                      "  requests, bytes/size")
                for t in lines:
                    if t["style"] != style or t["cold"] != cold:
                        continue
                    print(f"  {t['what']:16} {t['gbps']:7.2f} {t['by_bare'] or 0:6.2f} "
                          f"{t['by_plain'] or 0:6.2f}  {t.get('cpu', 0):5.2f} + "
                          f"{t['client']:4.2f}  {t.get('reads', ''):>7} {t.get('asked', '')}")
        self.goals()
        for line in lines:
            print(json.dumps(line))

    def goals(self):
        """Rows 5 and 6 of the table of goals."""
        most = f"{max(n for n in self.counts if n <= 10)} deltas"
        found = [
            ("5", "unpatched, cold, by bare", ">= 0.95",
             self.ratio(("0 deltas", "read", True), ("bare", "read", True))),
            ("5", f"{most}, cold, by unpatched", ">= 0.9",
             self.ratio((most, "read", True), ("0 deltas", "read", True))),
            ("5", "daemon CPU s/GiB, unpatched", "<= 0.2",
             round(statistics.median(self.rows["0 deltas", "read", True]["cpu"]), 3)),
            ("5", "the same of bare", "", round(statistics.median(
                self.rows["bare", "read", True]["cpu"]), 3)),
            ("5", f"the same of {most}", "", round(statistics.median(
                self.rows[most, "read", True]["cpu"]), 3)),
            ("5", "4 processes, one file: bytes by its size", "<= 1.02", self.four()),
            ("6", "warm: READ requests", "0",
             statistics.median(self.rows[most, "read", False]["reads"])),
            ("6", "warm, by warm bare", ">= 0.95",
             self.ratio((most, "read", False), ("bare", "read", False))),
            ("6", "written out, by a plain file, read", ">= 0.95",
             self.ratio(("written out", "read", False), ("plain file", "read", False))),
            ("6", "written out, by a plain file, map", ">= 0.95",
             self.ratio(("written out", "map", False), ("plain file", "map", False))),
            ("6", "written out, random 4 KiB", ">= 0.85",
             self.ratio(("written out", "random", False), ("plain file", "random", False))),
        ]
        print("\nrow  what                                        goal      measured")
        for row, what, goal, value in found:
            print(f"{row:>3}  {what:42}  {goal:8}  {value}")
        print()
        for row, what, goal, value in found:
            print(json.dumps({"bench": "goal", "row": row, "what": what, "goal": goal,
                              "measured": value}))


@contextlib.contextmanager
def small_pieces():
    """Keeps free memory in small pieces, where there is enough of it."""
    with open("/proc/meminfo", encoding="ascii") as f:
        free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) << 10
    if free < 12 << 30:
        yield
        return
    words = [str(BENCH / "reader"), "hold", str(4 << 30)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield
        process.stdin.close()


def measure(bench, args):
    """All that a class like Bench measures, in a directory of its own, which is gone at the end."""
    mounted.LIFETIME = 3600
    scratch = Path(tempfile.mkdtemp(prefix="weightfs-bench-"))
    try:
        with contextlib.ExitStack() as stack:
            one = bench(args, scratch, stack)
            stack.enter_context(small_pieces())
            one.all()
            one.report()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main():
    """The tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=192, help="of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deltas", type=int, default=50)
    parser.add_argument("--styles", default=",".join(STYLES))
    args = parser.parse_args()
    measure(Bench, args)


if __name__ == "__main__":
    main()
