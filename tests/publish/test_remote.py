"""Published runs over the network: every kind of place, what is fetched, and without a network."""

import threading

import pytest

from lib import checks, models, mounted, places, published
from lib.everywhere import LONG

STATES = models.states(21, 8, models.SMALL)


@pytest.fixture(params=sorted(places.KINDS))
def place(request, monkeypatch):
    """Each kind."""
    with places.KINDS[request.param]() as one:
        yield places.enter(one, monkeypatch)


def mount(place, work=None, **kwargs):
    """A mount of it."""
    return mounted.Mount(place.url, args=[*place.args, "--timeout", 20], work=work, **kwargs)


def assert_version(m, run, number):
    """Current and right."""
    m.wait_version(number, LONG)
    checks.assert_tree(m.at, run.weights(number), f"version {number}")


def fetched(place, since):
    """{key: bytes asked for} of data objects since that many requests."""
    out = {}
    for target, first, last in place.ranges(place.data, since):
        key = place.key_of(target)
        if key is not None and key.split("/")[0] in ("anchors", "deltas", "compact"):
            out[key] = out.get(key, 0) + (last + 1 - first if last is not None else 0)
    return out


def test_followed_anywhere(place, bucket):
    """Versions as they come; a step costs its delta, once, and nothing of any anchor."""
    run = published.Published(bucket, shards=2).publish_all(STATES[:3])
    place.upload(bucket)
    with mount(place) as m:
        assert_version(m, run, 3)
        for state in STATES[3:6]:
            since = len(place.data.seen)
            number = run.publish(state, anchor=run.newest() == 4)
            place.upload(bucket)
            assert_version(m, run, number)
            key = run.entry(number)["objects"][0]["key"]
            assert set(fetched(place, since)) == {key}
            assert fetched(place, since)[key] <= run.entry(number)["objects"][0]["size"] + 4096
        assert not m.status()["problems"]


def test_asked_for_beside_the_pointer(bucket, monkeypatch):
    """The new delta is on its way while weightfs.json, which names it, is still being read."""
    run = published.Published(bucket).publish_all(STATES[:3])
    asked, beside = threading.Event(), []

    def hold(_, key):
        if key.startswith("run/deltas/"):
            asked.set()
        elif key == "run/weightfs.json":
            beside.append(asked.wait(mounted.WAIT))

    with places.S3Place() as one:
        place = places.enter(one, monkeypatch)
        place.upload(bucket)
        with mount(place) as m:
            assert_version(m, run, 3)
            asked.clear()
            place.s3.before_get = hold
            number = run.publish(STATES[3])
            place.upload(bucket)
            assert_version(m, run, number)
            assert beside == [True]


def test_joined_by_a_span(place, bucket):
    """An anchor and one object, not one for each step."""
    run = published.Published(bucket).publish_all(STATES)
    path = run.span(1, 8)
    place.upload(bucket)
    with mount(place, keep=1) as m:
        assert_version(m, run, 8)
        have = set(fetched(place, 0))
        assert have == {str(path.relative_to(bucket)), run.entry(1, "anchor")["objects"][0]["key"]}


def test_offline(place, bucket, scratch):
    """With a warm cache and no network the last version is there, and then the run goes on."""
    run = published.Published(bucket).publish_all(STATES[:4], anchors=(3,))
    place.upload(bucket)
    with mount(place, scratch / "work") as m:
        assert_version(m, run, 4)
    place.gone()
    with mount(place, scratch / "work") as m:
        assert_version(m, run, 4)
        place.back()
        run.publish(STATES[4])
        place.upload(bucket)
        assert_version(m, run, 5)


def test_pointer_first(place, bucket):
    """A pointer that is seen before its objects is waited for."""
    run = published.Published(bucket).publish_all(STATES[:2])
    place.upload(bucket)
    with mount(place, hole_grace=30) as m:
        assert_version(m, run, 2)
        run.publish(STATES[2])
        key = run.entry(3)["objects"][0]["key"]
        place.put(published.POINTER, (bucket / published.POINTER).read_bytes())
        mounted.wait_until(lambda: m.problem(key), m.status, LONG)
        assert m.version() == 2
        place.upload(bucket)
        assert_version(m, run, 3)
        assert not m.status()["problems"]
