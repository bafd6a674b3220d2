"""What hostile use has found once: each test is the smallest case of one bug."""

import json
import os
import subprocess
import time

import pytest

from lib import bigrun, checks, fake_server, models, oracle, reading, trl
from lib.mounted import WAIT, Mount, wait_until

MODEL = "model.safetensors"


# ---- times that lie -----------------------------------------------------------------------------


def test_a_clock_that_was_set_back(bucket):
    """Objects that are set aside for their times, but may be this run's own, are no holes: what
    lies above is not applied across them, until there is an anchor again."""
    run = trl.Run(bucket, "v3", interval=9)
    states = models.states(90, 9, models.SMALL)
    start = time.time_ns() - 3600 * 10**9
    for second, state in zip((0, 10, 20, 30, 5, 6, 40, 50), states):
        os.utime(run.sync(state), ns=(start + second * 10**9,) * 2)
    want = oracle.Oracle(bucket)
    assert want.numbers() == [1, 2, 3, 4]
    with Mount(bucket) as m:
        m.wait_version(4)
        m.wait_problem("", "step_000005", "--times ignore")
        for number in (5, 6, 7, 8):
            with pytest.raises(OSError):
                m.control(f"pin {number}")
        checks.assert_tree(m.at, want.files(4))
        run.sync(states[8])
        m.wait_version(9)
        checks.assert_tree(m.at, want.files(9))
    with Mount(bucket, args=["--times", "ignore"]) as m:
        m.wait_version(9)
        m.control("pin 8")
        assert reading.read_file(m.tree(8) / MODEL) == oracle.Oracle(
            bucket, trust_times=False).files(8)[MODEL]


def test_a_hole_over_what_an_earlier_run_left(bucket):
    """A restarted run skips a number under which the earlier run's object still lies: a hole."""
    models.publish(trl.Run(bucket, "v3"), models.states(91, 5, models.SMALL))
    old = time.time_ns() - 3600 * 10**9
    for path in bucket.rglob("*.safetensors"):
        os.utime(path, ns=(old, old))
    models.publish(trl.Run(bucket, "v3"), models.states(92, 4, models.SMALL, same=(2,)))
    want = oracle.Oracle(bucket)
    assert want.numbers() == [1, 2, 4]
    with Mount(bucket) as m:
        m.wait_version(4)
        checks.assert_tree(m.at, want.files(4))


# ---- companions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_a_companion_that_is_being_written(size, bucket):
    """It is shown as it was, or not yet, and then whole; also in trees made meanwhile."""
    run = trl.Run(bucket, "v3")
    states = models.states(93, 3, models.MINI)
    run.sync(states[0])
    (bucket / "old").write_bytes(b"before")
    whole = os.urandom(size)
    with Mount(bucket) as m:
        m.wait_version(1)
        with open(bucket / "old", "r+b", buffering=0) as old, \
                open(bucket / "new", "wb", buffering=0) as new:
            for f in (old, new):
                f.write(whole[:size // 2])
            m.control("refresh")
            run.sync(states[1])
            m.wait_version(2)
            assert reading.read_file(m.at / "old") == b"before"
            assert reading.read_file(m.tree(2) / "old") == b"before"
            assert not (m.at / "new").exists()
            for f in (old, new):
                f.write(whole[size // 2:])
        for name in ("old", "new"):
            wait_until((m.at / name).exists, "it does not come")
            wait_until(lambda: reading.read_file(m.at / name) == whole, "it does not change")
            assert reading.read_file(m.tree(2) / name) == whole


# ---- the bucket's directory ---------------------------------------------------------------------


def test_bucket_moved_away_for_another_run(bucket):
    """`mv bucket old; mkdir bucket`: the mount shows what is at its path.  Until there is
    something, it follows what was moved."""
    run = trl.Run(bucket, "v3")
    states = models.states(94, 4, models.SMALL)
    with Mount(bucket) as m:
        checks.publish(m, run, states[:3])
        os.rename(bucket, bucket.parent / "old")
        run.root = bucket.parent / "old"
        run.sync(states[3])
        m.wait_version(4)
        models.publish(trl.Run(bucket, "v3"), models.states(95, 2, models.SMALL))
        m.wait_version(2)
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(2))
        before = m.status()["lineage"]
        run.sync(models.step(models.start(1)[0], states[3]))
        m.control("refresh")
        assert m.version() == 2 and m.status()["lineage"] == before


# ---- the cache directory ------------------------------------------------------------------------


def test_cache_file_names_that_cannot_be_had(bucket, scratch):
    """Directories lie where patch files should: versions come all the same."""
    models.publish(trl.Run(bucket, "v3"), models.states(96, 4, models.SMALL))
    want = oracle.Oracle(bucket)
    cache = scratch / "work" / "cache"
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(4)
    files = [path for path in cache.rglob("*.patch")]
    assert files
    for path in files:
        path.unlink()
        (path / "sub").mkdir(parents=True)
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(4)
        checks.assert_tree(m.at, want.files(4))
    assert not [path for path in cache.rglob("tmp.*")]


def test_cache_without_space(bucket, scratch):
    """The disk of the cache directory is full: versions, folds and pins come all the same, and
    files are on disk again once there is space."""
    cache = scratch / "work" / "cache"
    cache.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(cache)],
                      capture_output=True, check=False).returncode:
        pytest.skip("needs a small tmpfs, which only root can mount")
    run = trl.Run(bucket, "v3", interval=100)
    states = models.states(97, 23, models.TINY, density=0.2)
    models.publish(run, states[:20])
    want = oracle.Oracle(bucket)
    try:
        with Mount(bucket, work=scratch / "work") as m:
            m.wait_version(20)
            checks.assert_tree(m.at, want.files(20))
            m.control("pin 10")
            checks.assert_tree(m.tree(10), want.files(10))
            assert not m.status()["problems"]
            checks.publish(m, run, states[20:22])
            subprocess.run(["mount", "-o", "remount,size=64m", str(cache)], check=True)
            checks.publish(m, run, states[22:])
            checks.assert_tree(m.at, want.files(23))
            wait_until(lambda: list(cache.rglob("*.patch")), "nothing is on disk")
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=False)


