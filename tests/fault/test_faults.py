"""Every fault of a network that we could think of, put in the way of mounts of each kind of source.

Two promises: the bytes are right, however late, or reading them is EIO when the time is over; and
a file never becomes shorter.  Each test does the same with all kinds of sources at once.
"""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib import places, reading, trl
from lib.everywhere import (LONG, MIB, eventually, everywhere, forget, in_time, read, read_at,
                            surely_at, surely_file, surely_tree)
from lib.mounted import SLOW, run, wait_until
from lib.nginx import certificate

# ---- faults that pass: right bytes, late ---------------------------------------------------------

PASSING = {
    "stall": {"kind": "stall", "times": 1},
    "reset": {"kind": "reset"},
    "cut": {"kind": "cut"},
    "short": {"kind": "short"},
    "extra": {"kind": "extra"},
    "gzip": {"kind": "gzip"},
    "shift": {"kind": "shift"},
    "500": {"kind": "status", "status": 500},
    "502": {"kind": "html", "status": 502},
    "503": {"kind": "status", "status": 503, "headers": (("Retry-After", "0"),)},
    "429-retry-after": {"kind": "status", "status": 429, "headers": (("Retry-After", "1"),),
                        "times": 1},
    "429-ratelimit": {"kind": "html", "status": 429, "headers": (("RateLimit", '"api";r=0;t=1'),),
                      "times": 1},
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing(cases, fault):
    """A run and a large file, with faults in the way of their bytes."""
    big = os.urandom(3 * MIB + 77)

    def one(case):
        place, how = case.place, {"times": 2, **PASSING[fault]}
        place.put("big.bin", big)
        with case.mount() as m:
            put = [place.data.fault(place.bytes_of("big.bin"), **how),
                   place.data.fault(place.content, **how)]
            m.wait_version(3)
            assert surely_file(m.dot / "bucket" / "big.bin") == big
            surely_tree(m.at, case.files(3))
            assert [f.left for f in put] == [0, 0]

    everywhere(cases, one)


@pytest.mark.parametrize("fault", ["cut", "reset", "502", "503", "429-retry-after",
                                   "429-ratelimit"])
def test_passing_listings(cases, fault):
    """The same for listings, of which the first comes before there is a mount."""
    def one(case):
        how = {"times": 2, **PASSING[fault]}
        put = case.place.api.fault(case.place.listing, **how)
        with case.mount() as m:
            m.wait_version(3)
            assert put.left == 0
            put = case.place.api.fault(case.place.listing, **how)
            case.follow(m)
            wait_until(lambda: put.left == 0, "listings went another way")

    everywhere(cases, one)


def test_whole_for_a_range(cases):
    """200 to a range near the beginning is good for its bytes; far behind, it may be an error once,
    and is right when the server does better."""
    big = os.urandom(6 * MIB + 77)

    def one(case):
        place = case.place
        place.put("big.bin", big)
        with case.mount() as m, open(m.dot / "bucket" / "big.bin", "rb", buffering=0) as f:
            near = place.data.fault(place.bytes_of("big.bin"), "whole")
            assert surely_at(f, 300000, 1000) == big[300000:301000]
            far = place.data.fault(place.bytes_of("big.bin"), "whole")
            assert read_at(f, 5 * MIB, 1000) in (errno.EIO, big[5 * MIB:][:1000])
            assert near.hits == far.hits == 1
            assert surely_file(m.dot / "bucket" / "big.bin") == big

    everywhere(cases, one)


def test_unauthorised_once(cases):
    """401 to one request of each server, then fine: an error at most, and soon none."""
    data = b"a" * 300000

    def one(case):
        place = case.place
        place.put("a.bin", data)
        with case.mount() as m:
            m.wait_version(3)
            put = [server.fault("^GET", "status", status=401) for server in place.servers()]
            read(m.dot / "bucket" / "a.bin", data)
            eventually(m.dot / "bucket" / "a.bin", data)
            shown = case.files(3)
            case.follow(m)
            surely_tree(m.tree(3), shown)
            assert all(f.hits == 1 for f in put)

    everywhere(cases, one)


# ---- faults that stay: EIO within the time, and all is well when they go -------------------------

STAYING = ["stall", "trickle", "reset", "cut", "extra", "gzip", "shift", "whole", "status", "slow"]


def test_staying(cases):
    """Each fault on a file of its own, all at once."""
    files = {kind: os.urandom(3 * MIB + n) for n, kind in enumerate(STAYING)}

    def one(case):
        place, outcomes = case.place, {}
        for kind, data in files.items():
            place.put(f"{kind}.bin", data)
        with case.mount(timeout=2 * SLOW) as m:
            top = m.dot / "bucket"
            for kind in STAYING:
                how = {"kind": kind} if kind != "slow" else {
                    "kind": "status", "status": 429, "headers": (("Retry-After", "100000"),)}
                place.data.fault(place.bytes_of(f"{kind}.bin"), times=10**6, **how)
            with ThreadPoolExecutor(len(STAYING)) as pool:
                outcomes = dict(zip(STAYING, pool.map(
                    lambda kind: read(top / f"{kind}.bin", files[kind]), STAYING)))
            assert outcomes == dict.fromkeys(STAYING, False)
            place.clear_faults()
            place.data.drop_connections()
            for kind, data in files.items():
                eventually(top / f"{kind}.bin", data)

    everywhere(cases, one)


def test_slow_trickle(cases):
    """Slow, and right, as long as it is within the time."""
    data = os.urandom(4000)

    def one(case):
        case.place.put("a.bin", data)
        with case.mount() as m:
            put = case.place.data.fault(case.place.bytes_of("a.bin"), "trickle")
            assert surely_file(m.dot / "bucket" / "a.bin") == data
            assert put.hits == 1

    everywhere(cases, one)


# ---- links that expire ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["all", "once"])
def test_links_expire(cases, how):
    """A 403 where bytes are: a new link, no error.  When that does not help: an error, in time."""
    big = os.urandom(6 * MIB)

    def one(case):
        place = case.place
        place.put("big.bin", big)
        with case.mount() as m, open(m.dot / "bucket" / "big.bin", "rb", buffering=0) as f:
            for at in (0, 2 * MIB, 4 * MIB):
                assert surely_at(f, at, 5000) == big[at:at + 5000]
                if how == "all":
                    place.expire_links()
                else:
                    place.data.fault(place.content, "status", status=403)
            place.data.fault(place.content, "status", status=403, times=10**6)
            assert read_at(f, 5 * MIB, 5000) == errno.EIO
            place.clear_faults()
            eventually(m.dot / "bucket" / "big.bin", big)

    everywhere(cases, one, ("hub", "gateway"))


# ---- objects that change under us ----------------------------------------------------------------

SIZES = {"same.bin": 6 * MIB, "shorter.bin": 5 * MIB, "longer.bin": 7 * MIB}


def test_overwritten_between_ranges(cases):
    """An open file is the bytes it began with, or EIO; opened again it is the new object."""
    old = os.urandom(6 * MIB)
    new = {name: os.urandom(size) for name, size in SIZES.items()}

    def one(case):
        for name in SIZES:
            case.place.put(name, old)
        with case.mount(poll=3600) as m:
            for name, size in SIZES.items():
                path = m.dot / "bucket" / name
                with open(path, "rb", buffering=0) as f:
                    assert surely_at(f, 0, 1000) == old[:1000]
                    case.place.put(name, new[name])
                    for at in (3 * MIB, 6 * MIB - 2000, 5 * MIB):
                        assert read_at(f, at, 1000) in (errno.EIO, old[at:at + 1000])
                    assert os.fstat(f.fileno()).st_size == len(old)
                    m.control("refresh")
                    wait_until(lambda: os.stat(path).st_size == size, "the new one is not shown")
                    eventually(path, new[name])
                    forget(f)
                    assert read_at(f, 3 * MIB, 1000) in (errno.EIO, old[3 * MIB:][:1000])

    everywhere(cases, one)


def test_overwritten_between_list_and_get(cases):
    """What the listing said is not there any more: an error, and never bytes of the new one under
    the old one's size."""
    old = os.urandom(6 * MIB)
    new = {name: os.urandom(size) for name, size in SIZES.items()}

    def one(case):
        for name in SIZES:
            case.place.put(name, old)
        with case.mount(poll=3600) as m:
            for name, size in SIZES.items():
                path = m.dot / "bucket" / name
                case.place.put(name, new[name])
                got = in_time(lambda: reading.read_file(path))
                assert got in (errno.EIO, errno.ESTALE, old, new[name])
                m.control("refresh")
                wait_until(lambda: os.stat(path).st_size == size, "the new one is not shown")
                eventually(path, new[name])

    everywhere(cases, one)


def test_delta_overwritten_while_fetched(cases):
    """A delta that is another one by the time its bytes are asked for: what is shown in the end is
    the new one, whole."""
    def one(case):
        place = case.place
        with case.mount() as m:
            m.wait_version(3)
            key = "deltas/step_000005.safetensors"
            pair = [trl.delta_blob(5, {"a.weight": ([1, 5], "BF16", [7, n]),
                                       "b.weight": ([0], "BF16", [n])}) for n in (3, 4)]
            met = place.meet(place.asked(key), lambda: place.put(key, pair[1]))
            place.put(key, pair[0])
            (case.root / key).write_bytes(pair[1])
            want = case.files(5)
            m.wait_version(5)
            wait_until(lambda: surely_file(m.at / "model.safetensors") ==
                       want["model.safetensors"], m.status)
            assert met.is_set()
            surely_tree(m.at, want)

    everywhere(cases, one)


def test_deleted_while_open(cases):
    """What was read stays right, the rest is right or EIO, and the size is what it was."""
    big = os.urandom(6 * MIB)

    def one(case):
        place, want = case.place, case.files(3)["model.safetensors"]
        place.put("big.bin", big)
        with case.mount() as m:
            m.wait_version(3)
            with open(m.dot / "bucket" / "big.bin", "rb", buffering=0) as f:
                assert surely_at(f, 0, 1000) == big[:1000]
                place.delete("big.bin")
                wait_until(lambda: not (m.dot / "bucket" / "big.bin").exists(), "still there")
                forget(f)
                assert surely_at(f, 0, 1000) == big[:1000]
                for at in (2 * MIB, 4 * MIB, 6 * MIB - 500):
                    assert read_at(f, at, 500) in (errno.EIO, big[at:at + 500])
                assert os.fstat(f.fileno()).st_size == len(big)
            with open(m.at / "model.safetensors", "rb", buffering=0) as f:
                for key in [k for k in place.known if k.startswith(("anchors/", "deltas/"))]:
                    place.delete(key)
                wait_until(lambda: not (m.dot / "bucket" / "anchors").exists(), "still there")
                forget(f)
                assert in_time(lambda: reading.read_fd(f.fileno())) in (errno.EIO, want)
                assert os.fstat(f.fileno()).st_size == len(want)

    everywhere(cases, one)


# ---- listings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"kind": "status", "status": 500}, {"kind": "cut"},
                                 {"kind": "html", "status": 200}, {"kind": "stall"}],
                         ids=lambda how: how["kind"])
