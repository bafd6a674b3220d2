"""No secret in anything that is written.

Tokens, keys and signatures have a mark in them.  Everything that the program says or leaves behind
while it works, and while it fails, is searched for it: output, log at its most talkative, status in
all forms, replies of control, attributes, mount table, every file of the cache and of an export.
(Every test is searched, see lib/leaks.py; here are those that try hard to make it tell.)
"""

import contextlib
import os
import subprocess

import pytest

from lib import (aws_fakes, checks, fake_server, leaks, models, mounted, oracle, places, strict_s3,
                 trl)
from lib.mounted import BINARY, Mount, is_mounted, wait_until

HF = "hf_MARKED" + "x7Qz" * 6
WRONG = "hf_MARKED" + "k3Wp" * 6
LIMIT = mounted.WAIT


class Told:
    """Has everything searched that can be got out of the program."""

    def __init__(self):
        self.search = leaks.SEARCH
        self.before = self.search.looked_at

    def files(self, top):
        """All files below a directory, their names and what links say."""
        if top.exists():
            self.search.tree(top)

    def run(self, *words, ok=True):
        """A verb at its most talkative; what it says is told."""
        words = [str(word) for word in words]
        if words[0] in ("log", "export", "verify"):
            words[1:1] = ["--log-level", "debug"]
        done = subprocess.run([BINARY, *words], capture_output=True, timeout=LIMIT, check=False)
        if ok is not None:
            assert (done.returncode == 0) == ok, (words, done.stdout, done.stderr)
        return done.stderr.decode()

    def mount(self, m, reachable=True):
        """All that a mount shows of itself, and what verbs say that ask its source again."""
        self.search.mount(m.dot, m.at)
        for top in (m.at, m.dot / "bucket"):
            for folder, _, names in os.walk(top):
                for path in [folder] + [os.path.join(folder, name) for name in names]:
                    self.search.attributes(path)
        for words in (["status", m.at], ["status", "--json", m.at],
                      ["wait", m.at, "--timeout", LIMIT]):
            self.run(*words)
        if reachable:
            for words in (["log", m.at], ["log", "--json", m.at], ["verify", m.at]):
                self.run(*words)
        with open("/proc/self/mountinfo", "rb") as f:
            self.search.text("the mount table", f.read())
        for command in ("refresh", "pin 1", "unpin", "hold 1", "release", "prefetch", "nonsense"):
            with contextlib.suppress(OSError):
                self.search.text(command, m.control(command))


@pytest.fixture
def told():
    """There was something to look at."""
    one = Told()
    yield one
    assert one.search.looked_at > one.before + 5


def fill(place, bucket):
    """A run of three versions, and a file that nobody reads at first."""
    models.write_companions(bucket)
    run = models.publish(trl.Run(bucket, "v3", interval=4), models.states(7, 3, models.SMALL))
    place.upload(bucket)
    place.put("unread.bin", os.urandom(400000))
    return run


def look_everywhere(told, place, bucket, scratch, *args, gone=False):
    """Every verb, on a place that works, then has every kind of trouble and, perhaps, is gone."""
    work, export = scratch / "work", scratch / "export"
    want = oracle.Oracle(bucket, trust_times=False).files(3)
    options = [*place.args, "--cache-dir", scratch / "tools", *args]
    for verb in (["log"], ["log", "--json"], ["verify"], ["verify", "--json"],
                 ["export", "-o", export]):
        told.run(*verb, *options, place.url)
    options_of_mount = ["--times", "ignore", "--log-level", "debug", *place.args, *args]
    with Mount(place.url, work=work, args=options_of_mount) as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want)
        told.mount(m)
        told.run("inspect", m.at / "model.safetensors")
        told.run("inspect", "--json", m.at / "model.safetensors")
    # What fails from here on does so soon.
    with Mount(place.url, work=work, args=[*options_of_mount, "--timeout", 3]) as m:
        m.wait_version(3)
        for status in (401, 403, 404, 500):
            for server in place.servers():
                server.fault("^(GET|HEAD)", "status", times=3, status=status)
            with contextlib.suppress(OSError):
                (m.dot / "bucket" / "unread.bin").read_bytes()
            place.clear_faults()
        told.run("cache", "show", "--cache-dir", work / "cache", ok=None)
        if gone:
            place.gone()
            wait_until(lambda: m.status()["store_error"], m.status, LIMIT)
            with contextlib.suppress(OSError):
                (m.dot / "bucket" / "unread.bin").read_bytes()
            told.mount(m, reachable=False)
            told.run("log", *options, place.url, ok=False)
            place.back()
    for top in (work, export, scratch / "tools", scratch / "none"):
        told.files(top)


