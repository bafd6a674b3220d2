"""Deltas of wfp1x: published, read from the specification, and mounted early, late and again."""

import pytest

from lib import checks, models, mounted, publishing

VERSIONS = 7


@pytest.fixture(name="publisher")
def a_publisher(bucket, scratch):
    """Into a directory."""
    return publishing.Publisher(bucket, scratch / "state",
                                ["--encoding", "wfp1x", "--anchor-every", 4])


def steps(seed, spec=models.MIXED):
    """States, one like the one before."""
    return models.states(seed, VERSIONS, spec, density=0.01, same=(3,))


def assert_state(tree, state):
    """The tensors of a version."""
    files = {p.name: publishing.st.load(p.read_bytes())[0] for p in tree.glob("*.safetensors")}
    assert publishing.same_state({n: t for f in files.values() for n, t in f.items()}, state)


def spent(mount):
    """Deltas made into patches, and bytes of the base read for it."""
    counters = mount.status()["counters"]
    return counters["wfp1x_deltas"], counters["wfp1x_base_bytes"]


def test_read_from_the_specification(publisher, bucket):
    """Every version, by the reader in Python; what is sent is small."""
    states = steps(11)
    for state in states:
        publisher.publish(state)
    publishing.check(bucket, dict(enumerate(states, 1)))
    delta = publishing.pointer(bucket)["steps"][1]["objects"][0]["key"]
    assert "wfp1x" in mounted.run("inspect", bucket / delta).stdout
    assert ", 0 problems" in mounted.run("verify", bucket).stderr
    kinds = {(e["kind"], e["encoding"]) for e in publishing.pointer(bucket)["steps"]}
    assert ("delta", "wfp1x") in kinds


def test_followed_joined_late_and_again(publisher, bucket, scratch):
    """Who follows makes each delta into a patch once, across anchors; who comes later those above
    the newest anchor; who comes again, none."""
    states = steps(12)
    publisher.publish(states[0])
    with mounted.Mount(bucket, work=scratch / "m") as mount:
        for number, state in enumerate(states[1:], 2):
            publisher.publish(state)
            mount.wait_version(number)
            assert_state(mount.at, state)
        deltas, read = spent(mount)
        assert deltas == VERSIONS - 2 and read > 0  # one step changed nothing
        assert mount.status()["anchor"] == 1
        text = (mount.dot / "status").read_text()
        assert f"wfp1x: {deltas} deltas made into patches" in text
    with mounted.Mount(bucket, work=scratch / "m") as again:
        again.wait_version(VERSIONS)
        assert_state(again.at, states[-1])
        assert spent(again) == (0, 0)
    with mounted.Mount(bucket) as late:
        late.wait_version(VERSIONS)
        assert late.status()["anchor"] == 5
        for number in range(1, VERSIONS + 1):
            late.control(f"pin {number}")
            assert_state(late.tree(number), states[number - 1])


def test_joined_at_every_version(publisher, bucket):
    """A chain is made from its anchor upwards, each delta on the one before."""
    for number, state in enumerate(steps(13), 1):
        publisher.publish(state)
        with mounted.Mount(bucket) as mount:
            mount.wait_version(number)
            assert_state(mount.at, state)


def test_long_chain(bucket, scratch):
    """More deltas than a stack keeps: they are folded while the chain is being made."""
    publisher = publishing.Publisher(bucket, scratch / "state",
                                     ["--encoding", "wfp1x", "--anchor-every", 1000])
    states = models.states(14, 40, models.SMALL, density=0.01)
    for state in states:
        publisher.publish(state)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(40)
        assert_state(mount.at, states[-1])
        assert spent(mount)[0] == 39


def test_damage(publisher, bucket):
    """A delta with a byte changed keeps the last good version in place."""
    states = steps(15)[:3]
    for state in states[:2]:
        publisher.publish(state)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(2)
        publisher.publish(states[2])
        mount.wait_version(3)
    entry = publishing.pointer(bucket)["steps"][-1]
    path = bucket / entry["objects"][0]["key"]
    blob = bytearray(path.read_bytes())
    blob[-9] ^= 1
    path.write_bytes(blob)
    with mounted.Mount(bucket) as mount:
        mount.wait_version(2)
        mount.wait_problem(entry["objects"][0]["key"])
        assert_state(mount.at, states[1])
