"""The S3 store and mounts of it, against servers that others wrote, with data from boto3."""

import hashlib
import time

import pytest

from lib import checks, driven, models, mounted, oracle, s3_servers, trl
from lib.driven import Failed, Store, keys, sentence
from lib.mounted import Mount
from lib.s3_servers import BUCKET

# What rclone refuses or turns into something else, because its bucket is a directory, stays out.
PLAIN = ["a b+c", "per%41cent", "ü/✓", "q?a=b&c#d", "star*'()!~", "a=b@c:d,e;f$", "deep/1/2/3/4"]
ODD = {"moto": [*PLAIN, "x//y", "tab\there"], "rclone": PLAIN}


@pytest.fixture(params=sorted(s3_servers.SERVERS))
def server(request, scratch):
    """(name, endpoint)"""
    with s3_servers.SERVERS[request.param](scratch) as endpoint:
        yield request.param, endpoint


def data_of(key, size=70000):
    """Content that no other key has."""
    return hashlib.sha256(key.encode()).digest() * (size // 32 + 1)


def test_odd_keys(server):
    """Listed and read as boto3 wrote them."""
    name, endpoint = server
    c = s3_servers.client(endpoint)
    for key in ODD[name]:
        c.put_object(Bucket=BUCKET, Key=key, Body=data_of(key))
    with Store(f"s3://{BUCKET}", "--endpoint", endpoint) as s:
        assert sorted(s.list()) == sorted(PLAIN)
        assert s.hidden == len(ODD[name]) - len(PLAIN)
        for key in PLAIN:
            assert s.get(key) == data_of(key)


@pytest.mark.parametrize("kind", sorted(s3_servers.SERVERS))
def test_thousands_of_keys(kind, scratch):
    """In pages; the prefix is a directory, not a beginning of names."""
    with s3_servers.SERVERS[kind](scratch, 5003) as endpoint:
        s3_servers.client(endpoint).put_object(Bucket=BUCKET, Key="run_other", Body=b"x")
        with Store(f"s3://{BUCKET}/run", "--endpoint", endpoint) as s:
            assert sorted(s.list()) == [f"{n:05}" for n in range(5003)]
            assert s.get("04711") == b"4711"


def test_overwrite_between_two_ranges(server):
    """Never bytes of two versions."""
    _, endpoint = server
    c = s3_servers.client(endpoint)
    c.put_object(Bucket=BUCKET, Key="o", Body=b"1" * 100000)
    with Store(f"s3://{BUCKET}", "--endpoint", endpoint) as s:
        s.list()
        handle = s.open("o")
        assert s.read(handle, 0, 50000) == b"1" * 50000
        time.sleep(1.1)  # rclone's times are those of files
        c.put_object(Bucket=BUCKET, Key="o", Body=b"2" * 100000)
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 50000, 50000)
        s.list()
        assert s.get("o") == b"2" * 100000
        c.delete_object(Bucket=BUCKET, Key="o")
        with pytest.raises(Failed, match="ENOENT"):
            s.read(s.open("o"), 0, 10)


def test_writes(server, scratch):
    """One PUT, and a multipart upload, read back by boto3."""
    _, endpoint = server
    c = s3_servers.client(endpoint)
    for key, size in (("small ü+", 1000), ("dir/big", 20 << 20), ("empty", 0)):
        path = scratch / "file"
        path.write_bytes(data_of(key, size)[:size])
        with Store(f"s3://{BUCKET}/run", "--endpoint", endpoint) as s:
            s.put(key, path)
            assert s.list()[key].size == size
            assert size == 0 or s.get(key) == path.read_bytes()
        got = c.get_object(Bucket=BUCKET, Key="run/" + key)["Body"].read()
        assert got == path.read_bytes()


def test_refusals(server):
    """A bucket that is not there; a wrong secret, where the server looks at it."""
    name, endpoint = server
    got = sentence("s3://nothing-here", "--endpoint", endpoint)
    assert got[0] == "ENOENT" and "there is no bucket 'nothing-here'" in got[1]
    if name == "rclone":
        for env in (keys(secret="WRONGMARKED"), keys(access="WRONG")):
            assert sentence(f"s3://{BUCKET}", "--endpoint", endpoint, env=env)[0] == "EACCES"


def upload(endpoint, root, done):
    """What is new in a directory, in the order of its files' times."""
    c = s3_servers.client(endpoint)
    fresh = sorted((p for p in root.rglob("*") if p.is_file() and p not in done),
                   key=lambda p: p.stat().st_mtime_ns)
    for path in fresh:
        c.upload_file(str(path), BUCKET, f"run/{path.relative_to(root)}")
        done.add(path)


def test_a_run_mounted(server, bucket, monkeypatch):
    """Every byte of every version equals the oracle's, while the run goes on."""
    _, endpoint = server
    for key, value in driven.environment(keys()).items():
        monkeypatch.setenv(key, value)
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=3)
    states = models.states(11, 6, models.TINY)
    done = set()
    run_states = list(states)
    for state in run_states[:3]:
        run.sync(state)
        upload(endpoint, bucket, done)
    want = oracle.Oracle(bucket)
    with Mount(f"s3://{BUCKET}/run", args=["--endpoint-url", endpoint]) as m:
        m.wait_version(want.numbers()[-1])
        checks.assert_tree(m.at, want.files(want.numbers()[-1]))
        for state in run_states[3:]:
            run.sync(state)
            upload(endpoint, bucket, done)
            number = want.numbers()[-1]
            m.wait_version(number)
            checks.assert_tree(m.at, want.files(number))
        for number in want.numbers():
            m.control(f"pin {number}")
            files = want.files(number)
            mounted.wait_until(lambda n=number: n in m.versions(), f"version {number}")
            checks.assert_tree(m.tree(number), files)
            checks.assert_ranges(m.tree(number) / "model.safetensors",
                                 files["model.safetensors"], number)
