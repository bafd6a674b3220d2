"""The three kinds of sources over the network, with one set of handles for tests that hold all of
them to the same promises.

A place has a URL and options for a mount, takes objects, and says by which requests its listings
and its bytes are asked for, so that a fault can be put there.
"""

import hashlib
import json
import os
import re
import threading
import time
from urllib.parse import quote

from lib import driven, fake_server
from lib.fake_hub import FakeHub
from lib.strict_s3 import StrictS3

TOKEN = "hf_MARKED" + "x7Qz" * 6


class Place:
    """What is common; `api` lists and names, `data` gives bytes (they may be one server)."""

    api = data = None
    args, env = (), {}
    listing = ""        # pattern of requests for listings
    later_page = None   # of those for a later page of one; None: there are no pages
    content = "GET /"   # of those for bytes

    def __init__(self):
        self.closers, self.known = [], {}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for close in self.closers:
            close(kind)

    def upload(self, root):
        """Puts what is new or changed in a local directory there, with its times."""
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            key, data = str(path.relative_to(root)), path.read_bytes()
            if self.known.get(key) != data:
                self.put(key, data, path.stat().st_mtime)

    def put(self, key, data, mtime=None):
        """Writes an object."""
        self.known[key] = data
        self.write(key, data, mtime)

    def write(self, key, data, mtime):
        """How it is written there."""
        raise NotImplementedError

    def delete(self, key):
        """Deletes an object."""
        raise NotImplementedError

    def bytes_of(self, key):
        """Pattern of the requests for an object's bytes."""
        raise NotImplementedError

    def key_of(self, target):
        """The object whose bytes such a request asks for, or None."""
        line = f"GET {target}"
        return next((key for key in self.known if re.search(self.bytes_of(key) + r"(\?|$)", line)),
                    None)

    def servers(self):
        """Each once."""
        return list({id(s): s for s in (self.api, self.data)}.values())

    def gone(self):
        """No server any more."""
        for server in self.servers():
            server.stop()

    def back(self):
        """At the same addresses."""
        for server in self.servers():
            server.start()

    def clear_faults(self):
        """All is well from now on."""
        for server in self.servers():
            with server.lock:
                server.faults.clear()

    def asked(self, key):
        """Pattern of requests by name for an object's bytes."""
        return f"GET .*{re.escape(quote(key))}"

    def meet(self, pattern, act):
        """Calls act() when the next such request has come to `api` and before it is answered; an
        event that tells."""
        inner, met, lock = self.api.handle, threading.Event(), threading.Lock()

        def handle(request):
            if re.search(pattern, f"{request.method} {request.target}"):
                with lock:
                    if not met.is_set():
                        act()
                        met.set()
            return inner(request)

        self.api.handle = handle
        return met

    def ranges(self, server, since=0):
        """[(target, first, last)] of the ranges of bytes that were given."""
        out = []
        with server.lock:
            seen = server.seen[since:]
        for line in seen:
            if line.method != "GET" or line.status not in (200, 206):
                continue
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", line.headers.get("Range", ""))
            out.append((line.target, *((int(match[1]), int(match[2])) if match else (0, None))))
        return out


