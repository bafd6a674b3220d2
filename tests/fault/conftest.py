"""What the tests of faults share."""

import pytest

from lib import everywhere


@pytest.fixture
def cases(scratch, monkeypatch):
    """{name: Case}, one of each kind of source."""
    with everywhere.all_cases(scratch, monkeypatch) as all_of_them:
        yield all_of_them
