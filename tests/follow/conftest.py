"""What the tests of `weightfs follow` share."""

import pytest

from lib.following import Rig


@pytest.fixture
def rig(bucket):
    """A mount with version 1."""
    one = Rig(bucket)
    with one.mount:
        one.mount.wait_version(1)
        yield one
        for server in one.servers:
            server.close()
