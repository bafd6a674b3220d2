"""`weightfs follow` with the real mlx_lm.server, where mlx runs: it loads what follow names."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request

import pytest

from lib import mounted
from lib.following import once
from lib.mounted import Mount, wait_until
from lib.ports import free_port


class Rig:
    """What once() wants."""

    def __init__(self, mount):
        self.mount = mount


@contextlib.contextmanager
def server(scratch):
    """The server; its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with open(scratch / "server.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlx_lm.server", "--port", str(port), "--host", "127.0.0.1"],
            stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})

    def answers():
        assert process.poll() is None, (scratch / "server.log").read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(
                f"{url}/health", timeout=10):
            return True
        return False

    try:
        wait_until(answers, "mlx_lm.server does not answer", 5 * mounted.WAIT)
        yield url
    finally:
        process.kill()
        process.wait()


def complete(url, path):
    """A user's request."""
    body = json.dumps({"model": path, "prompt": "weights", "max_tokens": 2, "temperature": 0})
    request = urllib.request.Request(f"{url}/v1/completions", body.encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=4 * mounted.WAIT) as answer:
        return json.load(answer)


@pytest.mark.timeout(3 * mounted.LIFETIME, method="signal")
@pytest.mark.skipif(not importlib.util.find_spec("mlx_lm"), reason="mlx-lm is not installed")
def test_real_server(bucket, scratch):
    """Loaded by follow, version by version; users who name the same path are served from it."""
    whole = scratch / "whole"
    mounted.run("simulate", whole, "--model", "qwen3-0.6b/500", "--steps", 2, "--every", 0,
                "--companions")
    shutil.copytree(whole, bucket, dirs_exist_ok=True, ignore=shutil.ignore_patterns("deltas"))
    with Mount(bucket, lifetime=3 * mounted.LIFETIME) as m, server(scratch) as url:
        m.wait_version(1)
        line, _ = once(Rig(m), "--engine", "mlx", "--url", url)
        assert line["result"] == "ok" and line["replicas"][0]["verified"]
        assert complete(url, line["path"])["model"] == str(m.tree(1))
        shutil.copytree(whole / "deltas", bucket / "deltas")
        wait_until(lambda: m.version() > 1, "no later version")
        line, _ = once(Rig(m), "--engine", "mlx", "--url", url)
        assert line["result"] == "ok" and line["version"] > 1
        assert complete(url, line["path"])["choices"]
        line, _ = once(Rig(m), "--engine", "mlx", "--url", url, "--engine-path", "/nowhere",
                       "--retries", 0, check=False)
        assert "cannot load /nowhere" in line["replicas"][0]["error"]
