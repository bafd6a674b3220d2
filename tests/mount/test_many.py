"""Thousands of versions in one run (MANY_VERSIONS): what a look costs, in counts and not in
seconds.

A look that finds what the last one found does nothing; a new version opens its own object and no
other; and what is kept of old ones in memory does not grow with their number.
"""

import os
import time

import pytest

from lib import driven, longrun, mounted
from lib.mounted import Mount
from lib.strict_s3 import StrictS3

COUNT = int(os.environ.get("MANY_VERSIONS", "1500"))
MODEL = "model.safetensors"


def scans(m):
    """How many looks there were, and how many found the same as before."""
    counters = m.status()["counters"]
    return counters["scans"], counters["scans_alike"]


def looks(m, count):
    """So many looks that find nothing new, in a mount that has come to rest."""
    def rested():
        before = scans(m)
        m.control("refresh")
        return scans(m)[1] > before[1]

    def others():
        """Those that found something; one that is just being counted may look like one."""
        every, alike = scans(m)
        return every - alike

    mounted.wait_until(rested, "it does not come to rest")
    before, found = scans(m)[0], others()
    for _ in range(count):
        m.control("refresh")
    assert scans(m)[0] - before >= count
    mounted.wait_until(lambda: others() <= found, lambda: f"{others()} looks found something")


@pytest.mark.parametrize("kind", list(longrun.KINDS))
def test_local(kind, bucket):
    """A local directory."""
    writer = longrun.make(kind, bucket, COUNT, time.time() - 10)
    with Mount(bucket, keep=4) as m:
        m.wait_version(COUNT)
        looks(m, 5)
        for number in range(COUNT + 1, COUNT + 4):
            writer.version(number)
            if kind == "declared":
                writer.pointer()
            m.wait_version(number)
            assert longrun.data_of(m.at / MODEL) == longrun.expected(number)
        looks(m, 3)
        m.control("pin 33")
        assert longrun.data_of(m.tree(33) / MODEL) == longrun.expected(33)
        m.wait_well()
        assert len(os.listdir(m.work / "cache")) < 200


def indexes_in(server):
    """Those that were asked for."""
    with server.s3.lock:
        return {line.target for line in server.s3.seen if "index.json" in line.target}


def newest_first(server, weights):
    """The newest version was read while indexes of old ones were not; by now all of them are."""
    mounted.wait_until(lambda: len(indexes_in(server)) >= COUNT - COUNT // 20 - 1,
                       lambda: f"{len(indexes_in(server))} indexes are read")
    targets = [line.target for line in server.s3.seen]
    first = next(i for i, target in enumerate(targets)
                 if weights in target and "index.json" not in target)
    assert len([t for t in targets[:first] if "index.json" in t]) <= 1024
    assert len(indexes_in(server)) == COUNT - COUNT // 20 - 1


@pytest.mark.parametrize("kind", list(longrun.KINDS))
def test_s3(kind, bucket, monkeypatch):
    """In S3: three to six small requests a look, and of a new version its own objects."""
    writer = longrun.make(kind, bucket, COUNT, time.time() - 10)
    for name in list(os.environ):
        if name.startswith("AWS_") or "proxy" in name.lower():
            monkeypatch.delenv(name)
    for key, value in driven.environment(driven.keys()).items():
        monkeypatch.setenv(key, value)
    with StrictS3() as server:
        server.page = COUNT // 10
        server.put_tree(bucket, "run/")
        with Mount("s3://bucket/run", args=["--endpoint-url", server.endpoint], keep=4) as m:
            m.wait_version(COUNT)

            def rested():
                mark, before = server.s3.mark(), scans(m)
                mounted.wait_until(lambda: scans(m)[0] > before[0] + 2, "it does not look")
                return server.s3.count("continuation-token", mark) == 0 and \
                    server.s3.count("", mark) <= 6 * (scans(m)[0] - before[0] + 1)

            mounted.wait_until(rested, "it goes on listing")
            if kind == "directories":
                newest_first(server, f"weight_v{COUNT:06d}/model")
            number = COUNT + 1
            mark, begun = server.s3.mark(), time.time()
            writer.version(number)
            if kind == "declared":
                writer.pointer()
            for path in bucket.rglob("*"):
                if path.is_file() and path.stat().st_mtime > begun - 8:
                    server.put("run/" + str(path.relative_to(bucket)), path.read_bytes())
            m.wait_version(number)
            assert longrun.data_of(m.at / MODEL) == longrun.expected(number)
            seen = server.s3.seen[mark:]
            gets = [line for line in seen if "list-type" not in line.target]
            assert len(gets) <= 6, gets
