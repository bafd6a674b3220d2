"""The committed buckets that packages of others made show exactly the committed digests."""

from pathlib import Path

import pytest

from lib import reading
from lib.mounted import Mount

HERE = Path(__file__).resolve().parent


def expected():
    """{bucket: {version: {file: digest}}} of peers.txt."""
    out = {}
    for line in (HERE / "peers.txt").read_text().splitlines():
        digest, path = line.split("  ", 1)
        bucket, version, name = path.split("/", 2)
        out.setdefault(bucket, {}).setdefault(int(version), {})[name] = digest
    return out


@pytest.mark.parametrize("bucket", expected())
def test_digests(bucket):
    """Every file of every version.  A checkout's times mean nothing, hence --times ignore."""
    want = expected()[bucket]
    base = HERE / f"{bucket}-base"
    with Mount(HERE / bucket, base=base if base.exists() else None,
               args=["--times", "ignore", "--verify", "eager"]) as m:
        m.wait_version(max(want))
        for version, files in want.items():
            m.control(f"pin {version}")
            seen = reading.tree(m.tree(version))
            assert {n: reading.sha256(reading.read_file(p)) for n, p in seen.items()} == files
        assert m.status()["problems"] == []
