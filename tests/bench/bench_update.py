# SPDX-License-Identifier: Apache-2.0
"""From "object in the bucket" to "new logits": a mount that is read again, against a receiver.

A random Llama of --mib MiB in bf16 lies with nginx behind a proxy that makes it far away (--delay
ms, --line MB/s).  In each round 1 % of its elements move and the delta appears in the bucket, as
TRL's v3 writes it; then each of these brings it into a model of its own and computes logits:

  weightfs          waits for the version, copies every tensor of versions/N into the model, as an
                    engine's reload does
  weightfs, warmed  the same after reading the version through once, as `weightfs follow` does
                    before it pauses an engine
  receiver          what TRL's does: downloads the delta, decodes its positions (running sums of
                    gaps), sets the values in its own copy of all weights, and copies the tensors
                    that changed into the model
  anchor            downloads a whole checkpoint, as without deltas

"paused" is the part in which an engine cannot serve: load and first logits; for the receiver,
load is decoding, setting and copying.  All are told at once that there is something new
("refresh"); "polling" is the same without being told.  The logits of all are compared bit for bit
in every round.  Who goes first changes from round to round; medians.  A table, then each row as
one line of JSON.

usage: bench_update.py [--mib 128] [--rounds 3] [--delay 20] [--line 200]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))

try:
    import numpy as np
    import torch
    from safetensors import safe_open
    from safetensors.torch import load, save
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"bench_update: left out: {error} (`make setup` installs what it needs)")
    sys.exit(0)

# pylint: disable=wrong-import-position
from bench_cold import Proxy, WebServer  # noqa: E402
from lib import mounted, nginx, trl  # noqa: E402
from lib import safetensors_py as st  # noqa: E402
from lib.ports import free_port  # noqa: E402

DENSITY = 0.01
CHUNK = 4 << 20


def make_model(mib):
    """A Llama with about that many MiB of weights, half of them not in the embeddings."""
    hidden = 512 if mib < 512 else 1024
    vocab = 8192
    layer = 4 * hidden * hidden + 3 * hidden * 4 * hidden
    layers = max(1, round((mib * 2**19 - 2 * vocab * hidden) / layer))
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocab, hidden_size=hidden, intermediate_size=4 * hidden,
                         num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=8)
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def to_state(model):
    """Its parameters as the writers of the tests have them."""
    return {name: st.make("BF16", p.shape, p.detach().view(torch.uint16).numpy().reshape(-1))
            for name, p in model.named_parameters()}


def move(state, rng):
    """One per cent of the elements move by one in the last place."""
    return {name: t._replace(data=t.data ^ (rng.random(t.data.size, np.float32) < DENSITY))
            for name, t in state.items()}


def logits(model):
    """The first thing that anybody asks for."""
    with torch.no_grad():
        return model(torch.arange(16).reshape(1, 16)).logits


class Reader:
    """A model that is kept up to date; update() gives the time at which an engine would have had to
    pause."""

    def __init__(self, name, model):
        self.name, self.model = name, model
        self.parameters = dict(model.named_parameters())
        self.totals, self.pauses, self.loads = [], [], []

    def run(self, number):
        """One round."""
        began = time.perf_counter()
        paused = self.update(number)
        loaded = time.perf_counter()
        got = logits(self.model)
        now = time.perf_counter()
        self.totals.append(now - began)
        self.pauses.append(now - paused)
        self.loads.append(loaded - paused)
        return got


class Mounted(Reader):
    """Reads the mount again."""

    def __init__(self, name, model, mount, warm=False, told=True):
        super().__init__(name, model)
        self.mount, self.warm, self.told = mount, warm, told

    def update(self, number):
        """Waits for the version, and loads it whole."""
        if self.told:
            self.mount.control("refresh")
        mounted.run("wait", self.mount.at, "--version", number, timeout=120)
        files = sorted(self.mount.tree(number).glob("*.safetensors"))
        if self.warm:
            for path in files:
                with open(path, "rb", buffering=0) as f:
                    while f.read(CHUNK):
                        pass
        began = time.perf_counter()
        with torch.no_grad():
            for path in files:
                with safe_open(path, "pt") as f:
                    for name in f.keys():
                        self.parameters[name].copy_(f.get_tensor(name))
        return began


class Receiver(Reader):
    """Downloads deltas and applies them, as TRL's receiver does."""

    def __init__(self, name, model, url):
        super().__init__(name, model)
        self.url = url
        self.snapshot = {n: p.detach().to(torch.bfloat16) for n, p in self.parameters.items()}

    def update(self, number):
        """The delta of this number, on the state before it."""
        path = f"{self.url}/deltas/step_{number:06d}.safetensors"
        with urllib.request.urlopen(path) as answer:
            blob = answer.read()
        began = time.perf_counter()
        delta = load(blob)
        with torch.no_grad():
            for name in sorted(n[:-4] for n in delta if n.endswith(".val")):
                gaps = delta[f"{name}.idx"].to(torch.int64)
                at = torch.cumsum(gaps + 1, 0) - 1
                self.snapshot[name].view(-1)[at] = delta[f"{name}.val"]
                self.parameters[name].copy_(self.snapshot[name])
        return began