class HubPlace(Place):
    """A private bucket on the Hub, its bytes on the content network."""

    # The feed names what has changed, and that is asked for first.
    listing, later_page = "/tree|/paths-info", "cursor=|/paths-info"
    content = "GET /xet"

    def __init__(self):
        super().__init__()
        self.hub = FakeHub(tokens=(TOKEN,))
        self.hub.bucket("org/run", private=True)
        self.api, self.data = self.hub.hub, self.hub.cdn
        self.url = "hf://buckets/org/run/run"
        self.closers.append(lambda kind: self.hub.__exit__(kind))

    @property
    def env(self):
        """Where it is, and who asks."""
        return {"HF_ENDPOINT": self.hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": "/nonexistent"}

    def write(self, key, data, mtime):
        self.hub.put("org/run", {f"run/{key}": data}, mtime)

    def delete(self, key):
        self.known.pop(key, None)
        self.hub.delete("org/run", [f"run/{key}"])

    def expire_links(self):
        """What was given out is refused."""
        self.hub.expire_links()

    def bytes_of(self, key):
        return f"GET /xet.*{self.hub.buckets['org/run'].files[f'run/{key}'].xet}"

    def pages_of(self, count):
        """Listings in pages of so many."""
        self.hub.page = count


class S3Place(Place):
    """A private bucket; `gateway`: bytes through links to a content network."""

    listing, later_page = "list-type=2", "continuation-token"

    def __init__(self, gateway=False):
        super().__init__()
        self.s3 = StrictS3(gateway=gateway, path="/namespace" if gateway else "")
        self.api, self.data = self.s3.s3, self.s3.cdn if gateway else self.s3.s3
        self.content = "GET /[0-9a-f]{32}" if gateway else r"GET /bucket/run/"
        self.url = "s3://bucket/run"
        self.closers.append(lambda kind: self.s3.__exit__(kind))

    @property
    def args(self):
        """Where it is."""
        return ("--endpoint-url", self.s3.endpoint)

    @property
    def env(self):
        """Who asks."""
        return {**driven.keys(), "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}

    def write(self, key, data, mtime):
        self.s3.put(f"run/{key}", data, mtime)

    def delete(self, key):
        self.known.pop(key, None)
        with self.s3.lock:
            del self.s3.objects[f"run/{key}"]

    def expire_links(self):
        """What was given out is refused."""
        self.s3.expire_links()

    def bytes_of(self, key):
        if self.data is not self.api:
            return f"GET /{self.s3.objects[f'run/{key}'].etag}"
        return f"GET /bucket/run/{re.escape(quote(key))}"

    def pages_of(self, count):
        """Listings in pages of so many."""
        self.s3.page = count


class WebPlace(Place):
    """A static server with an index.json."""

    listing, content = r"index\.json", r"GET /run/(?!index\.json)"

    def __init__(self):
        super().__init__()
        self.objects, self.lock = {}, threading.Lock()
        self.api = self.data = fake_server.FakeServer(self.serve, "web")
        self.closers.append(lambda kind: self.api.stop())

    @property
    def url(self):
        """Its directory."""
        return self.api.origin + "/run"

    def serve(self, request):
        """An object, or the index of all of them."""
        with self.lock:
            objects = dict(self.objects)
        key = request.path.removeprefix("/run/")
        if key == "index.json":
            rows = [{"key": k, "size": len(d), "mtime": t} for k, (d, t) in objects.items()]
            data = json.dumps({"objects": rows}).encode()
        elif key in objects:
            data = objects[key][0]
        else:
            return fake_server.Answer(404)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        if request.headers.get("If-None-Match") == etag:
            return fake_server.Answer(304, b"", (("ETag", etag),))
        if request.headers.get("If-Match", etag) != etag:
            return fake_server.Answer(412)
        return fake_server.ranged(request, data, (("ETag", etag),))

    def write(self, key, data, mtime):
        with self.lock:
            self.objects[key] = (data, mtime or time.time())

    def delete(self, key):
        self.known.pop(key, None)
        with self.lock:
            del self.objects[key]

    def bytes_of(self, key):
        return f"GET /run/{re.escape(quote(key))}"


KINDS = {"hub": HubPlace, "s3": S3Place, "gateway": lambda: S3Place(gateway=True),
         "http": WebPlace}


def clean_environment(monkeypatch):
    """Nothing of this machine's Hub, AWS and proxy settings."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING_FACE", "AWS_", "BOTO_")) or "proxy" in name.lower():
            monkeypatch.delenv(name)


def enter(place, monkeypatch):
    """The environment in which a program finds the place."""
    clean_environment(monkeypatch)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    return place
