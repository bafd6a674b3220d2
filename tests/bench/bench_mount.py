# SPDX-License-Identifier: Apache-2.0
"""New versions, memory, start and latencies of a mount (rows 8 to 11 of the table of goals).

  8   an anchor of --mib MiB and then deltas of 1 % appear behind nginx and a line of --line MB/s;
      from telling the mount to look until the new version's bytes can be read, less the time of a
      look that finds nothing, by the time that curl needs for the delta
  9   resident memory with a terabyte of 100,000 tensors (a sparse file) and 10 deltas, one of which
      changes each of them, while one reader reads
  10  the start of that mount with a warm cache; stat and open+close of a plain path, quiet and
      while reads wait for a network of 3 s
  11  bytes that the web server sent for one step, by the size of the delta

A table, then each row as a line of JSON.

usage: bench_mount.py [--mib 256] [--steps 5] [--line 200]
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "tests" / "mount"), str(TOP / "tests" / "bench")]

# pylint: disable=wrong-import-position
import test_huge as huge  # noqa: E402
from bench_cold import Proxy, WebServer  # noqa: E402
from lib import bigrun, mounted  # noqa: E402
from lib.ports import free_port  # noqa: E402

FILE = "model.safetensors"
MIB = 1 << 20


def timed(action):
    """Seconds that it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def sent_bytes(log):
    """Bytes of bodies that a web server has sent so far."""
    return sum(int(line.split('" ')[1].split()[1]) for line in log.read_text().splitlines())


def read_all(path):
    """From beginning to end."""
    with open(path, "rb", buffering=0) as f:
        while f.read(MIB):
            pass


def curl(url):
    """Downloads to nowhere; seconds, without the start of the process."""
    done = subprocess.run(["curl", "-sf", "-o", "/dev/null", "-w", "%{time_total}", url],
                          check=True, capture_output=True, text=True)
    return float(done.stdout)


def steps(args, scratch, rows):
    """Rows 8 and 11."""
    root, near = scratch / "www", free_port()
    root.mkdir()
    run = bigrun.BigRun(root, args.mib)
    run.anchor()
    web = WebServer(root, scratch / "nginx")
    with web, Proxy(near, web.port, 1, args.line) as proxy:
        top = f"http://127.0.0.1:{proxy.port}/html"
        with mounted.Mount(f"{top}/", work=scratch / "steps", poll=3600,
                           args=["--materialize", "never"]) as m:
            m.control("refresh")
            m.wait_version(1, 60)
            read_all(m.at / FILE)
            ratios, bytes_by = [], []
            log = scratch / "nginx" / "access.log"
            for _ in range(args.steps):
                delta = run.delta()
                sent = sent_bytes(log)
                began = time.perf_counter()
                reply = m.control("refresh")
                with open(m.tree(run.number) / FILE, "rb", buffering=0) as f:
                    assert len(f.read(MIB)) == MIB, reply
                took = time.perf_counter() - began
                bytes_by.append((sent_bytes(log) - sent) / delta.stat().st_size)
                key = f"{top}/deltas/{delta.name}"
                look = min(timed(lambda: m.control("refresh")) for _ in range(3))
                ratios.append((took - look) / statistics.median(curl(key) for _ in range(3)))
            size = delta.stat().st_size
    rows.append(("8", f"delta of {size / 1e6:.1f} MB until readable, by curl", "<= 1.2",
                 round(statistics.median(ratios), 2)))
    rows.append(("11", "bytes sent for one step, by the delta's size", "~ 1",
                 round(statistics.median(bytes_by), 3)))


