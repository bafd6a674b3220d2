"""The S3 store against a server that checks every rule."""

import hashlib
import subprocess
import threading

import pytest

from lib import driven, mounted
from lib.driven import Failed, Store, keys, sentence
from lib.strict_s3 import Key, StrictS3

ODD = ["a b+c", "per%41cent", "ü/✓", "q?a=b&c#d", "plain", "star*'()!~", "a=b@c:d,e;f$",
       "deep/" + "/".join("0123456789")]
HIDDEN = ["x//y", "a/../b", "a/./b", "slash/end//", "bell\x07", "plain/below"]


@pytest.fixture
def server():
    """Path-style, strict."""
    with StrictS3() as one:
        yield one


def data_of(key, size=70000):
    """Content that no other key has."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() * (size // 32 + 1)


def store(server, prefix="", *args, **kwargs):
    """The store on the server's bucket."""
    return Store(f"s3://bucket{prefix}", "--endpoint", server.endpoint, *args, **kwargs)


@pytest.mark.parametrize("encode", [True, False], ids=["encoded", "plain"])
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "start-after"])
def test_listing(server, encode, tokens):
    """Odd keys over many pages; what is no path is hidden and counted; folders are not."""
    server.page, server.encode, server.tokens = 3, encode, tokens
    hidden = [k for k in HIDDEN if encode or "\x07" not in k]
    for key in [*ODD, *hidden, "folder/", ".dot", "up/.dot/below"]:
        server.put(key, data_of(key) if key != "folder/" else b"")
    with store(server) as s:
        got = s.list()
        want = [k for k in ODD if k != "plain"] + ["plain/below"]
        assert sorted(got) == sorted(want)
        assert s.hidden == len(hidden)  # "plain/below" hides "plain"
        for key in want:
            assert s.get(key) == data_of(key)
        assert sorted(s.list("deep/")) == [k for k in ODD if k.startswith("deep/")]


def test_five_thousand_keys(server):
    """In pages of a thousand, with and without a prefix."""
    for n in range(5003):
        server.put(f"run/{n:05}", b"%d" % n)
        server.put(f"run_other/{n}", b"x")
    with store(server, "/run") as s:
        got = s.list()
        assert sorted(got) == [f"{n:05}" for n in range(5003)]
        assert len({r.id for r in got.values()}) == 5003
        assert s.get("04711") == b"4711"
    assert server.s3.count("list-type") == 6


def test_same_content_same_identity(server):
    """Under two names, and not for another content; opaque ETags count with their place."""
    for key in ("a", "b"):
        server.put(key, b"same" * 100)
    server.put("c", b"other" * 80)
    with store(server) as s:
        got = s.list()
        assert got["a"].id == got["b"].id != got["c"].id
        for key in "ab":
            server.objects[key] = server.objects[key]._replace(etag="CPDq8tGc9e8CEAE=")
        got = s.list()
        assert got["a"].id != got["b"].id
        assert s.get("a") == s.get("b") == b"same" * 100


@pytest.mark.parametrize("way", ["412", "ignored"])
def test_overwrite_between_two_ranges(server, way):
    """The second range is an error, whether the server honours If-Match or not."""
    server.honour_if_match = way == "412"
    server.put("o", b"1" * 100000)
    with store(server) as s:
        s.list()
        handle = s.open("o")
        assert s.read(handle, 0, 50000) == b"1" * 50000
        server.put("o", b"2" * 100000)
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 50000, 50000)
        s.list()
        assert s.get("o") == b"2" * 100000
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 0, 10)


def test_overwrite_between_list_and_get(server):
    """A shorter, a longer and an absent object."""
    for size in (10, 100000, 200000, None):
        server.put("o", b"1" * 150000)
        with store(server) as s:
            s.list()
            if size is None:
                del server.objects["o"]
            else:
                server.put("o", b"2" * size)
            handle = s.open("o")
            with pytest.raises(Failed, match="ENOENT" if size is None else "ESTALE"):
                s.read(handle, 60000, 60000)


@pytest.mark.parametrize("conditional", [True, False])
def test_remove(server, conditional):
    """What is there and what was listed; nothing else."""
    server.conditional_delete = conditional
    server.put("run/a", b"1")
    server.put("run/b", b"2")
    with store(server, "/run") as s:
        s.list()
        s.remove("a")
        assert list(s.list()) == ["b"]
        with pytest.raises(Failed, match="ENOENT"):
            s.remove("a")
        server.put("run/b", b"another")
        with pytest.raises(Failed, match="ESTALE"):
            s.remove("b")
        s.list()
        server.s3.fault("DELETE /bucket/run/b", "status", times=9, status=403)
        with pytest.raises(Failed, match="EACCES"):
            s.remove("b")
        server.s3.faults.clear()
        s.remove("b")
        assert not s.list()