def test_a_patch_file_under_another_name(bucket, scratch):
    """Whole patch files of the same tensors, exchanged: what a file holds goes by what it says."""
    models.publish(trl.Run(bucket, "v3"), models.states(99, 5, models.SMALL))
    want = oracle.Oracle(bucket)
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(5)
    files = sorted((scratch / "work" / "cache").rglob("*.patch"))
    assert len(files) == 4
    held = [path.read_bytes() for path in files]
    for path, blob in zip(files, held[1:] + held[:1]):
        path.write_bytes(blob)
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(5)
        checks.assert_tree(m.at, want.files(5))


def test_patch_files_cut_short_while_mapped(bucket, scratch):
    """Somebody truncates the cache's files under a mount: reads of them are errors or right, the
    mount lives on, and what comes next is made again from the objects."""
    run, states = trl.Run(bucket, "v3"), models.states(100, 5)
    models.publish(run, states[:3])
    want = oracle.Oracle(bucket)
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(3)
        files = sorted((scratch / "work" / "cache").rglob("*.patch"))
        assert len(files) == 2
        for path in files:
            os.truncate(path, 0)
        with open(m.tree(3) / MODEL, "rb", buffering=0) as f:
            with pytest.raises(OSError, match="Input/output error"):
                while f.read(1 << 20):
                    pass
        assert m.version() == 3
        run.sync(states[3])
        m.wait_version(4)
        checks.assert_tree(m.at, want.files(4))
        assert reading.read_file(m.wait_tree(1) / MODEL) == want.files(1)[MODEL]
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(4)
        m.control("pin 3")
        for number in (3, 4):
            checks.assert_tree(m.tree(number), want.files(number))


# ---- control ------------------------------------------------------------------------------------


def test_pin_of_a_number_that_was_skipped(bucket):
    """The reply names the version that is pinned, since that is its name under versions/."""
    models.publish(trl.Run(bucket, "v3"), models.states(98, 5, models.MINI, same=(2,)))
    with Mount(bucket, keep=1) as m:
        m.wait_version(5)
        assert m.control("pin 3") == "ok: pinned 2, since nothing changed from there to 3"
        assert 2 in m.versions()
        assert m.control("unpin 2") == "ok: unpinned 2"


# ---- ends ---------------------------------------------------------------------------------------


def web(key, data):
    """A web server with one object."""
    index = json.dumps({"objects": [{"key": key, "size": len(data), "mtime": 1000}]}).encode()

    def handle(request):
        return fake_server.ranged(request, index if request.path == "/index.json" else data,
                                  (("ETag", '"1"'),))

    return fake_server.FakeServer(handle, "web")


def read_ahead_in_vain(m, server, key):
    """A read-ahead whose reader has gone waits for the network."""
    since = server.mark()
    server.fault(f"GET /{key}", "stall", times=1000)
    fd = os.open(m.at / MODEL, os.O_RDONLY)
    os.posix_fadvise(fd, 4 << 20, 2 << 20, os.POSIX_FADV_WILLNEED)
    os.close(fd)
    wait_until(lambda: server.count(f"GET /{key}", since), "nothing was asked for")


@pytest.mark.parametrize("end", ["unmounted", "signal"])
def test_ended_while_reads_of_the_base_wait(end, scratch):
    """The network of --base is another one than the source's."""
    empty, base = scratch / "empty", scratch / "base"
    empty.mkdir()
    base.mkdir()
    bigrun.BigRun(base, 8).anchor()
    server = web(MODEL, next(base.glob("anchors/*.safetensors")).read_bytes())
    try:
        with Mount(empty, base=server.origin, args=["--timeout", 3600]) as m:
            m.wait_version(0)
            read_ahead_in_vain(m, server, MODEL)
            if end == "signal":
                m.process.terminate()
                m.process.wait(timeout=WAIT)
    finally:
        server.stop()


def test_unmounted_while_reads_wait(bucket):
    """An unmounting does not wait for the network with a read-ahead."""
    bigrun.BigRun(bucket, 8).anchor()
    key = "anchors/step_000001.safetensors"
    server = web(key, (bucket / key).read_bytes())
    try:
        with Mount(server.origin, args=["--timeout", 3600]) as m:
            m.wait_version(1)
            read_ahead_in_vain(m, server, key)
    finally:
        server.stop()
