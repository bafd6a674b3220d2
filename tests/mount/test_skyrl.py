"""SkyRL's deltas on --base: every byte of every version; what disagrees is never shown."""

import json
import os

import pytest

from lib import checks, hfdir, models, mounted, skyrl
from lib.checks import holds
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")

MODEL = "model.safetensors"
FILE = "delta-rank00000-file000000.safetensors"
SPEC = {**models.SMALL, "one.f32": ("F32", (3, 7001)), "q.f8": ("F8_E4M3", (64, 33)),
        "q.i8": ("I8", (1000,)), "h.f16": ("F16", (17, 5)), "none": ("BF16", (0, 4))}
# How much changes: few bytes, none, all and many.
DENSITIES = (0.01, 0, 1, 0.3, 0.001)


@pytest.mark.parametrize("ranks, sums", [(1, "xxh3-128"), (3, "sha256"), (2, "older")])
def test_every_byte(ranks, sums, bucket, scratch):
    """Several files and ranks; a version without a change; some arrive later."""
    states = models.random_states(71, SPEC, DENSITIES[:5])
    base = models.write_base(scratch / "base", states[0])
    t = skyrl.Trainer(bucket, states, ranks=ranks, most=3000, sums=sums)
    for version in (1, 2, 3):
        t.delta(version)
    with Mount(bucket, base=base) as m:
        m.wait_version(3)
        assert "skyrl-xor" in m.status()["format"]
        for version in (4, 5):
            t.delta(version)
            m.wait_version(version)
        mounted.wait_until(lambda: m.versions() == [0, 1, 2, 3, 4, 5], m.status)
        for version, state in enumerate(states):
            holds(m.tree(version), state)
            checks.assert_ranges(m.tree(version) / MODEL, (m.tree(version) / MODEL).read_bytes(),
                                 version, 5)
        m.wait_well()
    assert skyrl.pull(bucket, base, 5) == {n: t.data.tobytes() for n, t in states[5].items()}
    report = json.loads(mounted.run("verify", "--json", "-q", bucket, "--base", base).stdout)
    assert report["ok"] and report["hashes"] == 4, report
    out = scratch / "out"
    mounted.run("export", bucket, "--base", base, "--version", "4", "-o", out)
    holds(out, states[4])


def test_chain(bucket, scratch):
    """No version without the ones before it, nor before its manifest is there; --base is asked
    for; a step written for another one, or found in another's directory, is not shown."""
    states = models.states(72, 6, models.MINI, density=0.5)
    base = models.write_base(scratch / "base", states[0])
    t = skyrl.Trainer(bucket, states)
    t.delta(1)
    t.delta(2)
    with Mount(bucket) as m:
        m.wait_problem("delta-00000001/manifest.json", "--base")
        assert m.version() is None
    t.delta(4)
    with Mount(bucket, base=base) as m:
        m.wait_version(2)
        m.wait_problem("delta-00000004/manifest.json", "version 4 applies to version 3")
        t.delta(3)
        link, after = (t.folder(n) / skyrl.MANIFEST for n in (3, 4))
        os.utime(link, ns=(after.stat().st_mtime_ns - 1,) * 2)
        m.wait_version(4)
        holds(m.at, states[4])
        t.delta(5, edit=lambda manifest: manifest.update(version=6))
        m.wait_problem("delta-00000005/manifest.json", "says that it is version 6")
        t.delta(5, edit=lambda manifest: manifest.update(base_version=3))
        m.wait_problem("delta-00000005/manifest.json", "applies to version 3")
        (t.folder(5) / skyrl.MANIFEST).unlink()
        mounted.wait_until(lambda: m.status()["problems"] == [], m.status)
        assert m.version() == 4
        t.delta(5)
        m.wait_version(5)
        holds(m.at, states[5])


def test_wrong_base(bucket, scratch):
    """Another checkpoint than the trainer's: of another shape it is refused at once, of the same
    shapes verify tells, and a mount that verifies shows nothing of it."""
    states = models.states(73, 2, models.MINI)
    skyrl.Trainer(bucket, states).delta(1)
    other = models.write_base(scratch / "other", models.states(74, 1, models.MINI)[0])
    done = mounted.run("verify", bucket, "--base", other, check=False)
    assert done.returncode == 1 and "checksum" in done.stdout and "--base" in done.stdout
    with Mount(bucket, base=other, args=["--verify", "eager"]) as m:
        m.wait_problem("delta-00000001/" + FILE, "has the checksum")
        assert m.version() == 0 and m.versions() == [0]
    larger = {n: (d, (*s[:-1], s[-1] + 1) if s else s) for n, (d, s) in models.MINI.items()}
    odd = models.write_base(scratch / "odd", models.states(74, 1, larger)[0])
    with Mount(bucket, base=odd) as m:
        m.wait_problem("delta-00000001/" + FILE, "has shape")
        assert m.version() == 0