def test_cut_range_is_resumed_and_pinned(server):
    """Half a body, then the rest by another request; an overwrite in between shows."""
    server.put("o", bytes(range(256)) * 2000)
    with store(server) as s:
        s.list()
        handle = s.open("o")
        cut = server.s3.fault("GET /bucket/o", "cut")
        assert s.read(handle, 1000, 400000) == (bytes(range(256)) * 2000)[1000:401000]
        assert cut.hits == 1
        calls = []

        def overwrite(request, key):
            calls.append(request.headers.get("Range"))
            if len(calls) == 2:
                server.put("o", b"9" * 512000)
        server.before_get = overwrite
        server.s3.fault("GET /bucket/o", "cut")
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 1000, 400000)
        assert len(calls) == 2


@pytest.mark.parametrize("way", ["400", "301", "301-endpoint"])
def test_region_is_found(server, way):
    """One wrong try, then the right one from the start."""
    server.region, server.wrong_region = "eu-west-3", way
    server.put("o", b"x" * 100)
    with store(server) as s:
        assert list(s.list()) == ["o"]
        assert s.get("o") == b"x" * 100
        s.list()
    assert sum(1 for line in server.s3.seen if line.status in (301, 400)) == 1
    with store(server, "", "--region", "eu-west-3") as s:
        s.list()
    assert sum(1 for line in server.s3.seen if line.status in (301, 400)) == 1


@pytest.mark.parametrize("seconds", [-7200, 86400])
def test_clock_skew_is_repaired_once(server, seconds):
    """The server's clock is taken over after its first complaint."""
    server.clock = seconds
    server.put("o", b"x" * 100)
    with store(server) as s:
        s.list()
        assert s.get("o") == b"x" * 100
    assert [line.status for line in server.s3.seen].count(403) == 1


def test_slow_down(server):
    """Waits and goes on."""
    server.put("o", b"x" * 100)
    server.slow = 3
    with store(server) as s:
        s.list()
        server.slow = 2
        assert s.get("o") == b"x" * 100
    assert [line.status for line in server.s3.seen].count(503) == 5


def test_temporary_redirect_within_the_endpoint(server):
    """307 to another path of the same origin is signed again."""
    server.put("o", b"x" * 100)
    server.moves = 1
    with store(server) as s:
        s.list()
        server.moves = 1
        assert s.get("o") == b"x" * 100
    assert [line.status for line in server.s3.seen].count(307) == 2


def test_no_etags(server):
    """A server that gives none: the time of the last change pins the object."""
    server.etags = False
    server.put("o", b"1" * 1000, 1700000000)
    with store(server) as s:
        s.list()
        handle = s.open("o")
        assert s.read(handle, 0, 500) == b"1" * 500
        server.put("o", b"2" * 1000, 1700000005)
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 500, 500)


def test_requester_pays(server):
    """Only with the option."""
    server.payer = True
    server.put("o", b"x" * 100)
    assert sentence("s3://bucket", "--endpoint", server.endpoint)[0] == "EACCES"
    with store(server, "", "--payer") as s:
        s.list()
        assert s.get("o") == b"x" * 100


# ---- the gateway ----

@pytest.fixture
def gateway():
    """As Hugging Face's: a path in the endpoint, GETs are redirected, no If-Match on them."""
    with StrictS3(gateway=True, path="/namespace") as one:
        yield one


def test_gateway(gateway):
    """Bytes through links; each handle resolves once."""
    gateway.put("dir/o", data_of("o"))
    gateway.put("p", data_of("p"))
    with store(gateway) as s:
        s.list()
        handles = [s.open("dir/o"), s.open("p")]
        for at in range(0, 60000, 10000):
            assert s.read(handles[0], at, 10000) == data_of("o")[at:at + 10000]
            assert s.read(handles[1], at, 10000) == data_of("p")[at:at + 10000]
    # The very first read found out what kind of server it is.
    assert gateway.s3.count("GET /namespace/bucket/dir/o") == 2
    assert gateway.s3.count("GET /namespace/bucket/p") == 1
    assert gateway.s3.count("HEAD /namespace/bucket/") == 2
    assert gateway.cdn.count("GET") == 12


