"""Fixtures of the Python tests, and the limits under which they run."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# Before any library reads it.  Threads that wait for each other by turning cost minutes where there
# are fewer processors than they think, and what they compute here takes one thread a moment.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib import leaks, mounted  # noqa: E402

# Every process of this suite has these, whatever it reads; tests that need others set those.
SECRETS = {"HF_TOKEN": "hf_SUITEMARKED" + "v5Yk" * 6, "AWS_ACCESS_KEY_ID": "AKIDSUITEMARKED",
           "AWS_SECRET_ACCESS_KEY": "SECRETSUITEMARKED", "AWS_SESSION_TOKEN": "TOKENSUITEMARKED"}


def pytest_report_header():
    """Says which binary is under test."""
    return f"weightfs: {mounted.BINARY}"


def pytest_collection_modifyitems(items):
    """Slow variants get more time; without FUSE there is nothing to mount, which is said."""
    usable = os.access("/dev/fuse", os.R_OK | os.W_OK)
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(mounted.LIFETIME + 60, method="signal"))
        if not usable:
            item.add_marker(pytest.mark.skip(reason="/dev/fuse cannot be opened"))


def pytest_sessionstart():
    """A missing program is an error, not a reason to skip everything."""
    if not mounted.BINARY.exists():
        pytest.exit(f"{mounted.BINARY} is not built (make VARIANT={mounted.VARIANT})", 2)


@pytest.fixture(scope="session", autouse=True)
def suite(tmp_path_factory):
    """Marked secrets for every process, and a home for what they keep without being told where; at
    the end that and what fixtures of modules left is searched for the marks."""
    home = Path(tempfile.mkdtemp(prefix="weightfs-test-home-"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(home))
        # Tests of loaders set it for the libraries that they import.
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        leaks.watch_processes([str(mounted.BINARY)])
        yield
    for top in (home, tmp_path_factory.getbasetemp()):
        leaks.SEARCH.tree(top)
    shutil.rmtree(home, ignore_errors=True)
    finds = leaks.SEARCH.take()
    assert not finds, "secrets were written:\n" + "\n".join(finds)


@pytest.fixture(autouse=True)
def no_leaks(suite):
    """No test may have made the program write a secret (see lib/leaks.py)."""
    yield
    finds = leaks.SEARCH.take()
    assert not finds, "secrets were written:\n" + "\n".join(finds)


@pytest.fixture
def scratch(no_leaks):
    """A fresh directory that any user may enter; removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="weightfs-test-"))
    path.chmod(0o755)
    yield path
    leaks.SEARCH.tree(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """What processes wrote past all pipes is in pytest's capture; the next check sees the finds."""
    report = yield
    leaks.SEARCH.text("what a test's processes printed", report.capstdout + report.capstderr)
    return report


@pytest.fixture
def bucket(scratch):
    """An empty bucket directory."""
    path = scratch / "bucket"
    path.mkdir()
    return path


@pytest.fixture
def own_cache(scratch, monkeypatch):
    """Tools keep patches in a cache directory, too: one of this test's own."""
    path = scratch / "tool-cache"
    monkeypatch.setenv("WEIGHTFS_CACHE_DIR", str(path))
    return path
