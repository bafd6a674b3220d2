"""Runs on the Hub, seen through a mount: every byte equals the reference, whatever the network
does."""

import os
import re
import time

import pytest

from lib import checks, leaks, models, oracle, reading, trl
from lib.fake_hub import FakeHub
from lib.mounted import SLOW, WAIT, Mount, run, wait_until

TOKEN = "hf_MARKED" + "x7Qz" * 6
OTHER = "hf_MARKED" + "k3Wp" * 6


def upload(hub, bucket, root, prefix="run/"):
    """Puts what is new or changed in a local bucket directory onto the Hub, times included."""
    known = hub.buckets[bucket].files
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        key, data = prefix + str(path.relative_to(root)), path.read_bytes()
        if key not in known or known[key].data != data:
            hub.put(bucket, {key: data}, path.stat().st_mtime)


@pytest.fixture
def hub():
    """A fake Hub whose bucket org/run is private; nothing foreign may reach its CDN."""
    with FakeHub(tokens=(TOKEN,)) as one:
        one.bucket("org/run", private=True)
        yield one


@pytest.fixture
def env(hub, scratch, monkeypatch):
    """The environment of the program."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING_FACE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HOME", str(scratch / "hf"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return monkeypatch


@pytest.fixture
def local(bucket):
    """The oracle's copy of the run, three versions long."""
    models.write_companions(bucket)
    writer = trl.Run(bucket, "v3", interval=4)
    states = models.states(7, 12, models.TINY)
    models.publish(writer, states[:3])
    writer.rest = iter(states[3:])
    return writer


def follow(m, hub, writer, root, rounds=1):
    """Publishes more versions and waits for each."""
    for _ in range(rounds):
        assert writer.sync(next(writer.rest))
        upload(hub, "org/run", root)
        m.wait_version(writer.number)


def test_every_byte(hub, env, local, bucket):
    """A bucket's run equals the reference, version by version, listings in pages of two."""
    hub.page = 2
    upload(hub, "org/run", bucket)
    want = oracle.Oracle(bucket)
    with Mount("hf://buckets/org/run/run") as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want.files(3))
        follow(m, hub, local, bucket, 3)
        checks.assert_tree(m.at, want.files(6))
        for number in (3, 4, 5, 6):
            checks.assert_tree(m.tree(number), want.files(number))
            checks.assert_ranges(m.tree(number) / "model.safetensors",
                                 want.files(number)["model.safetensors"], number)
        assert m.status()["source"] == "hf://buckets/org/run/run"
    assert hub.hub.count("cursor=") > 0
    assert hub.hub.count(r"tree/run\?recursive=true") > 0
    assert hub.hub.count("/tree") == hub.hub.count("recursive=true")


# ---- changes ----------------------------------------------------------------------------------


def test_feed(hub, env, local, bucket):
    """A new version is seen by the feed alone: nothing is probed, polled or listed, only what has
    changed is asked for."""
    upload(hub, "org/run", bucket)
    with Mount("hf://buckets/org/run/run", poll=3600) as m:
        m.wait_version(3)
        wait_until(lambda: "feed live" in m.status()["access"], m.status)
        mark = hub.hub.mark()
        hub.put("org/run", {"elsewhere/x": b"1", "run_x/y": b"2"})
        follow(m, hub, local, bucket)
        assert hub.hub.count("/tree", mark) == 0
        assert hub.hub.count("/events", mark) == 0
        assert hub.hub.count("POST .*/paths-info", mark) >= 1
        assert hub.hub.count("GET /api/buckets/org/run$", mark) == 0
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(4))
        # A deletion, a rewrite, and what is announced but not there: that makes a listing.
        hub.delete("org/run", ["run/tokenizer.json"])
        wait_until(lambda: not (m.dot / "bucket" / "tokenizer.json").exists(), "still there")
        hub.put("org/run", {"run/tokenizer.json": b"{}"})
        wait_until(lambda: (m.dot / "bucket" / "tokenizer.json").exists(), "not there")
        assert (m.dot / "bucket" / "tokenizer.json").read_bytes() == b"{}"
        assert hub.hub.count("/tree", mark) == 0
        hub.buckets["org/run"].change([{"path": "run/nothing", "op": "add"}])
        wait_until(lambda: hub.hub.count("/tree", mark) > 0, "no listing")
        # Neither does a refused question lose anything.
        hub.hub.fault("paths-info", "status", status=404)
        hub.put("org/run", {"run/tokenizer.json": b"{ }"})
        wait_until(lambda: (m.dot / "bucket" / "tokenizer.json").stat().st_size == 3, "not there")
        # A cut, a planned end and a lost place: nothing is missed.
        for breakage in (hub.cut_streams, lambda: hub.say("reconnect", {"cursor": "c0"}),
                         lambda: (hub.forget_changes(), hub.say("reset", {"reason": "old"}))):
            mark = hub.hub.mark()
            breakage()
            follow(m, hub, local, bucket)
            wait_until(lambda: hub.hub.count("/events", mark) > 0, "no new stream")
        assert hub.hub.count(r"events\?cursor=c") > 0
        assert hub.hub.count(r"events\?since=") > 0


