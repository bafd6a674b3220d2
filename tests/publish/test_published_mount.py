"""publish, mount, export: what comes out is what went in, at every version."""

import json
import shutil

import numpy as np
import pytest

from lib import models, mounted, publishing, reading
from lib import safetensors_py as st

STEPS = 30
EVERY = 9


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Thirty published versions across anchors: (bucket, checkpoint directories)."""
    work = tmp_path_factory.mktemp("published")
    publisher = publishing.Publisher(work / "bucket", work / "state",
                                     ["--anchor-every", EVERY])
    states = models.states(21, STEPS, models.SMALL, density=0.003, same=(5, EVERY))
    paths = []
    for i, state in enumerate(states):
        paths.append(publishing.write_checkpoint(work / "c" / str(i + 1), state))
        publisher.publish(paths[-1])
    yield work / "bucket", states, paths
    shutil.rmtree(work, ignore_errors=True)


def assert_checkpoint(top, state, path):
    """A mounted or exported version has the checkpoint's tensors and companions."""
    have = reading.tree(top)
    tensors = {}
    for name in have:
        if name.endswith(".safetensors"):
            tensors.update(st.load(reading.read_file(have[name]))[0])
    assert publishing.same_state(tensors, state)
    beside = {str(p.relative_to(path)) for p in path.rglob("*")
              if p.is_file() and "." in p.name[1:] and p.suffix in (".json", ".txt")}
    for name in beside:
        if name != "model.safetensors.index.json":
            assert reading.read_file(have[name]) == (path / name).read_bytes(), name


def test_export_every_version(run, scratch):
    """Late joiners: each export starts from nothing, with a cache of its own."""
    bucket, states, paths = run
    for version in range(1, STEPS + 1):
        out = scratch / str(version)
        mounted.run("export", bucket, "-o", out, "--version", version, "-q",
                    "--cache-dir", scratch / f"cache-{version % 3}-{version}")
        assert_checkpoint(out, states[version - 1], paths[version - 1])


def test_mount_every_version(run):
    """A mount that starts late has all of them."""
    bucket, states, paths = run
    with mounted.Mount(bucket, keep=STEPS) as mount:
        mount.wait_version(STEPS)
        assert mount.status()["problems"] == []
        for version in range(1, STEPS + 1):
            if version not in mount.versions():
                mount.control(f"pin {version}")
            assert_checkpoint(mount.tree(version), states[version - 1], paths[version - 1])


def test_mount_follows(scratch):
    """A mount that was there before the first version shows each as it comes."""
    bucket = scratch / "bucket"
    bucket.mkdir()
    publisher = publishing.Publisher(bucket, scratch / "state", ["--anchor-every", 5])
    states = models.states(22, 12, models.SMALL, density=0.003, same=(6,))
    with mounted.Mount(bucket) as mount:
        for i, state in enumerate(states):
            path = publishing.write_checkpoint(scratch / f"c{i}", state, 2 if i > 8 else 1)
            publisher.publish(path)
            mount.wait_version(i + 1)
            assert_checkpoint(mount.at, state, path)
        assert mount.status()["problems"] == []


def test_shards(scratch):
    """Shards come back under their names, also when a later anchor is cut otherwise."""
    bucket = scratch / "bucket"
    publisher = publishing.Publisher(bucket, scratch / "state")
    states = models.states(23, 4, models.TINY)
    paths = [publishing.write_checkpoint(scratch / f"c{i}", s, 3) for i, s in enumerate(states)]
    for i, path in enumerate(paths):
        publisher.publish(path, *(["--anchor"] if i == 2 else []))
    for version, (state, path) in enumerate(zip(states, paths), 1):
        out = scratch / str(version)
        mounted.run("export", bucket, "-o", out, "--version", version, "-q",
                    "--cache-dir", scratch / "cache")
        assert_checkpoint(out, state, path)
        names = sorted(p.name for p in out.glob("*.safetensors"))
        assert names == sorted(p.name for p in path.glob("*.safetensors"))
        index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
        assert index == json.loads(
            (path / "model.safetensors.index.json").read_text())["weight_map"]


def test_against_a_mount(scratch):
    """What was published last is read from a mount of the run."""
    bucket = scratch / "bucket"
    publisher = publishing.Publisher(bucket, scratch / "state", ["--no-state"])
    states = models.states(27, 4, models.SMALL, density=0.003)
    publisher.publish(states[0])
    with mounted.Mount(bucket) as mount:
        for version, state in enumerate(states[1:], 2):
            mount.wait_version(version - 1)
            report = publisher.publish(state, "--against", mount.tree(version - 1))
            assert report["kind"] == "delta", report
    publishing.check(bucket, dict(enumerate(states, 1)))


def test_large_dense_delta(scratch):
    """A tensor whose patch does not fit into a thread's memory."""
    bucket = scratch / "bucket"
    publisher = publishing.Publisher(bucket, scratch / "state")
    rng = np.random.default_rng(26)
    still = st.make("BF16", (6 << 20,), rng.integers(0, 1 << 16, 6 << 20, dtype=np.uint16))
    states = [{"still": still, "w": st.make("BF16", (9 << 20,), rng.integers(
        0, 1 << 16, 9 << 20, dtype=np.uint16))} for _ in range(2)]
    reports = [publisher.publish(state) for state in states]
    assert reports[1]["kind"] == "delta" and reports[1]["delta_bytes"] > 16 << 20
    mounted.run("export", bucket, "-o", scratch / "out", "-q", "--cache-dir", scratch / "cache",
                "--version", 2)
    assert publishing.same_state(st.load_file(scratch / "out" / "model.safetensors")[0], states[1])


def test_new_run(scratch):
    """A new run in the same place: a mount goes over to it."""
    bucket = scratch / "bucket"
    publisher = publishing.Publisher(bucket, scratch / "state")
    first, second = (models.states(seed, 3, models.SMALL) for seed in (24, 25))
    for state in first:
        publisher.publish(state)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(3)
        publisher.publish(second[0], "--new-run")
        for state in second[1:]:
            publisher.publish(state)
        mount.wait_version(3)
        want = {n: t.data.tobytes() for n, t in second[2].items()}
        mounted.wait_until(
            lambda: {n: t.data.tobytes() for n, t in st.load(
                reading.read_file(mount.at / "model.safetensors"))[0].items()} == want,
            "the new run does not appear")