# ---- the Hub -------------------------------------------------------------------------------------


def hub_secret(monkeypatch, scratch, how):
    """Puts the token where it can be found; options for it."""
    monkeypatch.delenv("HF_TOKEN")
    (scratch / "hf").mkdir()
    if how == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", HF)
        return []
    path = leaks.put(scratch / "hf" / "token", HF + "\n")
    if how == "HF_TOKEN_PATH":
        monkeypatch.setenv("HF_TOKEN_PATH", str(path))
    elif how == "HF_HOME":
        monkeypatch.setenv("HF_HOME", str(scratch / "hf"))
    else:
        return ["--token-file", path]
    return []


@pytest.mark.parametrize("how", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "--token-file"])
def test_hub(told, bucket, scratch, monkeypatch, how):
    """A token from each of its places, and a wrong one."""
    with places.HubPlace() as place:
        places.enter(place, monkeypatch)
        args = hub_secret(monkeypatch, scratch, how)
        place.hub.tokens = {HF}
        fill(place, bucket)
        look_everywhere(told, place, bucket, scratch, *args, gone=how == "HF_TOKEN")
        assert any(HF in line.headers.get("Authorization", "") for line in place.api.seen)
        place.hub.tokens = {WRONG}
        log = ("log", "--cache-dir", scratch / "none", *args, place.url)
        assert "does not accept the token" in told.run(*log, ok=False)
        # As a proxy may do it: what was sent, sent back.
        place.api.handle = lambda request: fake_server.Answer(
            418, str(request.headers).encode(), (("X-Error-Message", str(
                request.headers.get("Authorization"))), ("X-Error-Code", "E" + HF)))
        told.run(*log, ok=False)


# ---- S3 ------------------------------------------------------------------------------------------

TOKEN = "TOKENMARKED/+=" * 9