def terabyte(scratch, rows):
    """Rows 9 and 10: a large model's mount."""
    bucket = scratch / "huge"
    for folder in ("anchors", "deltas"):
        (bucket / folder).mkdir(parents=True)
    head = huge.write_anchor(bucket / "anchors" / "step_000001.safetensors")
    for number in range(2, 12):
        few = range(number, huge.TENSORS, 1 if number == 2 else 10)
        huge.write_delta(bucket / "deltas" / f"step_{number:06d}.safetensors", number,
                         huge.delta_of(number, few, number))
    work = scratch / "huge-work"
    args = ["--materialize", "never"]
    with mounted.Mount(bucket, work=work, args=args) as m:
        m.wait_version(11, 300)
        fd = os.open(m.at / FILE, os.O_RDONLY)
        rng, rss = random.Random(1), 0
        for _ in range(200):
            os.pread(fd, MIB, rng.randrange(head, huge.TENSORS * huge.NUMEL * 2))
            rss = max(rss, huge.rss_mb(m.process.pid))
        os.close(fd)
    rows.append(("9", "resident MB, 1 TB, 100,000 tensors, 10 deltas", "<= 264", round(rss)))
    starts = []
    for _ in range(3):
        again = mounted.Mount(bucket, work=work, args=args)
        starts.append(timed(again.__enter__))
        assert again.version() == 11
        again.__exit__(None, None, None)
    rows.append(("10", "start with a warm cache, s", "<= 0.5",
                 round(statistics.median(starts), 2)))


def latencies(path):
    """Median microseconds of stat and of open+close."""
    stat = statistics.median(timed(lambda: os.stat(path)) for _ in range(500))
    both = statistics.median(timed(lambda: os.close(os.open(path, os.O_RDONLY)))
                             for _ in range(500))
    return round(stat * 1e6), round(both * 1e6)


def waiting(args, scratch, rows):
    """Row 10: what others notice of reads that wait for the network."""
    root, near = scratch / "slow", free_port()
    root.mkdir()
    bigrun.BigRun(root, args.mib).anchor()
    web = WebServer(root, scratch / "nginx2")
    with web, contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(near, web.port, 0, 0))
        m = stack.enter_context(mounted.Mount(
            f"http://127.0.0.1:{proxy.port}/html/", work=scratch / "slow-work", poll=3600,
            args=["--materialize", "never"]))
        m.control("refresh")
        m.wait_version(1, 60)
        quiet = latencies(m.at / FILE)
        proxy.process.terminate()
        proxy.process.wait()
        slow = stack.enter_context(Proxy(near, web.port, 3000, 0))
        fd = os.open(m.at / FILE, os.O_RDONLY)
        size = os.fstat(fd).st_size
        readers = [threading.Thread(target=lambda i=i: os.pread(fd, 4096, size * i // 13))
                   for i in range(1, 13)]
        for reader in readers:
            reader.start()
        time.sleep(0.3)
        busy = latencies(m.at / FILE)
        still = sum(reader.is_alive() for reader in readers)
        for reader in readers:
            reader.join()
        os.close(fd)
        del slow
    for when, found in (("quiet", quiet), (f"while {still} reads wait", busy)):
        rows.append(("10", f"stat, median us, {when}", "<= 100", found[0]))
        rows.append(("10", f"open+close, median us, {when}", "<= 100", found[1]))


def main():
    """Everything is below one directory of its own, and gone at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--line", type=float, default=200, help="MB/s of the network")
    args = parser.parse_args()
    mounted.LIFETIME, mounted.WAIT = 3600, 300
    scratch, rows = Path(tempfile.mkdtemp(prefix="weightfs-bench-")), []
    try:
        for part in (lambda: steps(args, scratch, rows), lambda: waiting(args, scratch, rows),
                     lambda: terabyte(scratch, rows)):
            took = timed(part)
            print(f"bench_mount: {len(rows)} figures, {took:.0f} s", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("row  what                                                goal      measured")
    for row, what, goal, value in rows:
        print(f"{row:>3}  {what:50}  {goal:8}  {value}")
    for row, what, goal, value in rows:
        print(json.dumps({"bench": "goal", "row": row, "what": what, "goal": goal,
                          "measured": value}))


if __name__ == "__main__":
    main()
