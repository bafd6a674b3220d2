"""WEIGHTFS_KERNEL chooses the codec's inner loops, and changes no byte."""

import pytest

from lib import checks, models, oracle, publishing, trl
from lib.mounted import Mount

KERNELS = ("portable", "avx2", "avx512")


@pytest.fixture(name="run_of_steps")
def a_run_of_steps(bucket):
    """A run with more deltas than a stack keeps apart."""
    run = trl.Run(bucket, "v3", interval=40)
    models.publish(run, models.states(7, 12, models.SMALL))
    return bucket


def test_chosen_by_the_environment(run_of_steps, monkeypatch):
    """Each kernel shows the same bytes, and one that is not there is replaced with a warning."""
    want = oracle.Oracle(run_of_steps)
    newest = want.numbers()[-1]
    seen = set()
    for name in (*KERNELS, "fastest", ""):
        monkeypatch.setenv("WEIGHTFS_KERNEL", name)
        with Mount(run_of_steps) as m:
            m.wait_version(newest)
            checks.assert_tree(m.at, want.files(newest))
            used = m.status()["kernel"]
            warned = m.log_text().count("WEIGHTFS_KERNEL is")
            assert used in KERNELS
            assert warned == (name not in (used, "")), m.log_text()
            seen.add(used)
    assert "portable" in seen


def blobs(bucket):
    """The patches of all deltas of a run: name and bytes, in order."""
    found = []
    for entry in publishing.pointer(bucket)["steps"]:
        for one in entry["objects"] if entry["kind"] == "delta" else ():
            blob = (bucket / one["key"]).read_bytes()
            _, header, start = publishing.st.split(blob)
            header.pop("__metadata__")
            found += [(name, blob[start + begin:start + end]) for name, (begin, end) in
                      sorted((n, t["data_offsets"]) for n, t in header.items())]
    return found


@pytest.mark.parametrize("encoding", ["wfp1", "wfp1x"])
def test_published_and_mounted(encoding, scratch, monkeypatch):
    """What is published is the same to the last byte, and what each kernel reads of it."""
    states = models.states(17, 5, models.MIXED, density=0.02)
    made = []
    for name in KERNELS:
        monkeypatch.setenv("WEIGHTFS_KERNEL", name)
        bucket = scratch / name
        bucket.mkdir()
        publisher = publishing.Publisher(bucket, scratch / f"state-{name}",
                                         ["--encoding", encoding])
        for state in states:
            publisher.publish(state)
        made.append(blobs(bucket))
        with Mount(bucket) as m:
            m.wait_version(len(states))
            tensors = publishing.st.load((m.at / "model.safetensors").read_bytes())[0]
            assert publishing.same_state(tensors, states[-1])
    assert made[0] and all(one == made[0] for one in made)
