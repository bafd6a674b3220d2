"""Runs made of version directories: plain checkpoints per step, every byte of every version."""

import json
import os
import shutil

import pytest

from lib import checks, models, mounted, publishing, reading
from lib import safetensors_py as st
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
HIDDEN = (".bin", ".pt", ".gguf", ".h5", ".msgpack", ".onnx")


def shown(folder, *beside):
    """The files that a version shows of its directory, and of what lies beside all of them."""
    out = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*")
           if p.is_file() and not p.name.startswith(".") and p.suffix not in HIDDEN}
    out.pop("extra.safetensors", None)
    for path in beside:
        out.setdefault(path.name, path.read_bytes())
    return out


def same(top, want):
    """A version's tree; an index may be written in other words."""
    want = dict(want)
    index = want.pop(INDEX, None)
    have = reading.tree(top)
    if index:
        with open(have[INDEX], encoding="utf-8") as f:
            assert json.load(f)["weight_map"] == json.loads(index)["weight_map"]
        want[INDEX] = reading.read_file(have[INDEX])
    checks.assert_tree(top, want)


def checkpoint(bucket, name, state, shards=1, move=True):
    """One directory; with `move` it appears at once, as writers that rename do it."""
    at = bucket.parent / f"making-{name}" if move else bucket / name
    publishing.write_checkpoint(at, state, shards)
    (at / "config.json").write_text(json.dumps({"model_type": "tiny", "of": name}))
    if move:
        at.rename(bucket / name)
    return bucket / name


@pytest.mark.parametrize("name, shards", [("checkpoint-{}", 1), ("global_step_{}", 2),
                                          ("step-{:06d}", 1)])
def test_checkpoints(name, shards, bucket):
    """Each directory is a version with its own companions; a later one comes in while mounted."""
    (bucket / "README.md").write_text("about the run\n")
    numbers = [9, 10, 100, 200]
    states = models.states(51, 4, models.SMALL)
    for number, state in zip(numbers[:3], states):
        checkpoint(bucket, name.format(number), state, shards)
    with Mount(bucket) as m:
        m.wait_version(100)
        assert m.status()["format"] == "hfdir"
        checkpoint(bucket, name.format(200), states[3], shards)
        m.wait_version(200)
        mounted.wait_until(lambda: m.versions() == numbers, "not all versions are there")
        for number in numbers:
            same(m.tree(number), shown(bucket / name.format(number), bucket / "README.md"))
        assert json.loads((m.at / "config.json").read_text())["of"] == name.format(200)
        m.wait_well()
        # The first goes away, as trainers that keep a few do it: the others stay as they are.
        before = (m.at / MODEL).stat().st_ino if shards == 1 else 0
        shutil.rmtree(bucket / name.format(9))
        m.control("refresh")
        assert m.version() == 200
        if shards == 1:
            assert (m.at / MODEL).stat().st_ino == before
    report = json.loads(mounted.run("verify", "--json", "-q", bucket).stdout)
    assert report["ok"] and report["whole"] == report["versions"] == 3


def test_unfinished(bucket):
    """Shards without an index, an index without a shard, a lone file cut short: the version before
    stays, and status says what is missing."""
    states = models.states(52, 4, models.SMALL)
    checkpoint(bucket, "checkpoint-1", states[0])
    two = checkpoint(bucket, "checkpoint-2", states[1], 2)
    index = (two / INDEX).read_bytes()
    (two / INDEX).unlink()
    with Mount(bucket, hole_grace=0) as m:
        m.wait_version(1)
        mounted.wait_until(lambda: any("checkpoint-2/ has weights and no" in n
                                       for n in m.status()["notes"]), lambda: m.status())
        shard = (two / "model-00002-of-00002.safetensors")
        body = shard.read_bytes()
        shard.unlink()
        (two / INDEX).write_bytes(index)
        m.wait_problem("checkpoint-2/model-00001-of-00002.safetensors",
                       shard.name + ": is named by the index")
        assert m.version() == 1
        shard.write_bytes(body)
        m.wait_version(2)
        three = bucket / "checkpoint-3"
        three.mkdir()
        (three / MODEL).write_bytes((bucket / "checkpoint-1" / MODEL).read_bytes()[:-10])
        m.wait_problem("checkpoint-3/" + MODEL)
        assert m.version() == 2
        checkpoint(bucket, "checkpoint-4", states[3])
        m.wait_version(4)
        same(m.at, {**shown(bucket / "checkpoint-4")})