class Whole(Reader):
    """Downloads everything."""

    def __init__(self, name, model, url):
        super().__init__(name, model)
        self.url = url

    def update(self, number):
        """The whole checkpoint of this number."""
        with urllib.request.urlopen(f"{self.url}/whole.safetensors") as answer:
            blob = answer.read()
        began = time.perf_counter()
        with torch.no_grad():
            for name, tensor in load(blob).items():
                self.parameters[name].copy_(tensor)
        return began


def write_whole(root, state):
    """The state as one file."""
    tensors = {n: torch.from_numpy(t.data.copy()).view(torch.bfloat16).reshape(t.shape)
               for n, t in state.items()}
    (root / "whole.safetensors").write_bytes(save(tensors, {"format": "pt"}))


def rounds(options, work):
    """Runs them all; the readers, with what they measured."""
    bucket, whole = work / "bucket", work / "whole"
    for folder in (bucket, whole):
        folder.mkdir()
    model, rng = make_model(options.mib), np.random.default_rng(1)
    state = to_state(model)
    run = trl.Run(bucket, "v3", interval=10**6)
    run.sync(state)
    line = (options.delay, options.line)
    with WebServer(bucket, work / "nginx") as web, WebServer(whole, work / "nginx2") as other, \
            Proxy(free_port(), web.port, *line) as far, \
            Proxy(free_port(), other.port, *line) as far_whole, \
            mounted.Mount(f"http://127.0.0.1:{far.port}/json", poll=1,
                          args=["--prefetch", "all"]) as m:
        m.wait_version(1, timeout=300)
        shutil.copytree(m.tree(1), work / "base")       # the base is in the cache from here on

        def copy():
            # Computes in float32, which every processor does well; the weights are bf16's.
            one = make_model(options.mib).float()
            one.load_state_dict(model.state_dict())
            return one

        readers = [
            Mounted("weightfs", copy(), m),
            Mounted("weightfs, warmed", copy(), m, warm=True),
            Mounted("weightfs, polling", copy(), m, told=False),
            Receiver("receiver", copy(), f"http://127.0.0.1:{far.port}/plain"),
            Whole("anchor", copy(), f"http://127.0.0.1:{far_whole.port}/plain"),
        ]
        for reader in readers:
            logits(reader.model)
        for i in range(options.rounds):
            # Each mounted reader needs a version that nobody has read: one sync for each.
            turn = readers[i % len(readers):] + readers[:i % len(readers)]
            for reader in turn:
                state = move(state, rng)
                write_whole(whole, state)
                run.sync(state)
                catch_up(readers, reader, run.number, state)
    return readers, (bucket / "deltas" / f"step_{run.number:06d}.safetensors").stat().st_size


def catch_up(readers, reader, number, state):
    """The reader brings the version, on the clock; its logits are those of the state itself.  The
    receiver, whose deltas build on each other, takes part in every version."""
    got = reader.run(number)
    for one in readers:
        if isinstance(one, Receiver) and one is not reader:
            one.update(number)
    want = readers[-1].model if reader is not readers[-1] else readers[0].model
    with torch.no_grad():
        for name, parameter in want.named_parameters():
            parameter.copy_(torch.from_numpy(state[name].data.copy()).view(torch.bfloat16)
                            .reshape(parameter.shape))
    assert torch.equal(got, logits(want)), f"{reader.name}: other logits in version {number}"


def main():
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=int, default=20)
    parser.add_argument("--line", type=int, default=200)
    options = parser.parse_args()
    if not Path(nginx.PROGRAM).exists():
        print("bench_update: left out: nginx is not installed")
        return
    proxy = mounted.BINARY.parent / "bench" / "delay_proxy"
    if not proxy.exists():
        subprocess.run(["make", "-s", "-C", TOP, proxy.relative_to(TOP)], check=True)
    work = Path(tempfile.mkdtemp(prefix="weightfs-bench-"))
    try:
        readers, delta = rounds(options, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    size = sum(p.numel() * 2 for p in readers[0].parameters.values())
    print(f"object in bucket -> new logits; model of {size >> 20} MiB, delta of {delta >> 10} KiB, "
          f"{options.delay} ms, {options.line} MB/s; medians of {options.rounds}")
    print(f"{'':20}{'in all, s':>12}{'paused, s':>12}{'of it load':>12}")
    rows = [(r.name, *map(statistics.median, (r.totals, r.pauses, r.loads))) for r in readers]
    for name, *seconds in rows:
        print(f"{name:20}" + "".join(f"{one:12.3f}" for one in seconds))
    for name, total, paused, loaded in rows:
        print(json.dumps({"bench": "update", "reader": name, "seconds": round(total, 4),
                          "paused": round(paused, 4), "load": round(loaded, 4),
                          "model_bytes": size, "delta_bytes": delta}))


if __name__ == "__main__":
    main()
