"""--format: a layout that is named, a wrong name, and what status and log say of a run's format."""

import json

import pytest

from lib import hfdir, models, mounted, publishing, trl
from lib.checks import holds
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(name="both")
def both_layouts(bucket):
    """A bucket with a TRL run of two versions and version directories up to 3."""
    states = models.states(71, 4, models.TINY)
    writer = trl.Run(bucket, "v3")
    for state in states[:2]:
        writer.sync(state)
    t = hfdir.Trainer(bucket, [None, *states[1:]], "xor")
    t.full(1)
    t.delta(2)
    t.delta(3)
    return states


def test_forced(both, bucket):
    """What is named is shown; without a name the order of preference decides."""
    for name, version, state in ((None, 2, both[1]), ("auto", 2, both[1]), ("trl", 2, both[1]),
                                 ("hfdir", 3, both[3]), ("checkpoints", 1, both[1])):
        with Mount(bucket, args=["--format", name] if name else []) as m:
            m.wait_version(version)
            holds(m.at, state)
            status = m.status()
            assert status["forced_format"] == (name if name != "auto" else None)
            if name == "checkpoints":
                m.wait_problem(f"weight_v000002/{hfdir.INDEX}", "say --format hfdir")
            else:
                assert status["problems"] == []


def test_said(both, bucket, scratch):
    """status and log name the format and who writes it; tools take a mount's own."""
    with Mount(bucket, args=["--format", "hfdir"]) as m:
        m.wait_version(3)
        assert (m.status()["format"], m.status()["writer"]) == ("hfdir-xor", "slime")
        assert "hfdir-xor (slime)" in mounted.run("status", m.at).stdout
        log = json.loads(mounted.run("log", "--json", m.at).stdout)
        assert [(v["version"], v["encoding"], v["writer"]) for v in log] == \
            [(3, "hfdir-xor", "slime"), (2, "hfdir-xor", "slime"), (1, "hfdir", None)]
        assert "hfdir-xor (slime)" in mounted.run("log", m.at).stdout
        mounted.run("export", "--version", 3, "-o", scratch / "out", m.at)
    holds(scratch / "out", both[3])
    (bucket / "latest").write_text("weight_v000003\n")
    with Mount(bucket, args=["--format", "hfdir"]) as m:
        m.wait_version(3)
        assert m.status()["writer"] == "stitch"


@pytest.mark.parametrize("there, asked", [("trl", "hfdir"), ("hfdir", "trl"), ("hfdir", "grail"),
                                          ("hfdir", "weightfs"), ("weightfs", "hfdir")])
def test_wrong(there, asked, bucket, scratch):
    """A wrong name shows nothing, and says what it looks like; an unknown one does not start."""
    states = models.states(72, 1, models.TINY)
    if there == "trl":
        trl.Run(bucket, "v3").sync(states[0])
    elif there == "hfdir":
        hfdir.Trainer(bucket, [None, *states], "xor").full(1)
    else:
        publishing.write_checkpoint(scratch / "1", states[0])
        mounted.run("publish", scratch / "1", bucket)
    with Mount(bucket, args=["--format", asked]) as m:
        sentence = m.wait_problem("")
        assert f"--format {asked}: no version here is laid out so" in sentence
        assert f"say --format {there}" in sentence
        assert m.status()["state"] == "waiting"
    done = mounted.run("verify", "--format", asked, bucket, check=False)
    assert done.returncode != 0 and f"say --format {there}" in done.stdout
    done = mounted.run("log", "--format", "nonsense", bucket, check=False)
    assert done.returncode != 0 and "one of auto, trl, weightfs, " in done.stderr