def both_ranks(manifest):
    """Another rank publishes the first tensor, too."""
    manifest["tensors"].append({**manifest["tensors"][0], "payload_file": "other.safetensors"})
    manifest["payload_files"].append("other.safetensors")


def first(**what):
    """Changes the first tensor of a manifest."""
    return lambda manifest: manifest["tensors"][0].update(what)


def without(key):
    """Takes a member away from the first tensor."""
    return lambda manifest: manifest["tensors"][0].pop(key)


@pytest.mark.parametrize("edit, where, sentence", [
    (both_ranks, "manifest.json", "two ranks publish it"),
    (first(payload_file="../delta-00000001/" + FILE), "manifest.json", "not one of the payload"),
    (lambda m: m["payload_files"].append("../x.safetensors"), "manifest.json", "no plain name"),
    (lambda m: m["payload_files"].append("/etc/passwd"), "manifest.json", "no plain name"),
    (lambda m: m["payload_files"].append("gone.safetensors"), FILE, "gone.safetensors: is named"),
    (lambda m: m.update(total_compressed_num_bytes=7), "manifest.json", "its totals"),
    (lambda m: m["tensors"].pop(), "manifest.json", "its totals"),
    (without("payload_key"), "manifest.json", '"payload_key" is missing'),
    (without("checksum"), "manifest.json", "no checksum"),
    (first(checksum_algorithm="md5"), "manifest.json", "xxh3-128 and sha256 are"),
    (first(dtype="float16x"), "manifest.json", "not known here"),
    (first(shape=[63]), FILE, "has shape [63]"),
    (first(shape=[2 ** 40, 2 ** 40]), "manifest.json", "64 bits"),
    (first(payload_key="b.bias"), FILE, "different publications"),
    (lambda m: m["tensors"][0].update(compressed_num_bytes=1) or m.pop(
        "total_compressed_num_bytes"), FILE, "different publications"),
])
def test_bad_manifests(edit, where, sentence, bucket, scratch):
    """Each is refused by a sentence at the object that it is of; what came before stays."""
    states = models.states(75, 3, models.MINI, density=1.0)
    base = models.write_base(scratch / "base", states[0])
    t = skyrl.Trainer(bucket, states)
    t.delta(1)
    t.delta(2, edit=edit)
    with Mount(bucket, base=base) as m:
        m.wait_version(1)
        m.wait_problem(f"delta-00000002/{where}", sentence)
        assert m.version() == 1
        holds(m.at, states[1])


SIZE = 7 * 9 * 2


@pytest.mark.parametrize("frame, sentence", [
    (hfdir.compress(bytes(1 << 26)), "more than the tensor has"),
    (hfdir.compress(bytes(1 << 26), False), "more than the tensor has"),
    (hfdir.compress(bytes(SIZE - 1)), "less than it should"),
    (hfdir.compress(bytes(SIZE))[:-2], "ends in the middle"),
    (hfdir.compress(bytes(SIZE)) + b"x", "behind it"),
    (b"not a frame at all....", "is none"),
])
def test_bad_frames(frame, sentence, bucket, scratch):
    """Bombs and cut frames, with a manifest that agrees with them."""
    states = models.states(76, 2, models.MINI, density=1.0)
    skyrl.Trainer(bucket, states).delta(1, wrong={"a.weight": frame})
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        have = m.wait_problem("delta-00000001/" + FILE)
        assert sentence in have and "a.weight" in have
        assert m.version() == 0


def test_stale_payload(bucket, scratch):
    """A payload file of an earlier try, under a new manifest."""
    states = models.states(77, 3, models.MINI, density=0.7)
    t = skyrl.Trainer(bucket, [states[0], states[2]])
    t.delta(1)
    old = (t.folder(1) / FILE).read_bytes()
    t = skyrl.Trainer(bucket, [states[0], states[1]], level=19)
    t.delta(1)
    (t.folder(1) / FILE).write_bytes(old)
    done = mounted.run("verify", bucket, "--base", models.write_base(scratch / "base", states[0]),
                       check=False)
    assert done.returncode == 1
    assert "checksum" in done.stdout or "different publications" in done.stdout


def test_an_upload_that_ended(bucket, scratch):
    """Payload files without the manifest that is written last: a note says so."""
    states = models.states(47, 3, models.SMALL)
    t = skyrl.Trainer(bucket, states)
    t.delta(1)
    t.delta(2)
    manifest = t.folder(2) / skyrl.MANIFEST
    text = manifest.read_bytes()
    manifest.unlink()
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        m.wait_version(1)
        note = "1 directory is not finished: delta-00000002/ has weights and no manifest.json " \
            "yet, which is written last"
        mounted.wait_until(lambda: m.status()["notes"] == [note], m.status)
        manifest.write_bytes(text)
        m.wait_version(2)
