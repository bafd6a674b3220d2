"""HF-directory deltas, as slime and its relatives write them: every byte of every version."""

import json
import os
import shutil
import subprocess

import pytest

from lib import checks, hfdir, models, mounted, publishing, reading
from lib import safetensors_py as st
from lib.checks import holds
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")

MODEL = "model.safetensors"
SPEC = {**models.SMALL, "one.f32": ("F32", (3, 70001)), "q.f8": ("F8_E4M3", (64, 33)),
        "q.i8": ("I8", (1000,)), "h.f16": ("F16", (17, 5)), "none": ("BF16", (0, 4))}
# How much changes: few bytes, none, all and many.
DENSITIES = (0.01, 0, 1, 0.3, 0.001, 0.02)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("stated, sums", [(True, "xxh3-128"), (False, "adler32")])
def test_every_byte(encoding, stated, sums, bucket, scratch):
    """A run that begins at --base, with a whole checkpoint in between; some arrive later."""
    states = models.random_states(61, SPEC, DENSITIES[:6])
    base = models.write_base(scratch / "base", states[0])
    t = hfdir.Trainer(bucket, states, encoding, stated=stated, sums=sums)
    for version in (1, 2, 3):
        t.delta(version)
    with Mount(bucket, base=base) as m:
        m.wait_version(3)
        assert m.status()["format"] == f"hfdir-{encoding}"
        t.full(4)
        m.wait_version(4)
        for version in (5, 6):
            t.delta(version)
            m.wait_version(version)
        mounted.wait_until(lambda: m.versions() == [0, 1, 2, 3, 4, 5, 6], m.status)
        for version, state in enumerate(states):
            holds(m.tree(version), state)
            checks.assert_ranges(m.tree(version) / MODEL, (m.tree(version) / MODEL).read_bytes(),
                                 version, 5)
        m.wait_well()
    report = json.loads(mounted.run("verify", "--json", "-q", bucket, "--base", base).stdout)
    assert report["ok"] and report["whole"] == report["versions"] and report["hashes"] == 4
    out = scratch / "out"
    mounted.run("export", bucket, "--base", base, "--version", "5", "-o", out)
    holds(out, states[5])


def test_published(bucket, scratch):
    """What publish writes with xor-zstd: with its weightfs.json and without."""
    states = models.random_states(62, SPEC, DENSITIES[:5])
    out = publishing.Publisher(bucket, scratch / "state",
                               ["--encoding", "xor-zstd", "--anchor-every", "4"])
    for i, state in enumerate(states):
        out.publish(publishing.write_checkpoint(scratch / f"c{i}", state))
    for _ in range(2):
        with Mount(bucket) as m:
            m.wait_version(6)
            mounted.wait_until(lambda m=m: m.versions() == [1, 2, 3, 4, 5, 6], m.status)
            for version, state in enumerate(states, 1):
                holds(m.tree(version), state)
                assert "config.json" in reading.tree(m.tree(version))
                assert not any("weight_v" in name for name in reading.tree(m.tree(version)))
            m.wait_well()
        (bucket / publishing.POINTER).unlink(missing_ok=True)


def test_latest(bucket):
    """Nothing above `latest` is shown; set back, it is followed; damaged, it moves nothing."""
    states = models.states(63, 4, models.SMALL)
    t = hfdir.Trainer(bucket / "updates" / "run-1", [None, *states])
    t.full(1)
    for version in (2, 3, 4):
        t.delta(version)
    (bucket / "latest").write_text("run-1/weight_v000003\n")
    with Mount(bucket) as m:
        m.wait_version(3)
        holds(m.at, states[2])
        (bucket / "latest").write_text("run-1/weight_v000004")
        m.wait_version(4)
        (bucket / "latest").write_text("../weight_v000002")
        m.wait_problem("latest", "does not name")
        assert m.version() == 4
        (bucket / "latest").write_text("run-1/weight_v000002")
        m.wait_version(2)
        holds(m.at, states[1])


def test_without_base(bucket, scratch):
    """Deltas from version 0 need it; the sentence names the option."""
    states = models.states(64, 4, models.SMALL)
    t = hfdir.Trainer(bucket, states, name="v{}")
    t.delta(1)
    t.delta(2)
    with Mount(bucket) as m:
        m.wait_problem("v1/" + hfdir.INDEX, "--base")
        assert m.version() is None
        t.full(3)
        m.wait_version(3)
    with Mount(bucket, base=models.write_base(scratch / "base", states[0])) as m:
        m.wait_version(3)
        holds(m.at, states[3])