def test_listing_page_lost(cases, how):
    """A listing of which a part does not come is none at all: nothing vanishes, nothing new is half
    there, and the next whole one counts."""
    def one(case):
        place = case.place
        if place.later_page:
            place.pages_of(2)
        shown = case.files(3)
        with case.mount(timeout=2 * SLOW) as m:
            m.wait_version(3)
            put = place.api.fault(place.later_page or place.listing, times=10**6, **how)
            case.sync()
            if how["kind"] == "status":
                wait_until(lambda: m.status()["store_error"], m.status, LONG)
            wait_until(lambda: put.hits >= 2, "nothing is listed", LONG)
            assert m.version() == 3 and not m.status()["problems"]
            surely_tree(m.at, shown)
            place.clear_faults()
            place.api.drop_connections()
            m.control("refresh")
            m.wait_version(4, LONG)
            surely_tree(m.at, case.files(4))
            surely_tree(m.tree(3), shown)

    everywhere(cases, one)


def test_feed_cut(cases):
    """Each time the Hub's feed breaks off, what came meanwhile is seen."""
    case = cases["hub"]
    hub = case.place.hub
    with case.mount(poll=3600) as m:
        m.wait_version(3)
        for breakage in (hub.cut_streams, hub.hub.drop_connections,
                         lambda: (case.place.gone(), case.place.back())):
            wait_until(lambda: "feed live" in m.status()["access"], m.status)
            breakage()
            case.follow(m)


