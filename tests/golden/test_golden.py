"""The committed buckets show exactly the committed digests."""

from pathlib import Path

import pytest

from lib import reading
from lib.mounted import Mount

HERE = Path(__file__).resolve().parent


def expected():
    """{generation: {version: {file: digest}}} of sums.txt."""
    out = {}
    for line in (HERE / "sums.txt").read_text().splitlines():
        digest, path = line.split("  ", 1)
        generation, number, name = path.split("/", 2)
        out.setdefault(generation, {}).setdefault(int(number), {})[name] = digest
    return out


@pytest.mark.parametrize("generation", expected())
def test_digests(generation):
    """Every file of every version.  A checkout's times mean nothing, hence --times ignore."""
    versions = expected()[generation]
    base = HERE / f"{generation}.base"
    args = ["--times", "ignore", *(["--base", base] if base.exists() else [])]
    with Mount(HERE / generation, args=args) as m:
        m.wait_version(max(versions))
        for number, files in versions.items():
            m.control(f"pin {number}")
            seen = reading.tree(m.tree(number))
            assert {n: reading.sha256(reading.read_file(p)) for n, p in seen.items()} == files