def test_files_of_another_save(bucket):
    """What an index says of its files has to be so: of a delta to the tensor; of a whole checkpoint
    each tensor has to be where it says, and more than it says is fine.  An index that is put right
    is believed, with the same files."""
    states = models.states(67, 6, models.SMALL)
    t = hfdir.Trainer(bucket, states)
    t.full(1)
    t.delta(2)
    t.delta(3)
    index = t.folder(3) / hfdir.INDEX
    good = json.loads(index.read_text())
    where = good["weight_map"]
    files = sorted(set(where.values()))
    assert len(files) == 2
    more = {**where, "z.weight": files[0]}
    fewer = {n: f for n, f in where.items() if n != min(where)}
    turned = {n: files[f == files[0]] for n, f in where.items()}
    t.put(3, hfdir.INDEX, json.dumps({**good, "weight_map": more}).encode())
    with Mount(bucket) as m:
        for weight_map, sentence in ((more, 'no tensor "z.weight"'),
                                     (fewer, f'a tensor "{min(where)}"'),
                                     (turned, "no tensor")):
            t.put(3, hfdir.INDEX, json.dumps({**good, "weight_map": weight_map}).encode())
            mounted.wait_until(lambda s=sentence: sum(f"has {s}" in p["error"] and
                                                      "not of one save" in p["error"]
                                                      for p in m.status()["problems"]), m.status)
            assert m.version() == 2
            holds(m.at, states[2])
        t.put(3, hfdir.INDEX, json.dumps(good).encode())
        m.wait_version(3)
        holds(m.at, states[3])
        # A checkpoint is written over another one, whose index is there until the end.
        models.write_base(t.folder(4), states[4], shards=2)
        m.wait_version(4)
        index = json.loads((t.folder(4) / hfdir.INDEX).read_text())
        names = sorted(states[5])
        t.folder(5).mkdir()
        for i, file in enumerate(sorted(set(index["weight_map"].values()))):
            part = {n: states[5][n] for n in names[2 * i:2 * i + 2]}
            assert set(part) != {n for n, f in index["weight_map"].items() if f == file}
            t.put(5, file, st.dump(part, {"format": "pt"}))
            index["weight_map"].update({n: file for n in part})
        shutil.copy(t.folder(4) / hfdir.INDEX, t.folder(5))
        mounted.wait_until(lambda: [p for p in m.status()["problems"]
                                    if p["object"].startswith("weight_v000005/model-") and
                                    "not of one save" in p["error"]], m.status)
        assert m.version() == 4
        index["weight_map"] = {n: f for n, f in index["weight_map"].items() if n != "b.weight"}
        t.put(5, hfdir.INDEX, json.dumps(index).encode())
        m.wait_version(5)
        assert {n: x.data.tobytes() for p in m.at.glob("*.safetensors")
                for n, x in st.load_file(p)[0].items()} == t.bytes_of(5)


def test_broken_chains(bucket):
    """A missing link, a delta for another base, one that says another number: nothing on top of
    them becomes visible, until the next whole checkpoint."""
    states = models.states(65, 9, models.SMALL)
    t = hfdir.Trainer(bucket, states)
    t.full(1)
    t.delta(2)
    t.delta(4)
    t.delta(5)
    with Mount(bucket) as m:
        m.wait_version(2)
        m.wait_problem("weight_v000004/" + hfdir.INDEX,
                       "applies to version 3, but the one before it here is 2")
        assert len(m.status()["problems"]) == 1
        t.delta(3)
        m.wait_version(3)
        mounted.wait_until(lambda: "older than version 3" in
                           (m.problem("weight_v000004/" + hfdir.INDEX) or ""), m.status)
        link, after = (t.folder(n) / hfdir.INDEX for n in (3, 4))
        os.utime(link, ns=(after.stat().st_mtime_ns - 1,) * 2)
        m.wait_version(5)
        holds(m.at, states[5])
        t.delta(6, base=4)
        m.wait_problem("weight_v000006/" + hfdir.INDEX)
        assert m.version() == 5
        t.full(7)
        m.wait_version(7)
        t.delta(8)
        m.wait_version(8)
        holds(m.at, states[8])
        assert 6 not in m.versions()