def test_gateway_links_expire(gateway):
    """A new one is fetched; the object must still be the same."""
    gateway.put("o", data_of("o"))
    with store(gateway) as s:
        s.list()
        handle = s.open("o")
        assert s.read(handle, 0, 100) == data_of("o")[:100]
        gateway.expire_links()
        assert s.read(handle, 100, 100) == data_of("o")[100:200]
        gateway.put("o", data_of("other"))
        # The link still leads to what was opened.
        assert s.read(handle, 200, 100) == data_of("o")[200:300]
        gateway.expire_links()
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 300, 100)
        s.list()
        assert s.get("o") == data_of("other")


def test_gateway_overwrite_before_the_first_read(gateway):
    """The link would lead to another version than the one listed."""
    gateway.put("o", b"1" * 1000)
    with store(gateway) as s:
        s.list()
        handle = s.open("o")
        gateway.put("o", b"2" * 1000)
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 0, 100)


def test_gateway_overwrite_while_resolving(gateway):
    """Between the link and the look at the object."""
    gateway.put("o", b"1" * 1000)
    with store(gateway) as s:
        s.list()
        handle = s.open("o")
        gateway.before_get = lambda request, key: gateway.put("o", b"2" * 1000)
        with pytest.raises(Failed, match="ESTALE"):
            s.read(handle, 0, 100)


# ---- who asks ----

def test_sentences(server):
    """Each refusal names the bucket, who asked, and what helps."""
    server.put("o", b"x" * 10)
    at = ("--endpoint", server.endpoint)
    cases = [
        (("s3://bucket", *at), keys("NOBODY"), "EACCES",
         "s3://bucket: the access key from the environment is not known there"),
        (("s3://bucket", *at), keys(secret="WRONGMARKED"), "EACCES",
         "the secret key from the environment does not belong to its access key"),
        (("s3://bucket", *at, "--anonymous"), {}, "EACCES",
         "s3://bucket: access denied: it is not public; leave out --no-sign-request"),
        (("s3://other/x", *at), None, "ENOENT",
         "s3://other/x: there is no bucket 'other' at 127.0.0.1"),
        (("s3://bucket", *at), {}, "EACCES", "there are no credentials: set AWS_ACCESS_KEY_ID"),
        (("s3://bucket", *at), {"AWS_ACCESS_KEY_ID": "AKIDMARKED"}, "EINVAL",
         "AWS_ACCESS_KEY_ID is set, but not AWS_SECRET_ACCESS_KEY"),
        (("s3://bucket", *at, "--profile", "none"), None, "EINVAL",
         "there is no profile 'none'"),
        (("s3://bucket", *at, "--region", "bad.example.com/"), None, "EINVAL",
         "'bad.example.com/' is not the name of a region"),
        (("s3://", *at), None, "EINVAL", "write s3://BUCKET"),
        (("s3://bucket/a/../b", *at), None, "EINVAL", "the prefix has an empty, '.' or '..' part"),
        (("s3://bucket", "--endpoint", "ftp://x"), None, "EINVAL", "the S3 endpoint"),
    ]
    for args, env, name, text in cases:
        got = sentence(*args, env=env)
        assert got[0] == name and text in got[1], (args, got)


def test_anonymous(server):
    """A public bucket, unsigned."""
    server.public = True
    server.put("o", b"x" * 100)
    with store(server, "", "--anonymous", env={}) as s:
        s.list()
        assert s.get("o") == b"x" * 100
    assert not any("Authorization" in line.headers for line in server.s3.seen)


def test_expired_session_token(server):
    """Static ones cannot be renewed, and the sentence says so."""
    server.keys["ASIA"] = Key("SMARKED", "TOKENMARKED", 0)
    got = sentence("s3://bucket", "--endpoint", server.endpoint,
                   env=keys("ASIA", "SMARKED", "TOKENMARKED"))
    assert got == ("EKEYEXPIRED", "s3://bucket: the credentials from the environment have "
                                  "expired, and there are no newer ones")


def test_answers_that_are_not_s3(server):
    """A web page, broken XML, a document type, a listing that goes in circles."""
    bodies = {
        b"<html><body>hello</body></html>": "what answered is not S3",
        b"<ListBucketResult><Contents>": "the answer is not XML",
        b'<!DOCTYPE x [<!ENTITY a "b">]><ListBucketResult/>': "document type",
        b"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>":
            "an entry that makes no sense",
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same"
        b"</NextContinuationToken></ListBucketResult>": "does not come to an end",
        b"": "the answer is empty",
    }
    from lib.fake_server import Answer  # pylint: disable=import-outside-toplevel
    for body, text in bodies.items():
        server.s3.handle = lambda request, body=body: Answer(200, body)
        got = sentence("s3://bucket", "--endpoint", server.endpoint)
        assert text in got[1], got