def s3_secret(monkeypatch, scratch, how):
    """Puts the keys where they can be found; options for them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = {"aws_access_key_id": "AKIDMARKED", "aws_secret_access_key": "SECRETMARKED",
            "aws_session_token": TOKEN}
    if how == "environment":
        for name, value in keys.items():
            monkeypatch.setenv(name.upper(), value)
    elif how == "profile":
        path = leaks.put(scratch / "credentials",
                         "[p]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items()))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
        return ["--profile", "p"]
    elif how == "process":
        script = leaks.put(
            scratch / "give", '#!/bin/sh\necho \'{"Version": 1, "AccessKeyId"'
            f': "AKIDMARKED", "SecretAccessKey": "SECRETMARKED", "SessionToken": '
            f'"{TOKEN}"}}\'\n', 0o755)
        config = leaks.put(scratch / "config", "[profile p]\n"
                           f"credential_process = {script} --secret ARGMARKED\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        return ["--profile", "p"]
    return []


@pytest.mark.parametrize("gateway", [False, True], ids=["bucket", "gateway"])
@pytest.mark.parametrize("how", ["environment", "profile", "process"])
def test_s3(told, bucket, scratch, monkeypatch, how, gateway):
    """Keys with a session token from each of their places; then they are refused in every way."""
    with places.S3Place(gateway=gateway) as place:
        places.enter(place, monkeypatch)
        args = s3_secret(monkeypatch, scratch, how)
        place.s3.keys = {"AKIDMARKED": strict_s3.Key("SECRETMARKED", TOKEN)}
        fill(place, bucket)
        look_everywhere(told, place, bucket, scratch, *args,
                        gone=how == "environment" and not gateway)
        log = ("log", "--cache-dir", scratch / "none", *place.args, *args, place.url)
        for keys in ({}, {"AKIDMARKED": strict_s3.Key("OTHERMARKED", TOKEN)},
                     {"AKIDMARKED": strict_s3.Key("SECRETMARKED", TOKEN, expires=0)}):
            place.s3.keys = keys
            told.run(*log, ok=False)

        def echo(request):
            seen = "".join(f"<{k}>{v}</{k}>" for k, v in request.headers.items())
            return fake_server.Answer(
                403, f"<Error><Code>Odd MARKED</Code><Message>{TOKEN}</Message>{seen}"
                f"<StringToSign>AWS4-HMAC-SHA256 {TOKEN}</StringToSign></Error>".encode())

        place.api.handle = echo
        told.run(*log, ok=False)
        place.api.handle = lambda request: fake_server.Answer(
            302, b"", (("Location", "http://user:MARKED@127.0.0.1:1/?Signature=MARKED"),))
        told.run(*log, ok=False)


def test_container_credentials(told, bucket, scratch, monkeypatch):
    """Keys from a service that itself wants a secret, and then breaks."""
    with places.S3Place() as place, aws_fakes.AwsFakes(place.s3) as fakes:
        places.enter(place, monkeypatch)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", fakes.origin + "/container")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", fakes.container_token)
        fill(place, bucket)
        look_everywhere(told, place, bucket, scratch)
        log = ("log", "--cache-dir", scratch / "none", *place.args, place.url)
        fakes.broken = True
        told.run(*log, ok=False)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI",
                           f"http://user:MARKED@127.0.0.1:{fakes.server.port}/container")
        told.run(*log, ok=False)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", fakes.origin + "/container")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "two\nlines MARKED")
        told.run(*log, ok=False)


# ---- secrets in URLs -----------------------------------------------------------------------------


def test_urls(told, bucket, scratch, monkeypatch):
    """User names, passwords, queries and fragments of URLs, wherever one can be given."""
    with places.WebPlace() as place:
        places.enter(place, monkeypatch)
        fill(place, bucket)
        host, point = f"127.0.0.1:{place.api.port}", scratch / "mnt"
        point.mkdir()
        urls = [f"http://user:passMARKED@{host}/run", f"http://tokenMARKED@{host}/run",
                f"http://{host}/run?sig=MARKED", f"http://{host}/run#MARKED",
                f"HTTP://user:pass%20MARKED@{host}/run", f"http://user:MARKED@{host}:99999/run",
                f"ftp://user:MARKED@{host}/run", f"unknown://user:MARKED@{host}/run?x=MARKED",
                "hf://user:MARKED@org/model", "s3://AKID:MARKED@bucket/run"]
        for url in urls:
            for words in (["log"], ["log", "--json"], ["verify"], ["export", "-o", scratch / "out"],
                          ["mount"], ["mount", "--base"]):
                words = [*words, *([bucket] if words[-1] == "--base" else []), "--cache-dir",
                         scratch / "c", url, *([point] if words[0] == "mount" else [])]
                if "--base" in words:
                    at = words.index("--base") + 1
                    words[at], words[words.index(url)] = url, bucket
                told.run(*words, ok=None)
                if is_mounted(point):
                    mounted.unmount(point)
        source = {"HF_ENDPOINT": "hf://buckets/org/run", "AWS_ENDPOINT_URL": "s3://bucket/run"}
        for name, url in source.items():
            for value in (f"http://user:MARKED@{host}", f"http://{host}/?key=MARKED",
                          f"user:MARKED@{host}", f"ftp://:MARKED@{host}"):
                monkeypatch.setenv(name, value)
                told.run("log", "--no-sign-request", "--cache-dir", scratch / "c", url, ok=False)
            monkeypatch.delenv(name)
        told.run("log", "--no-sign-request", "--endpoint-url", f"http://user:MARKED@{host}",
                 "--cache-dir", scratch / "c", "s3://bucket/run", ok=False)
        told.files(scratch / "c")


@pytest.mark.parametrize("how", ["works", "refuses", "gone"])
def test_proxy(told, bucket, scratch, monkeypatch, how):
    """A proxy that wants a password."""
    with places.WebPlace() as place:
        places.enter(place, monkeypatch)
        fill(place, bucket)
        seen = []

        def forward(request):
            seen.append(request.headers.get("Proxy-Authorization"))
            if how == "refuses":
                return fake_server.Answer(407, str(request.headers).encode(),
                                          (("Proxy-Authenticate", "Basic realm=MARKED"),))
            inner = fake_server.Request(request.method, request.target.split("example.org", 1)[1],
                                        request.headers, request.body)
            return place.serve(inner)

        proxy = fake_server.FakeServer(forward, "proxy")
        try:
            monkeypatch.setenv("http_proxy", f"http://user:passMARKED@127.0.0.1:{proxy.port}")
            if how == "gone":
                proxy.stop()
            soon = ["--timeout", "2"] if how != "works" else []
            log = ("log", *soon, "--cache-dir", scratch / "c", "http://example.org/run")
            told.run(*log, ok=how == "works")
            for verb in (["verify"], ["export", "-o", scratch / "out"]) if how != "gone" else ():
                told.run(*verb, *log[1:], ok=how == "works")
            assert how == "gone" or seen[0].startswith("Basic ")
            if how == "works":
                with Mount("http://example.org/run", args=["--times", "ignore", "--log-level",
                                                           "debug"], work=scratch / "work") as m:
                    m.wait_version(3)
                    told.mount(m)
                told.files(scratch / "work")
        finally:
            if how != "gone":
                proxy.stop()
        for top in ("c", "out"):
            told.files(scratch / top)