NAME, SIZE = "model.layers.0.gate.val", 7 * 9 * 2


@pytest.mark.parametrize("encoding, frame, sentence", [
    ("xor", hfdir.compress(bytes(1 << 26)), "more than the tensor has"),
    ("xor", hfdir.compress(bytes(1 << 26), False), "more than the tensor has"),
    ("xor", hfdir.compress(bytes(SIZE + 1), False), "more than the tensor has"),
    ("xor", hfdir.compress(bytes(SIZE - 1)), "less than it should"),
    ("xor", hfdir.compress(bytes(SIZE))[:-2], "ends in the middle"),
    ("xor", hfdir.compress(bytes(SIZE)) + b"x", "behind it"),
    ("xor", b"not a frame at all....", "is none"),
    ("overwrite", hfdir.compress(b"\xff\xff\xff\x7f" + bytes(60)), "lists more bytes"),
    ("overwrite", hfdir.compress(b"\2\0\0\0\5\0\0\0\5\0\0\0ab"), "ascend"),
    ("overwrite", hfdir.compress(b"\1\0\0\0\xff\xff\0\0a"), "beyond the tensor"),
    ("overwrite", hfdir.compress(b"\1\0\0\0\5\0\0\0"), "less than it should"),
    ("overwrite", hfdir.compress(b"\1\0\0\0\5\0\0\0ab"), "more than the tensor has"),
])
def test_bad_frames(encoding, frame, sentence, bucket):
    """Bombs, cut frames and lists that are none: refused by a sentence with the tensor's name."""
    states = models.states(66, 3, models.TINY)
    t = hfdir.Trainer(bucket, [None, *states], encoding, shards=1)
    t.full(1)
    t.delta(2, wrong={NAME: frame})
    with Mount(bucket) as m:
        m.wait_version(1)
        have = m.wait_problem("weight_v000002/model-00000-of-00001.safetensors")
        assert sentence in have and NAME in have
        assert m.version() == 1
        holds(m.at, states[0])


def test_checksums(bucket, scratch):
    """Another base than the trainer's, and a flipped bit in a whole checkpoint: verify says so."""
    states = models.states(67, 4, models.TINY)
    other = models.states(68, 1, models.TINY)[0]
    for sums in ("xxh3-128", "adler32"):
        t = hfdir.Trainer(bucket / sums, states, sums=sums)
        t.delta(1)
        base = models.write_base(scratch / f"base-{sums}", other)
        done = mounted.run("verify", bucket / sums, "--base", base, check=False)
        assert done.returncode == 1 and "checksum" in done.stdout and "--base" in done.stdout
    t = hfdir.Trainer(bucket / "full", states)
    t.full(1)
    t.delta(2)
    path = t.folder(1) / MODEL
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    times = path.stat()
    path.write_bytes(blob)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "checksum" in mounted.run("verify", bucket / "full", check=False).stdout
    t = hfdir.Trainer(bucket / "unknown", states, sums="blake3")
    t.full(1)
    t.delta(2)
    done = mounted.run("verify", bucket / "unknown", check=False)
    if subprocess.run(["pkg-config", "--exists", "libblake3"], check=False).returncode == 0:
        assert done.returncode == 0 and "not compared" not in done.stderr
    else:
        assert done.returncode == 0 and "BLAKE3, which is not compared" in done.stderr


def test_started_anew(bucket, scratch):
    """A trainer that empties its place and counts from 1 again; then one that does not empty it."""
    first, second, third = (models.states(seed, 4, models.TINY)[:n]
                            for seed, n in ((69, 4), (70, 3), (71, 2)))
    for states in (second, third):
        states[0] = first[0]
    base = models.write_base(scratch / "base", first[0])
    with Mount(bucket, base=base) as m:
        t = hfdir.Trainer(bucket, first)
        for version in (1, 2, 3):
            t.delta(version)
        m.wait_version(3)
        for folder in bucket.iterdir():
            shutil.rmtree(folder)
        t = hfdir.Trainer(bucket, second)
        t.delta(1)
        m.wait_version(1)
        holds(m.at, second[1])
        t.delta(2)
        m.wait_version(2)
        holds(m.at, second[2])
        hfdir.Trainer(bucket, third).delta(1)
        m.wait_version(1)
        holds(m.at, third[1])
        m.wait_problem("weight_v000002/" + hfdir.INDEX, "earlier run")