# ---- writing ----

@pytest.mark.parametrize("honoured", [True, False])
def test_put(server, scratch, honoured):
    """Small, empty, and under conditions, also where the server takes no notice of them."""
    server.conditional_put = honoured
    small, other = scratch / "small", scratch / "other"
    small.write_bytes(b"s" * 1000)
    other.write_bytes(b"o" * 10)
    empty = scratch / "empty"
    empty.touch()
    with store(server, "/run") as s:
        s.put("deltas/ü 1+", small)
        assert server.objects["run/deltas/ü 1+"].data == b"s" * 1000
        s.put("nothing", empty)
        assert server.objects["run/nothing"].data == b""
        with pytest.raises(Failed, match="EEXIST .*exists already"):
            s.put("nothing", small, "put-absent")
        s.put("new", other, "put-absent")
        s.list()
        s.put("new", small, "put-replace")
        assert server.objects["run/new"].data == b"s" * 1000
        with pytest.raises(Failed, match="ESTALE .*has been replaced"):
            s.put("new", other, "put-replace")
        del server.objects["run/new"]
        with pytest.raises(Failed, match="ESTALE .*has been deleted"):
            s.put("new", other, "put-replace")
        with pytest.raises(Failed, match="EINVAL"):
            s.put("../up", other)


def test_multipart(server, scratch):
    """Parallel parts of 8 MiB; 200 with an error is repeated; a part that fails is repeated."""
    big = scratch / "big"
    content = data_of("big", 30 << 20)
    big.write_bytes(content)
    with store(server) as s:
        server.complete_errors = 2
        server.s3.fault("partNumber=2", "status", status=503)
        s.put("big", big, "put-absent")
        assert server.objects["big"].data == content
        assert sorted(server.upload_parts) == sorted([8 << 20] * 3 + [len(content) - (24 << 20)])
        assert server.most_at_once > 1
        with pytest.raises(Failed, match="EEXIST"):
            s.put("big", big, "put-absent")
        assert not server.uploads, "the refused upload was not aborted"
        server.s3.fault("partNumber=3", "status", times=99, status=400)
        with pytest.raises(Failed, match="EIO"):
            s.put("again", big)
        assert not server.uploads and "again" not in server.objects


def test_lost_answers_to_conditional_writes(server, scratch):
    """The write happened, its answer was lost, and the repetition meets its own object."""
    small, big = scratch / "small", scratch / "big"
    small.write_bytes(b"s" * 1000)
    big.write_bytes(data_of("big", 17 << 20))
    handle = server.s3.handle
    lost = []

    def lose(request):
        answer = handle(request)
        last = request.method == "PUT" and "partNumber" not in request.query or \
            request.method == "POST" and "uploadId" in request.query
        if last and answer.status == 200 and len(lost) < limit:
            lost.append(request.target)
            return answer._replace(status=500)
        return answer

    server.s3.handle = lose
    with store(server) as s:
        limit = 1
        s.put("small", small, "put-absent")
        limit = 2
        s.put("big", big, "put-absent")
    assert len(lost) == 2


# ---- trouble ----

def test_stalled_read_goes_on_when_the_connection_drops(server):
    """Half a body and then nothing; the rest comes over another connection."""
    server.put("o", data_of("o"))
    with store(server) as s:
        s.list()
        handle = s.open("o")
        server.s3.fault("GET /bucket/o", "stall", times=99)
        s.send("read", handle, 0, 60000)
        mounted.wait_until(lambda: server.s3.count("GET /bucket/o"), "no read came")
        server.s3.faults.clear()
        threading.Timer(0.2, server.s3.drop_connections).start()
        assert bytes.fromhex(s.result()) == data_of("o")[:60000]


def test_help_names_the_options():
    """The binary under test knows them."""
    text = subprocess.run([mounted.BINARY, "mount", "--help"], capture_output=True, text=True,
                          check=True).stdout
    for word in ("--endpoint-url", "--region", "--profile", "--no-sign-request",
                 "--request-payer"):
        assert word in text
    assert driven.BINARY.exists()