@pytest.mark.parametrize("feed", ["none", "refuse", "busy"])
def test_no_feed(hub, env, local, bucket, feed):
    """Without a feed updatedAt is probed, and only a change makes a listing; a feed that comes back
    is used."""
    hub.feed = feed
    upload(hub, "org/run", bucket)
    with Mount("hf://buckets/org/run/run", poll=0.05) as m:
        m.wait_version(3)
        wait_until(lambda: hub.hub.count("/events") > 0, "the feed was not asked for")
        mark = hub.hub.mark()
        wait_until(lambda: hub.hub.count("GET /api/buckets/org/run$", mark) >= 3, "no probes")
        assert hub.hub.count("/tree", mark) == 0
        follow(m, hub, local, bucket)
        if feed == "busy":
            hub.feed = "live"  # the more often it was refused, the longer it waits
            wait_until(lambda: "feed live" in m.status()["access"], m.status, 5 * WAIT)
        else:
            text = "no feed here"
            wait_until(lambda: text in m.status()["access"], m.status)
            # A refused cursor is tried without, and then never again.
            assert hub.hub.count("/events") == (1 if feed == "none" else 2)


def test_probe_is_kept_back(hub, env, local, bucket):
    """A listing that fails is made again although updatedAt does not move again."""
    hub.feed = "none"
    upload(hub, "org/run", bucket)
    with Mount("hf://buckets/org/run/run", poll=0.05) as m:
        m.wait_version(3)
        assert local.sync(next(local.rest))
        fault = hub.hub.fault("GET /api/buckets/org/run/tree", "status", times=1, status=418)
        upload(hub, "org/run", bucket)
        m.wait_version(4)
        assert fault.hits == 1


def test_quota(hub, env, local, bucket):
    """What is left is in the status and slows the probes down; at nothing they stop."""
    hub.feed = "none"
    upload(hub, "org/run", bucket)
    hub.quota["api"] = [40, 1000]
    with Mount("hf://buckets/org/run/run", poll=0.02) as m:
        m.wait_version(3)
        assert re.search(r"hub: \d+ of 1000 api calls left for \d+ s", m.status()["access"])
        assert "of 5000 resolve calls" in m.status()["access"]
        # 300 s for what is left, of which half is used: at this pace that is almost nothing.
        mark, begin = hub.hub.mark(), time.monotonic()
        before = m.status()["last_scan"]
        wait_until(lambda: m.status()["last_scan"] > before + 0.3, "no scans")
        assert hub.hub.count("/api/", mark) <= 1 + (time.monotonic() - begin) * 40 / 300
        # Asked for by a person, it is looked at all the same.
        assert local.sync(next(local.rest))
        upload(hub, "org/run", bucket)
        m.control("refresh")
        m.wait_version(4)


# ---- the network's faults -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "reset", "whole", "shift", "gzip", "extra", "html"])
def test_cdn_faults(hub, env, local, bucket, kind):
    """Right bytes, late, whatever the CDN does now and then."""
    upload(hub, "org/run", bucket)
    fault = hub.cdn.fault("GET /xet", kind, times=3)
    want = oracle.Oracle(bucket)
    with Mount("hf://buckets/org/run/run") as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want.files(3))
        assert fault.hits == 3


@pytest.mark.parametrize("headers", [
    (("Retry-After", "0"),), (("RateLimit", '"api";r=0;t=1'),), (("RateLimit", '"api";r=9;t=99'),)])
