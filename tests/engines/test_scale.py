"""Many at once: 64 processes that load 64 shards each, and 16 mounts of one host with one cache."""

import contextlib
import hashlib

from lib import checks, loads, models, oracle, reading, trl
from lib.mounted import Mount, wait_until
from lib.nginx import Nginx

PROCESSES, SHARDS, MOUNTS = 64, 64, 16
MODEL = "model.safetensors"
SPEC = {"a.weight": ("BF16", (600, 1000)), "b.weight": ("BF16", (300, 1000))}


def test_64_processes_64_shards(bucket):
    """All of them load at the same time and get one version, while others arrive; no request is
    lost, no handle stays."""
    run = trl.Run(bucket, "v3")
    run.sync(loads.fingerprint(1, tensors=SHARDS, size=256))
    with Mount(bucket, shard_size=loads.shard_size(1, size=256), settle=600) as m:
        m.wait_version(1)
        assert len(loads.shards(m.at)) == SHARDS
        with loads.Ranks(m.at, count=PROCESSES) as ranks:
            for version in (1, 4):
                ranks.begin("load")
                wait_until(lambda: any(one["version"] == version for one in m.status()["loads"]),
                           "nobody loads")
                for _ in range(3):
                    run.sync(loads.fingerprint(run.number + 1, tensors=SHARDS, size=256))
                assert ranks.end() == [[version]] * PROCESSES
                # The kernel says that a file is closed, and does not wait for an answer.
                wait_until(lambda: not any(one["open"] for one in m.status()["loads"]), m.status)
                have = m.status()
                assert len(have["loads"]) == PROCESSES and have["version"] == version
                # The index and each shard twice.
                assert all(one["opens"] == 1 + 2 * SHARDS for one in have["loads"]
                           if one["version"] == version)
                wait_until(lambda: (m.dot / "newest").read_text() == f"{run.number}\n",
                           lambda: m.log_text()[-2000:])
                m.control("release")
                m.wait_version(run.number)
            wait_until(lambda: not any(v["open"] for v in m.status()["versions"]), m.status)


def digests(mounts):
    """The digest of the model that each mount shows."""
    return [hashlib.sha256(reading.read_file(m.at / MODEL)).hexdigest() for m in mounts]


@contextlib.contextmanager
def mounted_often(source, scratch, *args):
    """16 mounts of one source, with one cache directory."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Mount(source, poll=0.2, args=[
            "--cache-dir", scratch / "shared", *args])) for _ in range(MOUNTS)]


def test_16_mounts_of_a_directory(bucket, scratch):
    """Patches on disk are shared: every mount shows every version, and one that starts later, or
    whose neighbours are gone, finds them."""
    run = trl.Run(bucket, "v3", interval=3)
    states = models.states(91, 4, SPEC)
    want = oracle.Oracle(bucket)
    with mounted_often(bucket, scratch) as mounts:
        for state in states:
            run.sync(state)
            for m in mounts:
                m.wait_version(run.number)
            blob = want.files(run.number)[MODEL]
            assert set(digests(mounts)) == {reading.sha256(blob)}
        assert not any(m.status()["cache_in_memory"] for m in mounts)
        for number in want.numbers():
            for m in (mounts[0], mounts[-1]):
                checks.assert_tree(m.tree(number), want.files(number))

        def files():
            return [p for p in (scratch / "shared").rglob("*") if p.is_file()]

        # As many as one mount alone would have, not one set each (but while they are written).
        wait_until(lambda: len(files()) < 2 * len(states) + 4, files)


def test_16_mounts_of_a_web_server(bucket, scratch):
    """One of them writes the block cache; the others read what it has, say who writes, and fetch
    the rest for themselves; all show the same bytes.  When the writer has gone, another is it as
    soon as there is something to write."""
    run, states = trl.Run(bucket, "v3", interval=1), models.states(92, 2, SPEC)
    models.publish(run, states)
    want = oracle.Oracle(bucket, trust_times=False)
    digest = reading.sha256(want.files(2)[MODEL])
    args = ["--times", "ignore"]

    def blocks(mounts, name):
        return [m.status()["blocks"][name] for m in mounts]

    with Nginx(bucket, scratch / "nginx") as server, contextlib.ExitStack() as others:
        url = server.url("json")
        with Mount(url, args=["--cache-dir", scratch / "shared", *args]) as first:
            first.wait_version(2)
            assert digests([first]) == [digest]
            wait_until(lambda: blocks([first], "newest_present") == blocks([first], "newest_size"),
                       "not on disk")
            mounts = others.enter_context(mounted_often(url, scratch, *args))
            for m in mounts:
                m.wait_version(2)
            assert digests(mounts) == [digest] * len(mounts)
            assert blocks([first, *mounts], "writing") == [True] + [False] * len(mounts)
            writer = f"is written by process {first.process.pid} ({first.at})"
            wait_until(lambda: all(writer in m.log_text() for m in mounts),
                       lambda: [m.log_text() for m in mounts])
            # Read from the writer's disk, not fetched again by each.
            size = blocks([first], "newest_size")[0]
            assert all(got < size / 4 for got in blocks(mounts, "fetched_bytes"))

        def taken_over():
            # Anchors, which have to be fetched: who fetches looks every two seconds.
            run.sync(states[run.number % 2])
            mounts[0].wait_version(run.number)
            digests(mounts[:1])
            return sum(blocks(mounts, "writing")) == 1

        wait_until(taken_over, "nobody writes")
        for m in mounts:
            m.wait_version(run.number)
        assert set(digests(mounts)) == {reading.sha256(want.files(run.number)[MODEL])}


def test_files_open_at_once(bucket):
    """Every shard open several times over by many processes at the same time."""
    count, run = 200, trl.Run(bucket, "v3")
    run.sync(loads.fingerprint(1, tensors=count, size=64))
    with Mount(bucket, shard_size=loads.shard_size(1, size=64), settle=600) as m:
        m.wait_version(1)
        names = loads.shards(m.at)
        assert len(names) == count
        with loads.Ranks(m.at, count=8) as ranks:
            for name in names:
                assert ranks("open", name) == [[1]] * 8
            assert sum(v["open"] for v in m.status()["versions"]) == 8 * 2 * count
            assert all(len(one["files"]) == 64 for one in m.status()["loads"])
            ranks("close")
            wait_until(lambda: sum(v["open"] for v in m.status()["versions"]) == 0, "still open")