# ---- no server, no name, not that server ---------------------------------------------------------


def test_server_gone_and_back(cases):
    """What was read is served, the rest is EIO, a read that waits when it comes back is right."""
    files = {f"{n}.bin": os.urandom(300000 + n) for n in range(2)}

    def one(case):
        place, shown = case.place, case.files(3)
        for name, data in files.items():
            place.put(name, data)
        with case.mount() as m, case.mount(timeout=LONG) as patient, ThreadPoolExecutor(1) as pool:
            m.wait_version(3)
            patient.wait_version(3)
            top = m.dot / "bucket"
            surely_tree(m.tree(3), shown)
            place.gone()
            waiting = pool.submit((patient.dot / "bucket" / "1.bin").read_bytes)
            wait_until(lambda: m.status()["store_error"], m.status, LONG)
            with open(m.at / "model.safetensors", "rb", buffering=0) as f:
                forget(f)
            surely_tree(m.at, shown)
            assert not read(top / "0.bin", files["0.bin"])
            assert not waiting.done()
            place.back()
            assert waiting.result(LONG) == files["1.bin"]
            eventually(top / "0.bin", files["0.bin"])
            case.follow(m)

    everywhere(cases, one)


def test_no_such_name(scratch, monkeypatch):
    """A host name that does not resolve: a sentence with the name in it, in time."""
    places.clean_environment(monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    sources = {"hub.invalid": ["hf://buckets/org/run"],
               "s3.invalid": ["--endpoint-url", "http://s3.invalid", "--no-sign-request",
                              "s3://bucket/run"],
               "web.invalid": ["http://web.invalid/run"]}

    def one(name):
        done = run("log", "--timeout", 2 * SLOW, "--cache-dir", scratch / name, *sources[name],
                   check=False, timeout=LONG)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and name in done.stderr, done.stderr

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, sources))


