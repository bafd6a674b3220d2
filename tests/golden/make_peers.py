"""Makes the golden buckets that the packages of others write: python tests/golden/make_peers.py

Fireworks' snapshots, and ModelExpress's deltas on a base.  peers.txt has the SHA-256 of each file
of each version, from the states and not from the program.
"""

import json
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
CONFIG = b'{"model_type": "golden"}\n'


def peer(script, *args):
    """A peer's own code."""
    subprocess.run([sys.executable, HERE.parent / "interop" / script, *map(str, args)], check=True,
                   env={**os.environ, "PYTHONPATH": str(TOP / "build" / "venv" / "peers")})


def fresh(name):
    """An empty bucket."""
    root = HERE / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


def lines_of(root, version, files):
    """Lines of "digest  bucket/version/file"."""
    return [f"{reading.sha256(blob)}  {root.name}/{version}/{name}"
            for name, blob in sorted(files.items())]


def make_arc(states):
    """Two whole snapshots and three deltas, one of which changes nothing."""
    root, lines = fresh("arc"), []
    out = arc.Trainer(root, name="step_{}")
    with tempfile.TemporaryDirectory() as work:
        whole = arc.Trainer(work, name="step_{}")
        for i, state in enumerate(states):
            version = 10 * (i + 1)
            whole.full(version, state)
            if i in (0, 3):
                out.full(version, state)
            else:
                peer("peer_fireworks.py", "arc_v2", whole.folder(version - 10),
                     whole.folder(version), out.folder(version))
                out.request(version, version - 10)
            shown = {p.name: p.read_bytes() for p in out.folder(version).iterdir()
                     if p.name != arc.REQUEST}
            shown["model.safetensors"] = st.dump(state, {"format": "pt"})
            lines += lines_of(root, version, shown)
    return lines


def make_modelexpress(states):
    """The same states: a base, three deltas (one of nothing) and a whole checkpoint."""
    root, base, lines = fresh("modelexpress"), fresh("modelexpress-base"), []
    (base / "config.json").write_bytes(CONFIG)
    (base / "model.safetensors").write_bytes(st.dump(states[0], {"format": "pt"}))
    with tempfile.TemporaryDirectory() as work:
        for i, state in enumerate(states):
            (Path(work) / f"{i}.safetensors").write_bytes(st.dump(state, {"format": "pt"}))
        peer("peer_modelexpress.py", work, root, json.dumps(["delta", "delta", "full", "delta"]))
    for version, state in enumerate(states):
        shown = {"config.json": CONFIG, "model.safetensors": st.dump(state, {"format": "pt"})}
        lines += lines_of(root, version, shown)
    return lines


def main():
    """Both."""
    states = models.states(2026, 5, SPEC, density=0.1, same=(2,))
    lines = make_arc(states) + make_modelexpress(states)
    (HERE / "peers.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
