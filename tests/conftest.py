"""Fixtures of the Python tests, and the limits under which they run."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib import mounted  # noqa: E402


def pytest_report_header():
    """Says which binary is under test."""
    return f"weightfs: {mounted.BINARY}"


def pytest_collection_modifyitems(items):
    """Slow variants get more time; without FUSE there is nothing to mount, which is said."""
    usable = os.access("/dev/fuse", os.R_OK | os.W_OK)
    for item in items:
        item.add_marker(pytest.mark.timeout(170 * mounted.SLOW, method="signal"))
        if not usable:
            item.add_marker(pytest.mark.skip(reason="/dev/fuse cannot be opened"))


def pytest_sessionstart():
    """A missing program is an error, not a reason to skip everything."""
    if not mounted.BINARY.exists():
        pytest.exit(f"{mounted.BINARY} is not built (make VARIANT={mounted.VARIANT})", 2)


@pytest.fixture
def scratch():
    """A fresh directory that any user may enter; removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="weightfs-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def bucket(scratch):
    """An empty bucket directory."""
    path = scratch / "bucket"
    path.mkdir()
    return path