def test_bursts(hub, env, local, bucket, headers):
    """429 in three forms, 502 with a page of HTML, 503 and 500 on every kind of call."""
    upload(hub, "org/run", bucket)
    faults = [hub.hub.fault(pattern, "html", status=status, headers=headers)
              for pattern in (r"/api/buckets/org/run$", "/tree", "/resolve/")
              for status in (429, 502)]
    want = oracle.Oracle(bucket)
    with Mount("hf://buckets/org/run/run") as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want.files(3))
        assert [f.hits for f in faults] == [1] * len(faults)


def test_expired_links(hub, env):
    """A signed URL that ran out is fetched anew; what it leads to is the same content."""
    data = os.urandom(6 << 20)
    hub.put("org/run", {"run/a.bin": data})
    with Mount("hf://buckets/org/run/run") as m:
        with open(m.dot / "bucket" / "a.bin", "rb", buffering=0) as f:
            for at in (0, 2 << 20, 4 << 20):
                assert os.pread(f.fileno(), 5000, at) == data[at:at + 5000]
                hub.expire_links()
    assert hub.hub.count("/resolve/") == 3
    assert hub.cdn.count("GET /xet") == 5


def test_one_resolve(hub, env, bucket, scratch):
    """Many ranges of one file: one resolve, and the CDN for the rest."""
    state = models.states(3, 1, {"w": ("BF16", (3000, 1000))})[0]
    models.write_base(scratch / "base", state)
    data = (scratch / "base" / "model.safetensors").read_bytes()
    hub.put("org/run", {"run/model.safetensors": data, "run/config.json": b"{}"})
    with Mount(bucket, base="hf://buckets/org/run/run") as m:
        mark = hub.hub.mark()
        checks.assert_ranges(m.at / "model.safetensors", data, 5, 60)
        assert hub.hub.count("/resolve/", mark) <= 1
        assert hub.hub.count("/resolve/run/model.safetensors") == 1
        assert hub.cdn.count("GET /xet") > 1


def test_overwritten_between_ranges(hub, env, bucket, scratch):
    """An open file goes on with the bytes that it began with, from its signed URL; once that has
    run out the rest is an error, never another version's bytes."""
    old = os.urandom(6 << 20)
    hub.put("org/run", {"run/a.bin": old, "run/b.bin": b"1" * 10})
    with Mount("hf://buckets/org/run/run") as m:
        path = m.dot / "bucket" / "a.bin"
        with open(path, "rb", buffering=0) as f:
            assert f.read(1000) == old[:1000]
            hub.put("org/run", {"run/a.bin": os.urandom(6 << 20)})
            assert os.pread(f.fileno(), 100000, 3 << 20) == old[3 << 20:(3 << 20) + 100000]
            hub.expire_links()
            try:
                got = os.pread(f.fileno(), 1 << 20, 5 << 20)
            except OSError:
                got = None
            assert got in (None, old[5 << 20:])


def test_sizes(hub, env, bucket):
    """Empty files, odd names, names that only begin like the prefix, and sizes that are not those
    of a redirect's text."""
    files = {"run/empty.json": b"", "run/odd +%41 ü&=#?.json": b"odd", "run/.hidden": b"x",
             "run/d/e/f.json": b"f" * 1300, "run/.git/x": b"x", "run/a": b"file",
             "run/a/b.json": b"below"}
    hub.put("org/run", {**files, "run_x/g": b"g", "run": b"r", "runs/h": b"h", "run//i": b"i",
                        "run/../j": b"j"})
    with Mount("hf://buckets/org/run/run") as m:
        shown = {str(p.relative_to(m.dot / "bucket")): p.read_bytes()
                 for p in (m.dot / "bucket").rglob("*") if p.is_file()}
        want = {k.removeprefix("run/"): v for k, v in files.items()
                if "/." not in k and k != "run/a"}
        assert shown == want
        assert "names left out" in m.status()["access"]


# ---- tokens -------------------------------------------------------------------------------------


def test_token_rotation(hub, env, local, bucket, scratch):
    """A token file that changes is read again when the old token is refused."""
    token = scratch / "token"
    leaks.put(token, TOKEN + "\n")
    env.delenv("HF_TOKEN")
    upload(hub, "org/run", bucket)
    with Mount("hf://buckets/org/run/run", args=["--token-file", token]) as m:
        m.wait_version(3)
        hub.tokens = {TOKEN, OTHER}
        leaks.put(token, OTHER)
        hub.tokens = {OTHER}
        follow(m, hub, local, bucket)
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(4))
        hub.tokens = set()
        hub.cut_streams()
        wait_until(lambda: "does not accept the token" in (m.status()["store_error"] or ""),
                   m.status)
        assert m.version() == 4
        hub.tokens = {OTHER}
        follow(m, hub, local, bucket)


