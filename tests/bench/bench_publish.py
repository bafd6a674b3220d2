# SPDX-License-Identifier: Apache-2.0
"""From `weightfs publish` to weights that can be read on a mount, over a local S3 server.

A model of random bf16 weights, of which --percent change by one step of bf16 from version to
version, is published to `rclone serve s3`; a mount of the same bucket looks every --poll seconds.
nginx between all of them writes down when each request ended and how long it took, which splits the
time of each version:

  diff      the pass over both states: patches, hashes, the copy for the next time
  encode    the delta's file
  upload    the delta, index.json, weightfs.json
  notice    until the mount has asked for the delta (half of --poll on average, at best)
  download  the delta
  build     until the version is there, and 1 MiB of a changed tensor has been read and compared

Everything runs on one machine, on which the server takes processors from both sides.  Medians over
the versions; a table, then one line of JSON.

usage: bench_publish.py [--mib 1024] [--percent 1] [--versions 5] [--poll 0.2]
"""

import argparse
import json
import os
import re
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))

# pylint: disable=wrong-import-position
from lib import driven, mounted, nginx, s3_servers  # noqa: E402

PART = 32 << 20          # bytes of a tensor
COLUMNS = ("diff", "encode", "upload", "notice", "download", "build")
LINE = re.compile(r"(\S+) (\S+) (\S+) (\S+) (\d+)")


class Front(nginx.Nginx):
    """A proxy that keeps times; `root` is the address behind it."""

    config = """
daemon off;
worker_processes 1;
pid {work}/pid;
error_log {work}/error.log;
{user}
events {{ worker_connections 256; }}
http {{
    log_format times '$msec $request_time $request_method $uri $status';
    access_log {work}/access.log times;
    client_body_temp_path {work}/body; proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi; uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
    client_max_body_size 0;
    proxy_http_version 1.1; proxy_request_buffering off; proxy_buffering off;
    server {{
        listen 127.0.0.1:{port}{ssl};
        {certificates}
        location / {{ proxy_pass {root}; proxy_set_header Host $http_host; }}
    }}
}}
"""

    def requests(self):
        """(began, ended, method, path, status) of each so far."""
        out = []
        for line in (self.work / "access.log").read_text().splitlines():
            ended, took, method, path, status = LINE.fullmatch(line).groups()
            out.append((float(ended) - float(took), float(ended), method, path, int(status)))
        return out


def write_checkpoint(path, tensors):
    """One file of equal tensors."""
    size = tensors[0].nbytes
    header = {f"model.layers.{i}.weight": {
        "dtype": "BF16", "shape": [size // 2], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(len(tensors))}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            f.write(tensor.tobytes())
    return 8 + len(text)


def start(mib):
    """Weights as they are in models: normal, small."""
    rng = np.random.default_rng(1)
    one = (rng.standard_normal(PART // 2, dtype=np.float32) * 0.02).view("<u4") >> 16
    return rng, [np.roll(one.astype("<u2"), i * 977) for i in range(max(mib * (1 << 20) // PART,
                                                                        1))]


def step(rng, tensors, percent):
    """The next state."""
    for i, tensor in enumerate(tensors):
        count = int(tensor.size * percent / 100)
        at = rng.integers(0, tensor.size, count)
        changed = tensor.copy()
        changed[at] += rng.choice(np.array([1, 65535], "<u2"), count)
        tensors[i] = changed


def wait_event(fd, version, dot):
    """Sleeps in poll(2) until `newest` is the version."""
    poller = select.poll()
    poller.register(fd, select.POLLPRI)
    end = time.monotonic() + mounted.WAIT
    while int((dot / "newest").read_text() or 0) < version:
        assert time.monotonic() < end, f"version {version} does not come"
        poller.poll(50)


def measure(publisher, front, mount, checkpoint, tensors, header, version):
    """One version: seconds by column."""
    with open(mount.dot / "newest", "rb") as newest:
        newest.read()
        done = subprocess.run([*publisher, checkpoint, "s3://" + s3_servers.BUCKET + "/run"],
                              capture_output=True, text=True, check=False,
                              env=driven.environment(driven.keys()))
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["version"] == version and report["kind"] == "delta", report
        wait_event(newest.fileno(), version, mount.dot)
    with open(mount.tree(version) / "model.safetensors", "rb", buffering=0) as f:
        f.seek(header)
        got = f.read(1 << 20)
    readable = time.time()
    assert got == tensors[0].tobytes()[:1 << 20], "other bytes than were published"
    log = front.requests()
    shown = max(e for _, e, m, p, _ in log if m == "PUT" and p.endswith("weightfs.json"))
    delta = re.compile(rf".*/deltas/step_{version:06d}-")
    gets = [(b, e) for b, e, m, p, s in log if m == "GET" and delta.match(p) and s < 300]
    assert gets, "the mount did not ask for the delta"
    first, last = min(b for b, _ in gets), max(e for _, e in gets)
    seconds = report["seconds"]
    return {"diff": seconds["diff"], "encode": seconds["encode"], "upload": seconds["upload"],
            "notice": first - shown, "download": last - first, "build": readable - last,
            "bytes": report["bytes"], "bits": report["bits_per_change"]}


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(usage=__doc__.rsplit("usage: ", 1)[1])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--percent", type=float, default=1)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--poll", type=float, default=0.2)
    o = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="weightfs-bench-"))
    rows = []
    os.environ.update(driven.environment(driven.keys()))
    try:
        with s3_servers.rclone(scratch) as endpoint:
            front = Front(endpoint, scratch / "nginx").start()
            try:
                args = ["--endpoint-url", f"http://127.0.0.1:{front.port}"]
                publisher = [str(mounted.BINARY), "publish", "--json", "--state-dir",
                             str(scratch / "state"), *args]
                rng, tensors = start(o.mib)
                header = write_checkpoint(scratch / "c", tensors)
                subprocess.run([*publisher, scratch / "c", f"s3://{s3_servers.BUCKET}/run"],
                               check=True, stdout=subprocess.DEVNULL)
                with mounted.Mount(f"s3://{s3_servers.BUCKET}/run", poll=o.poll,
                                   args=args) as mount:
                    mount.wait_version(1)
                    with open(mount.at / "model.safetensors", "rb") as f:
                        f.seek(header)
                        f.read(1 << 20)
                    for version in range(2, o.versions + 2):
                        step(rng, tensors, o.percent)
                        write_checkpoint(scratch / "c", tensors)
                        rows.append(measure(publisher, front, mount, scratch / "c", tensors,
                                            header, version))
            finally:
                front.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    middle = {c: statistics.median(r[c] for r in rows) for c in rows[0]}
    total = sum(middle[c] for c in COLUMNS)
    print(f"publish to readable, {o.mib} MiB, {o.percent} % changed, "
          f"{middle['bytes'] / 1e6:.1f} MB, {middle['bits']:.1f} bits per change, looking every "
          f"{o.poll} s, S3 on this machine; seconds")
    print("".join(f"{c:>10}" for c in (*COLUMNS, "sum")))
    print("".join(f"{v:>10.3f}" for v in (*(middle[c] for c in COLUMNS), total)))
    print(json.dumps({"bench": "publish", "mib": o.mib, "percent": o.percent, "poll": o.poll,
                      "versions": o.versions, "sum": round(total, 4),
                      **{k: round(v, 4) for k, v in middle.items()}}))


if __name__ == "__main__":
    main()