def test_certificates(cases, scratch, monkeypatch):
    """A certificate that nobody vouches for is refused; with --ca-file it is good, but not for
    another name."""
    (scratch / "right").mkdir()
    (scratch / "wrong").mkdir()
    pair, other = certificate(scratch / "right"), certificate(scratch / "wrong", "example.org")

    def secure(names):
        for case in cases.values():
            for server in case.place.servers():
                server.secure(*names)
            if case.name == "hub":
                monkeypatch.setenv("HF_ENDPOINT", case.place.api.origin)

    def ask(case, *words):
        done = run("log", "--cache-dir", scratch / "none", *case.place.args, *words,
                   case.place.url, check=False, timeout=LONG)
        assert done.returncode == 1
        return done.stderr

    def refused(case):
        assert "certificate" in ask(case, "--ca-file", other[0])

    def accepted(case):
        assert "--ca-file" in ask(case)
        with case.mount("--ca-file", pair[0]) as m:
            m.wait_version(3)
            surely_tree(m.at, case.files(3))

    def aws_way(case):
        run("log", "--cache-dir", scratch / "none", *case.place.args, case.place.url)

    secure(other)
    everywhere(cases, refused)
    secure(pair)
    everywhere(cases, accepted)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pair[0]))
    everywhere(cases, aws_way, ("s3", "gateway"))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(scratch / "none.pem"))
    assert "none.pem' (AWS_CA_BUNDLE) cannot be read" in ask(cases["s3"])
    monkeypatch.delenv("AWS_CA_BUNDLE")
    (scratch / "config").write_text(f"[default]\nca_bundle = {pair[0]}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(scratch / "config"))
    everywhere(cases, aws_way, ("s3", "gateway"))
    everywhere(cases, lambda case: ask(case), ("hub", "http"))