def failure(*args):
    """The sentence with which `log` fails, without secrets."""
    done = run("log", *args, check=False)
    assert done.returncode != 0
    return done.stderr


def test_refusals(hub, env, scratch):
    """Each refusal says what to do."""
    hub.repo("org/gated", gated=True).commit({"config.json": b"{}"})
    hub.repo("org/model").commit({"config.json": b"{}"})
    hub.repo("org/data", kind="datasets").commit({"x": b"1"})
    assert "use hf://org/model" in failure("hf://buckets/org/model")
    assert "use hf://datasets/org/data" in failure("hf://org/data")
    assert "use hf://buckets/org/run" in failure("hf://org/run")
    assert "does not exist" in failure("hf://buckets/org/none")
    assert "has no revision" in failure("hf://org/model@nope")
    assert "accept its conditions at" in failure("hf://org/gated")
    env.setenv("HF_TOKEN", OTHER)
    assert "does not accept the token from HF_TOKEN" in failure("hf://buckets/org/run")
    env.delenv("HF_TOKEN")
    assert "set HF_TOKEN" in failure("hf://buckets/org/run")
    (scratch / "hf").mkdir()
    leaks.put(scratch / "hf" / "token", TOKEN)
    run("log", "hf://buckets/org/run")
    env.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert "set HF_TOKEN" in failure("hf://buckets/org/run")
    assert "cannot be read" in failure("--token-file", scratch / "none", "hf://buckets/org/run")
    assert "bucket has no revisions" in failure("hf://buckets/org/run@main")
    assert "hf://buckets/NAMESPACE/NAME" in failure("hf://buckets/org")


# ---- repositories -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["hf://org/base", "hf://org/base@main", "{sha}",
                                   "hf://old/base", "{endpoint}/org/base/tree/main?x=y#z"])
def test_repository_as_base(hub, env, bucket, scratch, place):
    """A model repository under every name: weights from the CDN, small files through the Hub's own
    redirects, sizes from lfs.size."""
    models.write_base(scratch / "base", models.states(5, 1, models.SMALL)[0], shards=2)
    repo = hub.repo("org/base")
    files = {str(p.relative_to(scratch / "base")): p.read_bytes()
             for p in (scratch / "base").rglob("*") if p.is_file()}
    sha = repo.commit(files)
    hub.renamed["models", "old/base"] = "org/base"
    place = place.format(sha=f"hf://org/base@{sha}", endpoint=hub.endpoint)
    want = oracle.Oracle(bucket, base=scratch / "base")
    with Mount(bucket, base=place) as m:
        checks.assert_tree(m.at, want.files(0))
    assert hub.hub.count("GET /api/resolve-cache/") > 0
    assert hub.hub.count("/tree/main") == 0


def test_repository_branch(hub, env, local, bucket):
    """A run on a branch: each commit is a listing; what was opened stays at its commit."""
    repo = hub.repo("org/runs", kind="datasets")
    env.setenv("HF_TOKEN", TOKEN)

    def commit():
        repo.commit({str(p.relative_to(bucket)): p.read_bytes()
                     for p in bucket.rglob("*") if p.is_file()}, "refs/pr/1")

    commit()
    want = oracle.Oracle(bucket, trust_times=False)
    with Mount("hf://datasets/org/runs@refs/pr/1", args=["--times", "ignore"]) as m:
        m.wait_version(3)
        mark = hub.hub.mark()
        assert local.sync(next(local.rest))
        commit()
        m.wait_version(4)
        checks.assert_tree(m.at, want.files(4))
        assert hub.hub.count("/tree/", mark) == 1
        assert hub.hub.count(r"revision/refs%2Fpr%2F1", mark) >= 1


# ---- no network ---------------------------------------------------------------------------------


