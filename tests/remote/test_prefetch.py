"""--prefetch all: a version's bytes come near without a reader, and are read from there."""

import pytest

from lib import models, oracle, publishing, trl
from lib.mounted import Mount, run, wait_until
from lib.nginx import Nginx

SPEC = {"w.weight": ("BF16", (1024, 2048)), "v.weight": ("BF16", (700, 1000))}


@pytest.fixture
def server(bucket, scratch):
    """nginx over a run of two versions."""
    models.publish(trl.Run(bucket, "v3"), models.states(51, 2, SPEC))
    with Nginx(bucket, scratch / "nginx") as one:
        yield one


def near(m):
    """Bytes of the newest version's objects that are in the cache, and of how many."""
    blocks = m.status()["blocks"]
    return blocks["newest_present"], blocks["newest_size"]


def read_all(m):
    """The weights, through the mount."""
    return (m.at / "model.safetensors").read_bytes()


def fetched(m):
    """Bytes of objects that were asked of the server so far."""
    return m.status()["blocks"]["fetched_bytes"]


def test_all(server, bucket):
    """Everything comes by itself; reading it then asks the server for nothing."""
    with Mount(server.url("json"), args=["--prefetch", "all", "--times", "ignore"]) as m:
        m.wait_version(2)
        wait_until(lambda: near(m)[0] == near(m)[1] > 0, lambda: f"near: {near(m)}")
        before = fetched(m)
        want = oracle.Oracle(bucket, trust_times=False).files(2)["model.safetensors"]
        assert read_all(m) == want
        assert fetched(m) == before
        assert " near\n" in (m.dot / "status").read_text()


def test_on_demand(server, bucket):
    """By default only what is read comes; `prefetch` through control brings the rest."""
    with Mount(server.url("json"), args=["--times", "ignore"]) as m:
        m.wait_version(2)
        present, size = near(m)
        assert present < size
        assert "pulling version 2" in m.control("prefetch")
        wait_until(lambda: near(m)[0] == near(m)[1], lambda: f"near: {near(m)}")


def test_wrong_word(server, scratch):
    """The option takes one of two words."""
    done = run("mount", "--prefetch", "some", server.url("json"), scratch, check=False)
    assert done.returncode == 2 and "read" in done.stderr and "all" in done.stderr


def test_packed_anchor(bucket, scratch):
    """A compressed anchor comes once and as it is, by reading and by itself."""
    states = models.states(52, 3, SPEC)
    publisher = publishing.Publisher(bucket, scratch / "state", ["--compress-anchors"])
    for state in states:
        publisher.publish(state)
    size = sum(p.stat().st_size for p in bucket.rglob("*.safetensors"))
    with Nginx(bucket, scratch / "nginx") as one:
        with Mount(one.url("json"), args=["--times", "ignore"]) as m:
            m.wait_version(3)
            assert publishing.same_state(publishing.st.load(read_all(m))[0], states[-1])
            assert fetched(m) < 1.05 * size + (1 << 20)
        with Mount(one.url("json"), args=["--prefetch", "all", "--times", "ignore"]) as m:
            m.wait_version(3)
            wait_until(lambda: near(m)[0] == near(m)[1] > 0, lambda: f"near: {near(m)}")
            before = fetched(m)
            assert publishing.same_state(publishing.st.load(read_all(m))[0], states[-1])
            assert fetched(m) == before


def test_one_more_delta(bucket, scratch):
    """The one step that has come is asked for in a few requests at once, and nothing else is."""
    run_of, states = trl.Run(bucket, "v3"), models.states(51, 2, SPEC)
    for state in states:
        run_of.sync(state)
    with Nginx(bucket, scratch / "nginx") as one, \
            Mount(one.url("json"), args=["--times", "ignore"]) as m:
        m.wait_version(2)
        read_all(m)
        before = m.status()["blocks"]
        path = run_of.sync({name: t._replace(data=t.data ^ 1) for name, t in states[1].items()})
        m.control("refresh")
        m.wait_version(3)
        size = path.stat().st_size
        # The version may be ready before the last of its fetches has been counted.
        wait_until(lambda: m.status()["blocks"]["fetched_bytes"] >= before["fetched_bytes"] + size,
                   "the delta is not fetched whole")
        after = m.status()["blocks"]
        assert after["fetched_bytes"] - before["fetched_bytes"] == size > 5 << 20
        assert after["fetches"] - before["fetches"] <= 2 + (size >> 21)
        want = oracle.Oracle(bucket, trust_times=False).files(3)["model.safetensors"]
        assert read_all(m) == want
