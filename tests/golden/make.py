"""Makes the committed golden buckets and their digests: python tests/golden/make.py

One tiny run per generation of TRL and one each of slime (xor and overwrite), plain checkpoints,
grail, SkyRL and prime-rl, from a fixed seed; sums.txt has the SHA-256 of each file of each version
as the reference computes it, or as the states were.  The buckets are committed: what they must
show never changes by accident, neither by a change of the program nor of the writers or the
reference.
"""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from lib import grail, hfdir, models, oracle, primerl, reading, skyrl, trl  # noqa: E402
from lib import safetensors_py as st  # noqa: E402

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


def make_grail():
    """Every version of the codec, one dtype each, FULL alone, DELTA alone and both; the lines."""
    root = HERE / "grail"
    shutil.rmtree(root, ignore_errors=True)
    spec = {**models.MINI, "d.f32": ("F32", (3, 2)), "e.f16": ("F16", (2, 3, 4))}
    states = models.states(2027, STATES, spec, density=0.1, skip=("c.scale",), same=(4,))
    t = grail.Trainer(root, states)
    for i, version in enumerate((31, 2, 3, 31, 31, 2)):
        t.version = version
        if i in (0, 3):
            t.full(i)
            beside = t.folder(i) / "FULL"
        if i > 0:
            t.delta(i)
        t.ready(i)
        files = {p.name: p.read_bytes() for p in beside.iterdir()}
        files["model.safetensors"] = st.dump(states[i], {"format": "pt"})
        yield from lines_of("grail", t.window(i), files)


def empty(name):
    """A new directory."""
    root = HERE / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


def make_hfdir(encoding):
    """slime's versions from a whole one, every kind of checksum that is compared, frames that state
    their size and not, a step without a change and a whole one in between; the lines."""
    spec = {**models.MINI, "d.f32": ("F32", (3, 2)), "e.f8": ("F8_E4M3", (2, 3, 4))}
    states = models.states(2030, STATES + 1, spec, density=0.1, skip=("c.scale",), same=(3,))
    t = hfdir.Trainer(empty(f"slime-{encoding}"), states, encoding)
    for version in range(1, STATES + 1):
        t.sums = ("xxh3-128", "adler32")[version % 2]
        t.stated = version % 3 != 0
        if version in (1, 5):
            t.full(version)
        else:
            t.delta(version)
        yield from lines_of(t.root.name, version, {
            "config.json": (t.folder(version - (version - 1) % 4) / "config.json").read_bytes(),
            "model.safetensors": st.dump(states[version], {"format": "pt"})})


def make_checkpoints():
    """Whole checkpoints; the lines."""
    states = models.states(2031, 4, models.MINI, density=0.1)
    t = hfdir.Trainer(empty("checkpoints"), states, name="checkpoint-{}")
    for version in range(1, len(states)):
        t.full(version)
        yield from lines_of("checkpoints", version, {
            p.name: p.read_bytes() for p in t.folder(version).iterdir()})


def lines_of(run, version, files):
    """The digest of each of a version's files."""
    for name, blob in sorted(files.items()):
        yield f"{reading.sha256(blob)}  {run}/{version}/{name}"


def make_skyrl():
    """All kinds of checksums, on the base that lies in skyrl.base; the lines."""
    spec = {**models.MINI, "d.f32": ("F32", (3, 2)), "e.f8": ("F8_E4M3", (2, 3, 4))}
    states = models.states(2028, STATES, spec, density=0.1, same=(4,))
    base = empty("skyrl.base")
    (base / "config.json").write_text('{"model_type": "golden"}\n')
    (base / "model.safetensors").write_bytes(st.dump(states[0], {"format": "pt"}))
    t = skyrl.Trainer(empty("skyrl"), states, ranks=2)
    for version in range(1, STATES):
        t.sums = ("xxh3-128", "sha256", "older")[version % 3]
        t.delta(version)
        files = {p.name: p.read_bytes() for p in base.iterdir()}
        files["model.safetensors"] = st.dump(states[version], {"format": "pt"})
        yield from lines_of("skyrl", version, files)


def make_primerl():
    """Whole steps, updates in one frame and not, and the older format; the lines."""
    spec = {**models.MINI, "d.f32": ("F32", (3, 2)), "e.f16": ("F16", (2, 3, 4))}
    states = models.states(2029, STATES + 1, spec, density=0.1, skip=("c.scale",), same=(5,))
    t = primerl.Trainer(empty("prime-rl") / "broadcasts", states)
    for step in range(1, STATES + 1):
        t.wide = t.packed = step == 3
        if step in (1, 4):
            t.whole(step, older=step == 4)
        elif step < 4:
            t.update(step)
        else:
            t.older(step)
        files = {file: st.dump({n: states[step][n] for n in names}, {"format": "pt"})
                 for file, names in t.grouped(states[step], "model")}
        for name in (primerl.INDEX, "config.json", primerl.STABLE):
            files[name] = (t.folder(step - (step - 1) % 3) / name).read_bytes()
        yield from lines_of("prime-rl", step, files)


def main():
    """All generations."""
    lines = [line for generation in trl.GENERATIONS for line in sums(make_bucket(generation))]
    lines += [*make_hfdir("xor"), *make_hfdir("overwrite"), *make_checkpoints()]
    lines += [*make_grail(), *make_skyrl(), *make_primerl()]
    SUMS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
