"""Runs on a plain web server (nginx), seen through a mount."""

import contextlib
import json
import os

import pytest

from lib import checks, models, oracle, reading, trl
from lib.mounted import SLOW, Mount, run, wait_until
from lib.nginx import Nginx, certificate

KINDS = ["html", "json", "plain"]


def write_index(root):
    """index.json as a publisher writes it: last, and by rename."""
    objects = [{"key": str(p.relative_to(root)), "size": p.stat().st_size,
                "mtime": p.stat().st_mtime_ns / 1e9}
               for p in sorted(root.rglob("*")) if p.is_file() and p.name != "index.json"]
    (root / ".index").write_text(json.dumps({"objects": objects}))
    os.rename(root / ".index", root / "index.json")


@pytest.fixture
def server(bucket, scratch):
    """nginx over the bucket directory."""
    with Nginx(bucket, scratch / "nginx") as one:
        yield one


@pytest.fixture
def local(bucket):
    """A run of three versions."""
    models.write_companions(bucket)
    writer = trl.Run(bucket, "v3", interval=4)
    states = models.states(17, 8, models.TINY)
    models.publish(writer, states[:3])
    writer.rest = iter(states[3:])
    return writer


def sync(writer, bucket, kind):
    """One more version."""
    assert writer.sync(next(writer.rest))
    if kind == "plain":
        write_index(bucket)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte(server, local, bucket, kind):
    """Each kind of index shows the same run, and follows it."""
    if kind == "plain":
        write_index(bucket)
    want = oracle.Oracle(bucket, trust_times=False)
    files = {n: {k: v for k, v in want.files(n).items() if k != "index.json"} for n in (3,)}
    with Mount(server.url(kind), args=["--times", "ignore"]) as m:
        m.wait_version(3)
        checks.assert_tree(m.at, files[3])
        for number in (4, 5):
            sync(local, bucket, kind)
            m.wait_version(number)
            files[number] = {k: v for k, v in want.files(number).items() if k != "index.json"}
        for number, shown in files.items():
            checks.assert_tree(m.tree(number), shown)
            checks.assert_ranges(m.tree(number) / "model.safetensors", shown["model.safetensors"],
                                 number)


@pytest.mark.parametrize("kind", KINDS)
def test_quiet_rounds(server, local, bucket, kind):
    """While nothing changes nothing is asked twice: an index costs a 304, a listing itself."""
    if kind == "plain":
        write_index(bucket)
    with Mount(server.url(kind), poll=0.05) as m:
        m.wait_version(3)
        heads = [line for line in server.log() if line.startswith("HEAD")]
        assert len(heads) == len({*heads}) > 3
        before = len(server.log())
        wait_until(lambda: len(server.log()) > before + 10, "no rounds")
        fresh = server.log()[before:]
        assert not [line for line in fresh if line.startswith("HEAD")]
        if kind == "plain":
            rounds = [line for line in fresh if "index.json" in line]
            assert rounds and all(line.endswith("304") for line in rounds)
        sync(local, bucket, kind)
        m.wait_version(4)
        heads = [line for line in server.log()[before:] if line.startswith("HEAD")]
        assert len(heads) == 1, heads


@pytest.mark.parametrize("kind", KINDS)
def test_names(server, bucket, kind):
    """Names that need escaping in URLs, in HTML and in JSON."""
    files = {"a b.json": b"1", "plus+100%25.json": b"2", "ü&<x>'\"#?.json": b"3",
             "d e/f;g=h.json": b"4", "empty.json": b"", "deep/" + "x/" * 20 + "y.json": b"5"}
    for name, data in {**files, ".hidden": b"h", ".git/z": b"z"}.items():
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_bytes(data)
    if kind == "plain":
        write_index(bucket)
    with Mount(server.url(kind)) as m:
        top = m.dot / "bucket"
        assert {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*")
                if p.is_file()} == files


@pytest.mark.parametrize("kind", ["html", "plain"])
def test_overwritten_between_ranges(server, bucket, kind):
    """Never bytes of two versions in one open file."""
    old, new = os.urandom(6 << 20), os.urandom(6 << 20)
    (bucket / "a.bin").write_bytes(old)
    os.utime(bucket / "a.bin", (1e9, 1e9))
    write_index(bucket)
    with Mount(server.url(kind), poll=3600) as m:
        with open(m.dot / "bucket" / "a.bin", "rb", buffering=0) as f:
            assert f.read(1000) == old[:1000]
            (bucket / ".a").write_bytes(new)
            os.rename(bucket / ".a", bucket / "a.bin")
            got = None
            with contextlib.suppress(OSError):
                got = os.pread(f.fileno(), 1000, 5 << 20)
            assert got is None or got == old[5 << 20:][:1000]
        m.control("refresh")

        def shows_new():
            with contextlib.suppress(OSError):
                return (m.dot / "bucket" / "a.bin").read_bytes() == new

        wait_until(shows_new, "the new file was not shown")


def test_refusals(server, bucket, scratch):
    """What cannot be a source says why."""
    def failure(*args):
        done = run("log", *args, check=False)
        assert done.returncode != 0
        return done.stderr

    (bucket / "page.html").write_text("<html><a href='x'>hello</a></html>")
    assert "no index.json" in failure(server.url("plain"))
    assert "is not there" in failure(server.url("html") + "/none")
    assert "must not have a query" in failure(server.url("html") + "/?secret=hf_MARKED")
    assert "hf_MARKED" not in failure(server.url("html") + "/?secret=hf_MARKED")
    (bucket / "index.json").write_text('{"objects": [{"key": "a"}]}')
    assert 'has no "key" or no "size"' in failure(server.url("plain"))
    (bucket / "index.json").write_text("<html>not found</html>")
    assert "no index.json" in failure(server.url("plain"))


def test_certificates(local, bucket, scratch):
    """A private authority's certificate needs --ca-file; one for another name is never accepted."""
    scratch.joinpath("right").mkdir()
    scratch.joinpath("wrong").mkdir()
    right, wrong = certificate(scratch / "right"), certificate(scratch / "wrong", "example.org")
    want = oracle.Oracle(bucket, trust_times=False)
    with Nginx(bucket, scratch / "nginx", tls=right) as server:
        done = run("log", server.url("json"), check=False)
        assert done.returncode != 0 and "--ca-file" in done.stderr
        with Mount(server.url("json"), args=["--ca-file", right[0], "--times", "ignore"]) as m:
            m.wait_version(3)
            checks.assert_tree(m.at, want.files(3))
    with Nginx(bucket, scratch / "nginx2", tls=wrong) as server:
        done = run("log", "--ca-file", wrong[0], server.url("json"), check=False)
        assert done.returncode != 0 and "is not accepted" in done.stderr


def test_server_gone(server, local, bucket, scratch):
    """Cached bytes are served, others are an error, and all is well when it is back."""
    (bucket / "unread.bin").write_bytes(b"u" * 300000)
    want = oracle.Oracle(bucket, trust_times=False)
    with Mount(server.url("json"), args=["--times", "ignore", "--timeout", 4 * SLOW]) as m:
        m.wait_version(3)
        shown = want.files(3)
        checks.assert_tree(m.at, shown, read=reading.read_patiently)
        server.stop()
        wait_until(lambda: m.status()["store_error"], m.status)
        checks.assert_tree(m.at, shown)
        with pytest.raises(OSError):
            (m.dot / "bucket" / "unread.bin").read_bytes()
        server.start()
        sync(local, bucket, "json")
        m.wait_version(4)
        assert reading.read_patiently(m.dot / "bucket" / "unread.bin") == b"u" * 300000
