"""The hunt for torn loads: processes load all shards by plain path, pausing in between, again and
again, while versions land.  With the guard each load is of one version; without it the same hunt
has to catch loads that are of several, or it would prove nothing; through versions/N it never does.

TORN_SECONDS (8) is how long; `make soak` gives it ten minutes.
"""

import os
import time

import pytest

from lib import loads, mounted, trl
from lib.mounted import Mount, wait_until

SECONDS = float(os.environ.get("TORN_SECONDS", "8")) * mounted.SLOW
RANKS = 8
# A version each EVERY seconds: half a load takes longer, so a load meets several.
EVERY = 1.0 if SECONDS > 60 else 0.25
PAUSE = EVERY / 2
# Far above what a load takes, and of which the hunt sees several.
MAX_HOLD = (20 if SECONDS > 60 else 6) * mounted.SLOW
SETTLE = MAX_HOLD * 2 / 3
# Through versions/N: as long in the long form; otherwise there is little to be hunted.
BY_VERSION = SECONDS if SECONDS > 60 else min(SECONDS, 3)
SHARDS = 4
# The guard lets so many versions be current at least.
ENOUGH = max(2, SECONDS // MAX_HOLD // 2)


@pytest.fixture
def run(bucket):
    """The first version of a run whose tensors all say which version they are of."""
    run = trl.Run(bucket, "v3", interval=10)
    run.sync(loads.fingerprint(1))
    return run


def mount(run, settle, *args):
    """Four shards of two tensors."""
    return Mount(run.root, shard_size=loads.shard_size(2), settle=settle, keep=4,
                 lifetime=SECONDS + mounted.LIFETIME, args=["--log-level", "error", *args])


def hunt(m, run, top, enough):
    """Lets the ranks load from `top` while versions land, until enough(seconds, versions that were
    current), a while longer than the time by the clock; see ended()."""
    m.wait_version(1)
    current = set()
    with loads.Ranks(top, pause=PAUSE, count=RANKS) as ranks:
        start = time.monotonic()
        ranks.begin("loads")
        while not enough(time.monotonic() - start, len(current)):
            run.sync(loads.fingerprint(run.number + 1))
            time.sleep(EVERY)
            current.add(m.version())
        return ended(ranks)


def ended(ranks):
    """Ends the ranks' loads: [(versions that it met, seconds)] of all of them."""
    ranks.begin("look")
    done = ranks.end()
    ranks.end()
    return [load for rank in done for load in rank]


def in_time(all_loads):
    """Versions of the loads of which something is promised: not of those that took longer than
    --settle, on a machine that is busy with other things."""
    return [versions for versions, seconds in all_loads if seconds < SETTLE]


def passed(seconds, versions):
    """Is the time over, and has enough happened in it?  (A busy machine gets more time.)"""
    return seconds > SECONDS and (versions > ENOUGH or seconds > 5 * SECONDS)


@pytest.mark.timeout(SECONDS + mounted.LIFETIME, method="signal")
def test_with_the_guard(run):
    """Every load is of one version, also of those that --max-hold meets half way; and they do move
    on: loads that always overlap do not keep a version for ever."""
    with mount(run, SETTLE, "--max-hold", MAX_HOLD) as m:
        all_loads = in_time(hunt(m, run, m.at, passed))
        assert [load for load in all_loads if len(load) != 1] == []
        versions = {load[0] for load in all_loads}
        assert len(all_loads) >= RANKS and len(versions) >= ENOUGH
        wait_until(lambda: not m.status()["loads"], "loads that do not end")
        m.wait_version(run.number)


def test_released_all_the_time(run):
    """The plain paths move at any moment of a load, also between the look-up of a name and its
    open: the process that loads keeps to its version."""
    with mount(run, SETTLE) as m:
        m.wait_version(1)
        with loads.Ranks(m.at, pause=0.01, count=RANKS) as ranks:
            ranks.begin("loads")
            seen = set()
            while len(seen) < 25:
                run.sync(loads.fingerprint(run.number + 1))
                for _ in range(5):
                    m.control("release")
                    seen.add(m.version())
            all_loads = in_time(ended(ranks))
        assert [load for load in all_loads if len(load) != 1] == []
        assert len({load[0] for load in all_loads}) > 5


def test_without_it(run):
    """The same loads are torn, so that the hunt would have noticed."""
    with mount(run, 0) as m:
        all_loads = hunt(m, run, m.at, lambda seconds, versions: seconds > 12 * PAUSE and (
            versions > 5 or seconds > 5 * SECONDS))
        torn = [load for load, _ in all_loads if len(load) > 1]
        # Each load takes longer than versions take to come, where the machine is not too busy.
        assert torn
        assert not any("torn" in load for load, _ in all_loads), "a single tensor is torn"


@pytest.mark.timeout(BY_VERSION + mounted.LIFETIME, method="signal")
def test_by_version(run):
    """Through versions/N nothing is torn, guard or not, and nothing is held."""
    with mount(run, 0) as m:
        m.wait_version(1)
        m.control("pin 1")
        all_loads = hunt(m, run, m.tree(1), lambda seconds, _: seconds > BY_VERSION)
        assert all_loads and [load for load, _ in all_loads if load != [1]] == []
        m.wait_version(run.number)
