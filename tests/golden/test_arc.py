"""The committed snapshots, which Fireworks' package made, show exactly the committed digests."""

from pathlib import Path

from lib import reading
from lib.mounted import Mount

HERE = Path(__file__).resolve().parent


def test_digests():
    """Every file of every version.  A checkout's times mean nothing, hence --times ignore."""
    want = {}
    for line in (HERE / "arc.txt").read_text().splitlines():
        digest, path = line.split("  ", 1)
        version, name = path.split("/", 1)
        want.setdefault(int(version), {})[name] = digest
    with Mount(HERE / "arc", args=["--times", "ignore"]) as m:
        m.wait_version(max(want))
        for version, files in want.items():
            m.control(f"pin {version}")
            seen = reading.tree(m.tree(version))
            assert {n: reading.sha256(reading.read_file(p)) for n, p in seen.items()} == files
