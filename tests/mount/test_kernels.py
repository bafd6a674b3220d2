"""WEIGHTFS_KERNEL chooses the codec's inner loops, and changes no byte."""

import pytest

from lib import checks, models, oracle, trl
from lib.mounted import Mount

KERNELS = ("portable", "avx2", "avx512")


@pytest.fixture(name="run_of_steps")
def a_run_of_steps(bucket):
    """A run with more deltas than a stack keeps apart."""
    run = trl.Run(bucket, "v3", interval=40)
    models.publish(run, models.states(7, 12, models.SMALL))
    return bucket


def test_chosen_by_the_environment(run_of_steps, monkeypatch):
    """Each kernel shows the same bytes, and one that is not there is replaced with a warning."""
    want = oracle.Oracle(run_of_steps)
    newest = want.numbers()[-1]
    seen = set()
    for name in (*KERNELS, "fastest", ""):
        monkeypatch.setenv("WEIGHTFS_KERNEL", name)
        with Mount(run_of_steps) as m:
            m.wait_version(newest)
            checks.assert_tree(m.at, want.files(newest))
            used = m.status()["kernel"]
            warned = m.log_text().count("WEIGHTFS_KERNEL is")
            assert used in KERNELS
            assert warned == (name not in (used, "")), m.log_text()
            seen.add(used)
    assert "portable" in seen
