"""Makes the committed golden buckets and their digests: python tests/golden/make.py

One tiny run per generation, from a fixed seed, and sums.txt with the SHA-256 of each file of each
version as the reference computes it.  The buckets are committed: what they must show never changes
by accident, neither by a change of the program nor of the writers or the reference.
"""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from lib import models, oracle, reading, trl  # noqa: E402

SUMS = HERE / "sums.txt"
STATES = 6
INTERVAL = 4


def make_bucket(generation):
    """One run; its fourth sync changes nothing and b.bias is rarely touched."""
    root = HERE / generation
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    (root / "config.json").write_text('{"model_type": "golden"}\n')
    states = models.states(2026, STATES, models.MINI, density=0.1, same=(3,), skip=("b.bias",))
    return models.publish(trl.Run(root, generation, interval=INTERVAL), states).root


def sums(root):
    """Lines of "digest  generation/version/file"."""
    want = oracle.Oracle(root, trust_times=False)
    for number in want.numbers():
        for name, blob in sorted(want.files(number).items()):
            yield f"{reading.sha256(blob)}  {root.name}/{number}/{name}"


def main():
    """All generations."""
    lines = [line for generation in trl.GENERATIONS for line in sums(make_bucket(generation))]
    SUMS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
