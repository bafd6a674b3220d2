"""Makes the golden bucket of Fireworks' snapshots, with their package:

    python tests/golden/make_arc.py

arc.txt has the SHA-256 of each file of each version, from the states and not from the program.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from lib import arc, models, reading  # noqa: E402
from lib import safetensors_py as st  # noqa: E402

SPEC = {**models.MINI, "d.f8": ("F8_E4M3", (9, 5)), "e.none": ("BF16", (0, 4))}


def encode(src, dst, out):
    """The package's own files."""
    subprocess.run([sys.executable, HERE.parent / "interop" / "peer_fireworks.py", "arc_v2", src,
                    dst, out], check=True,
                   env={**os.environ, "PYTHONPATH": str(TOP / "build" / "venv" / "peers")})


def main():
    """Two whole snapshots and three deltas, one of which changes nothing."""
    root = HERE / "arc"
    shutil.rmtree(root, ignore_errors=True)
    states = models.states(2026, 5, SPEC, density=0.1, same=(2,))
    out, lines = arc.Trainer(root, name="step_{}"), []
    with tempfile.TemporaryDirectory() as work:
        whole = arc.Trainer(work, name="step_{}")
        for i, state in enumerate(states):
            version = 10 * (i + 1)
            whole.full(version, state)
            if i in (0, 3):
                out.full(version, state)
            else:
                encode(whole.folder(version - 10), whole.folder(version), out.folder(version))
                out.request(version, version - 10)
            shown = {p.name: p.read_bytes() for p in out.folder(version).iterdir()
                     if p.name != arc.REQUEST}
            shown["model.safetensors"] = st.dump(state, {"format": "pt"})
            lines += [f"{reading.sha256(blob)}  {version}/{name}"
                      for name, blob in sorted(shown.items())]
    (HERE / "arc.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
