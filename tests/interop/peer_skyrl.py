"""SkyRL's own publisher and engine side, run by test_peers.py in a process of its own.

    peer_skyrl.py BASE COUNT STATES OUT SYNC LOCAL

Publishes STATES/1.safetensors to COUNT.safetensors one after the other into OUT, as a run that
starts from the checkpoint BASE; then brings a copy of BASE below LOCAL to version COUNT of the run
SYNC.  The package's other modules want a cluster and a GPU: only the two that do this are loaded.
"""

import os
import sys
import types
from pathlib import Path

from safetensors.torch import load_file


def bare(name):
    """A package without what its __init__ loads."""
    module = types.ModuleType(name)
    module.__path__ = [str(Path(p, *name.split("."))) for p in os.environ["PYTHONPATH"].split(":")]
    sys.modules[name] = module


def publish(checkpoint, base, count, states, out):
    """The trainer's side.  It cannot view a scalar's bytes: those are left out."""
    publisher = checkpoint.DeltaCheckpointPublisher(base, out, out + ".staging", 1e-5)
    for i in range(1, count + 1):
        state = load_file(f"{states}/{i}.safetensors")
        publisher.publish(publisher.create_delta_files(
            (name, tensor) for name, tensor in state.items() if tensor.dim() > 0))


def fetch(checkpoint, base, version, sync, local):
    """The engine's side."""
    store = checkpoint.LocalCheckpointStore(base, local)
    store.fetch(version, sync_dir=sync)
    store.validate_ready(version)


def main():
    """Both."""
    name = "skyrl"
    for part in ("", ".backends", ".skyrl_train", ".weight_sync"):
        name += part
        bare(name)
    from skyrl.backends.skyrl_train.weight_sync.delta import checkpoint
    base, count, states, out, sync, local = sys.argv[1:]
    publish(checkpoint, base, int(count), states, out)
    fetch(checkpoint, base, int(count), sync, local)


main()