def test_network_gone(hub, env, local, bucket, scratch):
    """What was read before is served, what was not is an error in time, and it comes back."""
    upload(hub, "org/run", bucket)
    want = oracle.Oracle(bucket)
    hub.put("org/run", {"run/later.dat": b"l" * 300000, "run/unread.bin": b"u" * 300000})
    with Mount("hf://buckets/org/run/run", poll=0.1, args=["--timeout", 4 * SLOW]) as m:
        m.wait_version(3)
        shown = want.files(3)
        checks.assert_tree(m.tree(3), {**shown, "later.dat": b"l" * 300000},
                           read=reading.read_patiently)
        hub.hub.stop()
        hub.cdn.stop()
        wait_until(lambda: m.status()["store_error"], m.status)
        reading.drop_caches()
        checks.assert_tree(m.at, {**shown, "later.dat": b"l" * 300000})
        assert m.version() == 3
        with pytest.raises(OSError):
            (m.dot / "bucket" / "unread.bin").read_bytes()
        hub.hub.start()
        hub.cdn.start()
        follow(m, hub, local, bucket)
        assert reading.read_patiently(m.dot / "bucket" / "unread.bin") == b"u" * 300000


def test_start_without_network(hub, env, local, bucket, scratch):
    """A mount with a warm cache and no network shows what was there, says so, and recovers."""
    upload(hub, "org/run", bucket)
    want = oracle.Oracle(bucket)
    work = scratch / "work"
    with Mount("hf://buckets/org/run/run", work=work) as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want.files(3))
    hub.hub.stop()
    hub.cdn.stop()
    with Mount("hf://buckets/org/run/run", work=work) as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want.files(3))
        assert "offline: hf://buckets/org/run/run is shown as it was on" in m.status()["line"]
        hub.hub.start()
        hub.cdn.start()
        follow(m, hub, local, bucket)
        wait_until(lambda: "offline" not in m.status()["line"], m.status)
        checks.assert_tree(m.at, want.files(4))
    # Without the cache nothing is invented.
    hub.hub.stop()
    try:
        assert "refuses connections" in failure("hf://buckets/org/run/run", "--cache-dir",
                                                scratch / "empty")
    finally:
        hub.hub.start()


# ---- between listing and reading ----------------------------------------------------------------


def after_listing(hub, action):
    """Has action() run once, when it has been answered what is there next, by a listing or for the
    changed paths alone, and nothing been read."""
    plain = hub.bucket_api

    def api(request, name, rest, token):
        answer = plain(request, name, rest, token)
        if rest and rest[0] in ("tree", "paths-info"):
            hub.bucket_api = plain
            action()
        return answer

    hub.bucket_api = api


def test_overwritten_after_listing(hub, env, local, bucket):
    """An object that is replaced between listing and reading is read as what it is now."""
    upload(hub, "org/run", bucket)
    key = "run/anchors/step_000004.safetensors"
    with Mount("hf://buckets/org/run/run") as m:
        m.wait_version(3)
        wait_until(lambda: "feed live" in m.status()["access"], m.status)
        after_listing(hub, lambda: upload(hub, "org/run", bucket))
        assert local.sync(next(local.rest))
        hub.put("org/run", {key: b"\0" * 5000})
        m.wait_version(4)
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(4))


def test_deleted_after_listing(hub, env, local, bucket):
    """An object that goes between listing and reading is not shown; what is shown stays."""
    upload(hub, "org/run", bucket)
    key = "run/anchors/step_000004.safetensors"
    with Mount("hf://buckets/org/run/run") as m:
        m.wait_version(3)
        wait_until(lambda: "feed live" in m.status()["access"], m.status)
        gone = []
        after_listing(hub, lambda: (hub.delete("org/run", [key]), gone.append(1)))
        assert local.sync(next(local.rest))
        upload(hub, "org/run", bucket)
        wait_until(lambda: gone and not m.problem(key.removeprefix("run/")), m.status)
        assert m.version() == 3
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(3))
        upload(hub, "org/run", bucket)
        m.wait_version(4)


def test_lost_page(hub, env, local, bucket):
    """A listing of which a page is lost is no listing: nothing vanishes, and it is made again."""
    hub.page = 3
    hub.feed = "none"
    upload(hub, "org/run", bucket)
    with Mount("hf://buckets/org/run/run") as m:
        m.wait_version(3)
        fault = hub.hub.fault("cursor=", "status", times=1 << 30, status=418)
        assert local.sync(next(local.rest))
        upload(hub, "org/run", bucket)
        wait_until(lambda: fault.hits >= 3, "no listing")
        assert m.version() == 3
        hub.hub.faults.clear()
        m.wait_version(4)
