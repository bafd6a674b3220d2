"""A version that is warm before it is current: loading it asks the daemon for nothing."""

import os

import pytest

from lib import checks, models, oracle, reading, trl
from lib.mounted import Mount, wait_until

FILE = "model.safetensors"
RECLAIMED = 16 * 4096  # pages that a machine short of memory may have taken back meanwhile


@pytest.fixture(autouse=True)
def caches_are_kept():
    """What was warmed stays warm."""
    with reading.kept_caches():
        yield


def serving(m):
    """What the mount says of how it is served."""
    return m.status()["serving"]


def asked(m):
    """Bytes that READ requests have asked for so far."""
    return m.status()["counters"]["read_bytes"]


def test_a_load_asks_for_nothing(bucket):
    """By read and by map, by plain path and by number, version after version."""
    run = trl.Run(bucket, "v3", interval=50)
    states = models.states(3, 4)
    want = oracle.Oracle(bucket)
    with Mount(bucket, args=["--warm", "--materialize", "never"]) as m:
        for i, state in enumerate(states):
            run.sync(state)
            m.wait_version(i + 1)
            if i == 0:  # nothing was shown before, so it did not wait
                wait_until(lambda: serving(m)["warmed_bytes"], "the first one is not warmed")
            files = want.files(i + 1)
            assert serving(m)["warmed_bytes"] == (i + 1) * len(files[FILE])
            had = asked(m)
            assert reading.read_file(m.at / FILE) == files[FILE]
            assert reading.read_mapped(m.at / FILE, shared=True) == files[FILE]
            assert reading.read_file(m.tree(i + 1) / FILE) == files[FILE]
            assert asked(m) - had <= RECLAIMED


def test_shards_and_companions(bucket):
    """Several files; and a companion that changes does not warm the weights again."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=50)
    run.sync(models.states(4, 1)[0])
    want = oracle.Oracle(bucket, shard_size=100000)
    with Mount(bucket, shard_size=100000, args=["--warm", "--materialize", "never"]) as m:
        wait_until(lambda: serving(m)["prepared"], "nothing was warmed")
        files = want.files(1)
        size = sum(len(files[name]) for name in checks.weight_files(files))
        assert serving(m)["warmed_bytes"] == size
        (bucket / "config.json").write_text('{"model_type": "other"}')
        wait_until(lambda: b"other" in reading.read_file(m.at / "config.json"),
                   "the new companion is not shown")
        checks.assert_tree(m.at, want.files(1))
        assert serving(m)["warmed_bytes"] == size


def test_budget(bucket):
    """What the budget does not allow is read on demand; the version becomes current anyway."""
    spec = {"big": ("BF16", (1536, 1024))}
    run = trl.Run(bucket, "v3", interval=50)
    states = models.states(5, 2, spec)
    run.sync(states[0])
    want = oracle.Oracle(bucket)
    with Mount(bucket, args=["--warm", "--warm-budget", "1M", "--materialize", "never"]) as m:
        wait_until(lambda: serving(m)["prepared"], "nothing was warmed")
        run.sync(states[1])
        m.wait_version(2)
        assert "1 of 3 MiB warmed: that is all that --warm-budget" in serving(m)["prepared"]
        assert serving(m)["warmed_bytes"] == 2 << 20
        had = asked(m)
        assert os.path.getsize(m.at / FILE) == len(want.files(2)[FILE])
        checks.assert_tree(m.at, want.files(2))
        assert asked(m) - had > RECLAIMED


def test_unmount_is_not_busy(bucket):
    """Nothing that warms keeps the mount from being taken down."""
    spec = {"big": ("BF16", (8 * 1024, 1024))}
    run = trl.Run(bucket, "v3", interval=50)
    states = models.states(6, 2, spec, density=0.001)
    run.sync(states[0])
    with Mount(bucket, args=["--warm", "--materialize", "never"]) as m:
        run.sync(states[1])
        # The context's end unmounts, and insists on exit code 0.
        wait_until(lambda: m.status()["newest"] == 2, "the second version does not come")