@pytest.mark.parametrize("index, sentence", [
    ("{", "not JSON"),
    ("[]", "no weight_map"),
    ('{"weight_map": {"a": "../x.safetensors"}}', "plain name"),
    ('{"weight_map": {"a": "/etc/x.safetensors"}}', "plain name"),
    ('{"weight_map": {"a": 3}}', "plain name"),
    ('{"weight_map": {"a": "config.json"}}', "plain name"),
    ('{"weight_map": {}}', "names no file"),
    ('{"metadata": {"delta_encoding": "arc"}, "weight_map": {}}', "delta_encoding"),
])
def test_bad_index(index, sentence, bucket):
    """What an index may not say."""
    state = models.states(53, 1, models.TINY)[0]
    checkpoint(bucket, "step_1", state)
    bad = checkpoint(bucket, "step_2", state)
    (bad / INDEX).write_text(index)
    with Mount(bucket) as m:
        m.wait_version(1)
        m.wait_problem("step_2/" + INDEX, sentence)
        assert m.version() == 1


def test_what_is_no_version(bucket):
    """Directories of optimizer states, logs and other words; steps of TRL go before all of this."""
    states = models.states(54, 2, models.TINY)
    checkpoint(bucket, "checkpoint-5", states[0])
    (bucket / "checkpoint-5" / "optimizer.pt").write_bytes(b"state")
    (bucket / "step_900").mkdir()
    (bucket / "step_900" / "log.txt").write_text("loss\n")
    (bucket / "tmp-checkpoint-6").mkdir()
    (bucket / "tmp-checkpoint-6" / MODEL).write_bytes(b"not yet")
    with Mount(bucket) as m:
        m.wait_version(5)
        assert (m.dot / "bucket" / "checkpoint-5" / "optimizer.pt").read_bytes() == b"state"
        assert not (m.at / "optimizer.pt").exists()
        (bucket / "anchors").mkdir()
        (bucket / "anchors" / "step_1.safetensors").write_bytes(st.dump(states[1]))
        m.wait_version(1)
        assert st.load_file(m.at / MODEL)[0].keys() == states[1].keys()


@pytest.mark.parametrize("name, shows", [
    ("weight_v000009", 2), ("weight_v000000", None), ("checkpoint-1", None),
    ("run/weight_v000001", None)])
def test_latest_that_names_nothing(name, shows, bucket):
    """It is said, by whoever is asked, also where nothing is shown; and it is followed at once when
    it names something."""
    states = models.states(27, 3, models.MINI)
    for number in (1, 2):
        checkpoint(bucket, f"weight_v{number:06d}", states[number])
    (bucket / "latest").write_text(name + "\n")
    with Mount(bucket) as m:
        m.wait_problem("latest", f"names {name}, which is not here")
        assert m.version() == shows
        if shows is None:
            assert f"latest: names {name}" in m.status()["line"]
            for verb, *args in (("log",), ("export", "-o", bucket.parent / "out")):
                done = mounted.run(verb, *args, bucket, check=False)
                assert f"latest: names {name}" in done.stderr, done
        (bucket / "latest").write_text("weight_v000001\n")
        m.wait_version(1)
        mounted.wait_until(lambda: m.status()["problems"] == [], m.status)


def test_no_tensor(bucket):
    """A checkpoint of nothing is none."""
    checkpoint(bucket, "step_1", models.states(29, 1, models.MINI)[0])
    checkpoint(bucket, "step_2", {})
    with Mount(bucket) as m:
        m.wait_problem("step_2/" + MODEL, "no tensor")
        assert m.version() == 1


def test_keys_like_those_of_deltas(bucket, scratch):
    """Where a directory is a whole checkpoint, a tensor is what it is called."""
    states = models.states(30, 2, models.PAIRED)
    for i, state in enumerate(states, 1):
        checkpoint(bucket, f"step_{i}", state)
    for base in ((), ("--base", bucket / "step_1")):
        for i, state in enumerate(states, 1):
            out = scratch / f"out-{len(base)}-{i}"
            mounted.run("export", "-q", "--version", str(i), *base, "-o", out, bucket)
            assert (out / MODEL).read_bytes() == st.dump(state, {"format": "pt"})


def test_places_that_cannot_be_read(bucket):
    """Directories without rights, links that lead away, an index that is none: said, and what can
    be read is shown."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to drop the rights that read everything")
    states = models.states(28, 4, models.MINI)
    closed = [checkpoint(bucket, "checkpoint-2", states[2])]
    (bucket / "checkpoint-3").symlink_to("/usr")
    (bucket / "checkpoint-4").mkdir()
    os.mkfifo(bucket / "checkpoint-4" / INDEX)
    (bucket / "lost+found").mkdir()
    for path in (*closed, bucket / "lost+found"):
        path.chmod(0)
        os.chown(path, 12345, 12345)
    with Mount(bucket, prefix=["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]) as m:
        m.wait_problem("checkpoint-2", "permission denied")
        assert f"checkpoint-4/{INDEX}: is not" in m.status()["line"]
        checkpoint(bucket, "checkpoint-1", states[1])
        m.wait_version(1)
        m.wait_problem("checkpoint-3", "leads out of the bucket")
        m.wait_problem(f"checkpoint-4/{INDEX}", "not a regular file")
        assert len(m.status()["problems"]) == 3
        closed[0].chmod(0o755)
        m.wait_version(2)
