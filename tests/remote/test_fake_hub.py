"""The fake Hub is one to the real client: huggingface_hub lists, stats and downloads from it."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("huggingface_hub")

from lib import mounted  # noqa: E402
from lib.fake_hub import VALID, FakeHub, git_oid, xet_hash  # noqa: E402

CLIENT = """
import json, sys
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
api = HfApi()
def entries(it):
    return sorted([e.path, getattr(e, "size", None), getattr(e, "xet_hash", None)] for e in it)
"""


@pytest.fixture
def hub():
    """A fake with one bucket and one model."""
    with FakeHub() as one:
        one.harmless |= {"x-amzn-trace-id", "x-hf-download-counter"}  # what the client sends
        one.bucket("org/run", private=True)
        one.put("org/run", {"logs/a.bin": b"a" * 5000, "logs_x/b.bin": b"b" * 3000, "empty": b"",
                            "odd name+%41/ü.bin": b"c" * 2000})
        one.repo("org/model").commit({"config.json": b"{}", "model.safetensors": b"w" * 70000,
                                      "sub/dir/x.txt": b"x" * 40})
        yield one


@pytest.fixture
def client(hub, scratch):
    """Runs Python text in a process of its own, with the real client pointed at the fake."""
    def run(text, token=VALID):
        # Not what other tests set for the libraries that they load (offline mode, say).
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
        env |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(scratch / "hf"),
               "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
               "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_TOKEN": token}
        done = subprocess.run([sys.executable, "-c", CLIENT + text], env=env, text=True,
                              capture_output=True, timeout=mounted.WAIT * 4, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)
    return run


def test_bucket_listing(client, hub):
    """Recursive and raw by prefix, in pages, as the client sees it."""
    hub.page = 2
    got = client("print(json.dumps(entries(api.list_bucket_tree('org/run', recursive=True))))")
    assert [e[0] for e in got] == ["empty", "logs/a.bin", "logs_x/b.bin", "odd name+%41/ü.bin"]
    assert got[1][1:] == [5000, xet_hash(b"a" * 5000)]
    assert hub.hub.count("cursor=") == 1
    got = client("print(json.dumps(entries(api.list_bucket_tree('org/run', prefix='logs'))))")
    assert [e[0] for e in got] == ["logs/a.bin", "logs_x/b.bin"]
    got = client("print(json.dumps(entries(api.list_bucket_tree('org/run', recursive=False))))")
    assert [e[0] for e in got] == ["empty", "logs", "logs_x", "odd name+%41"]
    assert client("print(json.dumps(entries(api.list_bucket_tree('org/run', 'none'))))") == []


def test_bucket_metadata(client):
    """paths-info leaves out what is missing; the size is not the redirect's."""
    got = client("print(json.dumps(entries(api.get_bucket_paths_info('org/run', "
                 "['logs/a.bin', 'missing', 'empty']))))")
    assert got == [["empty", 0, xet_hash(b"")], ["logs/a.bin", 5000, xet_hash(b"a" * 5000)]]
    got = client("m = api.get_bucket_file_metadata('org/run', 'odd name+%41/ü.bin')\n"
                 "print(json.dumps([m.size, m.xet_file_data.file_hash]))")
    assert got == [2000, xet_hash(b"c" * 2000)]
    assert client("print(json.dumps(api.bucket_info('org/run').id))") == "org/run"


def test_bucket_bytes(client, hub):
    """Whole files and ranges through the client's file system, which redirects to the CDN."""
    got = client("fs = HfFileSystem()\n"
                 "whole = fs.cat_file('hf://buckets/org/run/logs/a.bin')\n"
                 "with fs.open('hf://buckets/org/run/odd name+%41/ü.bin', block_size=512) as f:\n"
                 "    f.seek(700)\n    part = f.read(300)\n"
                 "print(json.dumps([whole.decode(), part.decode()]))")
    assert got == ["a" * 5000, "c" * 300]
    assert hub.cdn.count("GET /xet-bridge-us/") > 0


def test_refusals(client):
    """A bad token, a stranger's, a missing bucket."""
    text = ("try:\n    api.bucket_info(%r)\nexcept HfHubHTTPError as e:\n"
            "    print(json.dumps([type(e).__name__, e.response.status_code]))")
    assert client(text % "org/run", token="hf_MARKEDwrong")[1] == 401
    assert client(text % "org/none")[1] == 404


def test_repo(client, hub, scratch):
    """Listing, metadata and downloads of a repository, pinned and by branch."""
    got = client("print(json.dumps(sorted([e.path, getattr(e, 'size', 0), "
                 "getattr(e, 'blob_id', None)] for e in "
                 "api.list_repo_tree('org/model', recursive=True))))")
    names = [e[0] for e in got]
    assert names == ["config.json", "model.safetensors", "sub", "sub/dir", "sub/dir/x.txt"]
    assert got[0][2] == git_oid(b"{}")
    got = client(f"p = snapshot_download('org/model', cache_dir={str(scratch / 'c')!r})\n"
                 "q = hf_hub_download('org/model', 'model.safetensors', revision="
                 "api.model_info('org/model').sha)\n"
                 "print(json.dumps([open(p + '/config.json').read(), "
                 "open(p + '/sub/dir/x.txt').read(), len(open(q).read())]))")
    assert got == ["{}", "x" * 40, 70000]
    assert hub.hub.count("GET /api/resolve-cache/models/org/model/") > 0


def test_batch(client, hub):
    """Deletes and copies by hash, through the client."""
    client("api.batch_bucket_files('org/run', delete=['empty'])\nprint('null')")
    assert "empty" not in hub.buckets["org/run"].files
    assert hub.buckets["org/run"].changes[-1][1] == [{"path": "empty", "op": "delete"}]


def test_feed(client, hub):
    """The client's own follower of a bucket's feed understands this one."""
    before = len(hub.buckets["org/run"].changes)
    got = client("""
from huggingface_hub._bucket_live_follow import BucketFollower
import threading, time
seen, done = [], threading.Event()
def changes(batch):
    seen.extend([c.path, c.op] for c in batch)
    done.set()
f = BucketFollower(endpoint=api.endpoint, bucket_id='org/run', on_changes=changes,
                   on_reconcile=lambda: None, is_alive=lambda: True)
f.start()
while not f.subscribed:
    time.sleep(0.01)
api.batch_bucket_files('org/run', delete=['logs/a.bin'])
done.wait(120)
print(json.dumps(seen))
""")
    assert got == [["logs/a.bin", "delete"]]
    assert len(hub.buckets["org/run"].changes) == before + 1
