"""A Hugging Face Hub with its CDN, on two loopback ports: buckets and repositories.

Made after the real one's behaviour, traps included: recursive listings by default that match raw
prefixes, pages linked by absolute URLs, 302 answers whose Content-Length is their own, signed URLs
named after the content that outlive an overwrite and then expire, sizes in lfs.size, relative
redirects for small files, a change feed, quotas on every answer.  A credential, or any header but
the harmless ones, that arrives at the CDN is kept in `violations`.
"""

import base64
import hashlib
import hmac
import json
import queue
import threading
import time
from datetime import datetime, timezone
from email.utils import formatdate
from urllib.parse import quote, unquote

from lib import leaks
from lib.fake_server import Answer, FakeServer, ranged

HARMLESS = {"accept", "accept-encoding", "accept-language", "range", "user-agent", "host",
            "connection", "content-type"}
# The token that is always good, and one whose owner sees nothing.
VALID, STRANGER = "hf_MARKEDvalid", "hf_MARKEDstranger"
WORDS = {"models": "", "datasets": "datasets/", "spaces": "spaces/"}
PAGE = 1000


def iso(t):
    """2026-08-14T09:10:11.123Z"""
    return datetime.fromtimestamp(t, timezone.utc).isoformat(timespec="milliseconds").replace(
        "+00:00", "Z")


def xet_hash(data):
    """A content hash of the right form (the real one is a tree of BLAKE3)."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def git_oid(data):
    """The id of a git blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    """One version of one file."""

    def __init__(self, data, mtime, uploaded):
        self.data, self.mtime, self.uploaded = data, mtime, uploaded
        self.xet, self.sha256, self.oid = (xet_hash(data), hashlib.sha256(data).hexdigest(),
                                           git_oid(data))
        self.lfs = len(data) > 100


class Bucket:
    """A bucket's present files and the history of its changes."""

    def __init__(self, private):
        self.private = private
        self.files, self.changes, self.streams = {}, [], []
        self.updated = time.time()
        self.oldest = 0         # cursors before this one are too old

    def change(self, entries):
        """Takes note of a batch: [{path, op, ...}]."""
        self.updated = max(time.time(), self.updated + 0.001)
        self.changes.append((self.updated, entries))
        for stream in list(self.streams):
            stream.put(("changes", {"cursor": f"c{len(self.changes)}", "changes": entries}))


class Repo:
    """A repository: commits by sha, and names for them."""

    def __init__(self, private=False, gated=False):
        self.private, self.gated = private, gated
        self.commits, self.names, self.times = {}, {}, {}

    def commit(self, files, name="main"):
        """Adds a commit with these files (and no others): {path: bytes}."""
        now = time.time()
        tree = {p: File(d, now, now) for p, d in files.items()}
        text = json.dumps([[p, f.oid] for p, f in sorted(tree.items())] + [len(self.commits)])
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha], self.names[name], self.times[sha] = tree, sha, now
        return sha

    def sha(self, rev):
        """The commit that a revision names, or None."""
        return rev if rev in self.commits else self.names.get(rev)


class FakeHub:
    """hub, cdn: the two listeners.  `feed`: "live", "none" (404), "busy" (503), "refuse" (400)."""

    def __init__(self, tokens=(VALID,)):
        self.lock = threading.RLock()
        self.tokens = set(tokens)
        self.buckets, self.repos, self.renamed, self.blobs = {}, {}, {}, {}
        self.secret = hashlib.sha256(b"the cdn's key").digest()
        self.lifetime, self.epoch = 3600, 0
        self.page, self.feed, self.ping = PAGE, "live", 5
        self.quota = {"api": [1000, 1000], "resolvers": [5000, 5000]}
        self.window_ends = time.time() + 300
        self.harmless, self.violations = set(HARMLESS), []
        self.hub = FakeServer(self.serve_hub, "hub")
        self.cdn = FakeServer(self.serve_cdn, "cdn")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        assert not self.violations, self.violations

    def close(self):
        """Ends both listeners and all streams."""
        self.cut_streams()
        self.hub.stop()
        self.cdn.stop()

    @property
    def endpoint(self):
        """HF_ENDPOINT"""
        return self.hub.origin

    # ---- what the tests do ----------------------------------------------------------------

    def bucket(self, name, private=False):
        """Makes a bucket."""
        with self.lock:
            return self.buckets.setdefault(name, Bucket(private))

    def put(self, name, files, mtime=None):
        """Uploads {path: bytes} as one batch."""
        with self.lock:
            bucket, now, entries = self.buckets[name], time.time(), []
            for path, data in files.items():
                op = "update" if path in bucket.files else "add"
                bucket.files[path] = one = File(data, mtime or now, now)
                self.blobs[one.xet] = data
                entries.append({"path": path, "op": op, "size": len(data), "xetHash": one.xet,
                                "uploadedAt": iso(now)})
            bucket.change(entries)

    def put_tree(self, name, root, prefix=""):
        """Uploads a directory, with its files' times."""
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            self.put(name, {prefix + str(path.relative_to(root)): path.read_bytes()},
                     path.stat().st_mtime)

    def delete(self, name, paths):
        """Deletes files as one batch."""
        with self.lock:
            for path in paths:
                del self.buckets[name].files[path]
            self.buckets[name].change([{"path": p, "op": "delete"} for p in paths])

    def repo(self, name, kind="models", **kwargs):
        """Makes a repository."""
        with self.lock:
            return self.repos.setdefault((kind, name), Repo(**kwargs))

    def expire_links(self):
        """Every signed URL given out so far is refused from now on."""
        self.epoch += 1

    def cut_streams(self):
        """Ends the feeds without a word."""
        self.say(None, None)

    def say(self, event, data):
        """Sends an event to all feeds; "reset" and "reconnect" end them."""
        with self.lock:
            for bucket in self.buckets.values():
                for stream in list(bucket.streams):
                    stream.put((event, data))

    def forget_changes(self):
        """Cursors and times of before are too old to resume from."""
        with self.lock:
            for bucket in self.buckets.values():
                bucket.oldest = len(bucket.changes)

    # ---- the hub --------------------------------------------------------------------------

    def serve_hub(self, request):
        """Quota, token, then the route."""
        kind = "resolvers" if "/resolve/" in request.raw_path else "api"
        with self.lock:
            left = self.window_ends - time.time()
            if left <= 0:
                self.window_ends, left = time.time() + 300, 300
                for one in self.quota.values():
                    one[0] = one[1]
            quota = self.quota[kind]
            refused = quota[0] <= 0
            quota[0] = max(quota[0] - 1, 0)
        limits = (("RateLimit", f'"{kind}";r={quota[0]};t={int(left) + 1}'),
                  ("RateLimit-Policy", f'"fixed window";"{kind}";q={quota[1]};w=300'),
                  ("X-Request-Id", "Root=1-fake"))
        if refused:
            answer = self.error(429, None, "rate limited")
        else:
            answer = self.route(request)
        return answer._replace(headers=(*answer.headers, *limits))

    @staticmethod
    def error(status, code, text):
        """An error as the Hub words it."""
        headers = [("Content-Type", "application/json")]
        if code:
            headers += [("X-Error-Code", code), ("X-Error-Message", text)]
        return Answer(status, json.dumps({"error": text}).encode(), tuple(headers))

    @staticmethod
    def json(value, headers=()):
        """A JSON answer."""
        return Answer(200, json.dumps(value).encode(),
                      (("Content-Type", "application/json; charset=utf-8"), *headers))

    def token_of(self, request):
        """(token, is it good)"""
        words = request.headers.get("Authorization", "").split()
        if len(words) != 2 or words[0] != "Bearer":
            return None, not words
        if leaks.unmarked(words[1]):
            self.violations.append(f"a token that is not marked: {words[1]}")
        return words[1], words[1] in self.tokens

    def route(self, request):
        """The table of routes."""
        token, good = self.token_of(request)
        if not good:
            return self.error(401, None, "Invalid credentials in Authorization header")
        parts = request.raw_path.strip("/").split("/")
        if parts[:2] == ["api", "whoami-v2"]:
            return self.json({"name": "me", "orgs": []}) if token else self.error(401, None, "who?")
        if parts[:2] == ["api", "buckets"] and len(parts) >= 4:
            return self.bucket_api(request, "/".join(parts[2:4]), parts[4:], token)
        if parts[0] == "buckets" and len(parts) > 4 and parts[3] == "resolve":
            return self.bucket_resolve(request, "/".join(parts[1:3]),
                                       unquote("/".join(parts[4:])), token)
        if parts[:2] == ["api", "resolve-cache"]:
            return self.resolve_cache(request, parts[2], "/".join(parts[3:5]), parts[5],
                                      unquote("/".join(parts[6:])), token)
        if parts[0] == "api" and len(parts) >= 4 and parts[1] in WORDS:
            return self.repo_api(request, parts[1], "/".join(parts[2:4]), parts[4:], token)
        kind = parts[0] if parts[0] in ("datasets", "spaces") else "models"
        if kind != "models":
            parts = parts[1:]
        if len(parts) > 4 and parts[2] == "resolve":
            return self.repo_resolve(request, kind, "/".join(parts[:2]), unquote(parts[3]),
                                     unquote("/".join(parts[4:])), token)
        return self.error(404, None, "no route")

    def find(self, places, key, token):
        """(place, None) or (None, the refusal)."""
        place = places.get(key)
        if place is None or place.private:
            if token is None:
                return None, self.error(401, "RepoNotFound", "Invalid username or password.")
            if place is None or token == STRANGER:
                return None, self.error(404, "RepoNotFound", "Repository not found")
        if getattr(place, "gated", False) and token != VALID:
            return None, self.error(403 if token else 401, "GatedRepo", "Access is restricted")
        return place, None

    # ---- buckets --------------------------------------------------------------------------

    def bucket_api(self, request, name, rest, token):
        """/api/buckets/{name}/..."""
        bucket, refusal = self.find(self.buckets, name, token)
        if refusal:
            return refusal
        if not rest:
            with self.lock:
                return self.json({
                    "id": name, "private": bucket.private, "createdAt": iso(0),
                    "updatedAt": iso(bucket.updated), "totalFiles": len(bucket.files),
                    "size": sum(len(f.data) for f in bucket.files.values())})
        if rest[0] == "tree":
            return self.bucket_tree(request, name, bucket, unquote("/".join(rest[1:])))
        if rest[0] == "paths-info" and request.method == "POST":
            paths = json.loads(request.body)["paths"]
            if len(paths) > 1000:
                return self.error(400, None, "too many paths")
            with self.lock:
                return self.json([self.entry(p, bucket.files[p]) for p in paths
                                  if p in bucket.files])
        if rest[0] == "batch" and request.method == "POST":
            return self.bucket_batch(request, bucket)
        if rest[0] == "events":
            return self.events(request, bucket)
        if rest[0] in ("xet-read-token", "xet-write-token"):
            return self.xet_token()
        return self.error(404, None, "no route")

    def xet_token(self):
        """Credentials for a content store that this fake does not have."""
        exp = int(time.time()) + 3600
        return self.json({"casUrl": self.cdn.origin + "/cas", "exp": exp, "accessToken": "xet"},
                         (("X-Xet-Cas-Url", self.cdn.origin + "/cas"),
                          ("X-Xet-Access-Token", "xet"), ("X-Xet-Token-Expiration", str(exp))))

    @staticmethod
    def entry(path, file):
        """A bucket's file in a listing."""
        return {"type": "file", "path": path, "size": len(file.data), "xetHash": file.xet,
                "mtime": iso(file.mtime), "uploadedAt": iso(file.uploaded)}

    def pages(self, request, entries):
        """A page of a listing, with a link to the next."""
        at = int(base64.urlsafe_b64decode(request.query.get("cursor", "MA==")))
        limit = min(int(request.query.get("limit", self.page)), 10000, self.page)
        headers = ()
        if at + limit < len(entries):
            cursor = base64.urlsafe_b64encode(str(at + limit).encode()).decode()
            query = "&".join(f"{k}={quote(v, safe='')}" for k, v in
                             {**request.query, "cursor": cursor}.items())
            headers = (("Link", f'<{self.hub.origin}{request.raw_path}?{query}>; rel="next"'),)
        return self.json(entries[at:at + limit], headers)

    def bucket_tree(self, request, name, bucket, prefix):
        """Recursive unless told otherwise; the prefix is a string, not a directory."""
        with self.lock:
            files = {p: f for p, f in bucket.files.items() if p.startswith(prefix)}
        entries, seen = [], set()
        for path, file in files.items():
            below = path[len(prefix):].lstrip("/")
            if request.query.get("recursive", "true").lower() != "false" or "/" not in below:
                entries.append(self.entry(path, file))
                continue
            folder = path[:len(path) - len(below)] + below.split("/")[0]
            if folder not in seen:
                seen.add(folder)
                entries.append({"type": "directory", "path": folder,
                                "uploadedAt": iso(file.uploaded)})
        return self.pages(request, entries)

    def bucket_batch(self, request, bucket):
        """NDJSON; what fails does not stop the rest."""
        failed, entries, done = [], [], 0
        with self.lock:
            for line in filter(None, request.body.splitlines()):
                op = json.loads(line)
                path, known = op["path"], op.get("xetHash") in self.blobs
                if op["type"] in ("addFile", "copyFile") and known:
                    now = time.time()
                    bucket.files[path] = File(self.blobs[op["xetHash"]],
                                              op.get("mtime", now * 1000) / 1000, now)
                    entries.append({"path": path, "op": "add"})
                elif op["type"] == "deleteFile" and path in bucket.files:
                    del bucket.files[path]
                    entries.append({"path": path, "op": "delete"})
                else:
                    failed.append({"path": path, "error": "no such content"})
                done += 1
            bucket.change(entries)
        body = {"success": not failed, "processed": done, "succeeded": done - len(failed),
                "failed": failed}
        return self.json(body)._replace(status=422 if failed else 200)

    # ---- the feed -------------------------------------------------------------------------

    def events(self, request, bucket):
        """Replays from cursor or since, says ready, then follows."""
        if self.feed == "none":
            return self.error(404, None, "no route")
        if self.feed == "busy":
            return self.error(503, None, "busy")._replace(headers=(("Retry-After", "1"),))
        if self.feed == "refuse" or "text/event-stream" not in request.headers.get("Accept", ""):
            return self.error(400, None, "bad request")
        with self.lock:
            line = queue.Queue()
            at = len(bucket.changes)
            if "cursor" in request.query:
                at = int(request.query["cursor"][1:])
            elif "since" in request.query:
                at = sum(1 for t, _ in bucket.changes if iso(t) <= request.query["since"])
            if at < bucket.oldest:
                line.put(("reset", {"reason": "cursor_too_old"}))
            else:
                for number in range(at, len(bucket.changes)):
                    line.put(("changes", {"cursor": f"c{number + 1}",
                                          "changes": bucket.changes[number][1]}))
                line.put(("ready", {"cursor": f"c{len(bucket.changes)}"}))
                bucket.streams.append(line)
        return Answer(200, headers=(("Content-Type", "text/event-stream; charset=utf-8"),
                                    ("Cache-Control", "no-cache")),
                      stream=self.stream(bucket, line))

    def stream(self, bucket, line):
        """The bytes of a feed."""
        try:
            yield b": connected\n\n"
            while not self.hub.closing.is_set():
                try:
                    event, data = line.get(timeout=self.ping)
                except queue.Empty:
                    yield b": ping\n\n"
                    continue
                if event is None:
                    return
                yield f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
                if event in ("reset", "reconnect"):
                    return
        finally:
            with self.lock:
                if line in bucket.streams:
                    bucket.streams.remove(line)

    # ---- resolve --------------------------------------------------------------------------

    def redirect(self, request, file, headers):
        """302 to the CDN; its Content-Length is that of its own text."""
        self.blobs[file.xet] = file.data
        expires = int(time.time()) + self.lifetime
        path = f"/xet-bridge-us/{'0' * 24}/{file.xet}"
        target = (f"{self.cdn.origin}{path}?X-Amz-Expires={self.lifetime}&Expires={expires}"
                  f"&Epoch={self.epoch}&Signature={self.sign(path, expires, self.epoch)}"
                  f"&Key-Pair-Id=KPAIRMARKED")
        body = b"Found. Redirecting to " + target.encode() + b" " * 900
        return Answer(302, body, (
            ("Location", target), ("X-Linked-Size", str(len(file.data))),
            ("X-Xet-Hash", file.xet), ("Accept-Ranges", "bytes"), ("Cache-Control", "no-cache"),
            ("Link", f'<{self.hub.origin}/api/xet-read-token>; rel="xet-auth", '
                     f'<{self.cdn.origin}/cas/v1/reconstructions/{file.xet}>; '
                     'rel="xet-reconstruction-info"'),
            ("Last-Modified", formatdate(file.uploaded, usegmt=True)),
            ("Content-Type", "text/plain; charset=utf-8"), *headers))

    def bucket_resolve(self, request, name, path, token):
        """/buckets/{name}/resolve/{path}"""
        bucket, refusal = self.find(self.buckets, name, token)
        if refusal:
            return refusal
        with self.lock:
            file = bucket.files.get(path)
        if file is None:
            return self.error(404, "EntryNotFound", "Entry not found")
        names = (("ETag", f'"{file.sha256[:32]}"'), ("X-Linked-ETag", f'"{file.sha256[:32]}"'))
        if not file.data:
            return Answer(200, b"", (*names, ("X-Linked-Size", "0")))
        return self.redirect(request, file, names)

    # ---- repositories ---------------------------------------------------------------------

    def repo_api(self, request, kind, name, rest, token):
        """/api/{kind}/{name}/..."""
        name = self.renamed.get((kind, name), name)
        repo, refusal = self.find(self.repos, (kind, name), token)
        if refusal:
            return refusal
        if not rest or rest[0] == "revision":
            sha = repo.sha(unquote(rest[1]) if rest else "main")
            if sha is None:
                return self.error(404, "RevisionNotFound", "Invalid rev id")
            return self.json({"_id": "0" * 24, "id": name, "sha": sha, "private": repo.private,
                              "lastModified": iso(repo.times[sha]), "gated": False, "tags": [],
                              "siblings": [{"rfilename": p} for p in repo.commits[sha]]})
        if rest[0] == "tree":
            return self.repo_tree(request, repo, unquote(rest[1]), unquote("/".join(rest[2:])))
        if rest[0] == "xet-read-token":
            return self.xet_token()
        return self.error(404, None, "no route")

    def repo_tree(self, request, repo, rev, prefix):
        """Not recursive unless told; a missing path is an error here."""
        sha = repo.sha(rev)
        if sha is None:
            return self.error(404, "RevisionNotFound", "Invalid rev id")
        inside = prefix + "/" if prefix else ""
        files = {p: f for p, f in repo.commits[sha].items() if p.startswith(inside)}
        if prefix and not files:
            return self.error(404, "EntryNotFound", "Path not found")
        recursive = request.query.get("recursive", "false").lower() == "true"
        entries, seen = [], set()
        for path, file in sorted(files.items()):
            folders = path[len(inside):].split("/")[:-1]
            for depth in range(1, len(folders) + 1):
                folder = inside + "/".join(folders[:depth])
                if folder not in seen and (recursive or depth == 1):
                    seen.add(folder)
                    entries.append({"type": "directory", "path": folder, "size": 0,
                                    "oid": git_oid(folder.encode())})
            if recursive or not folders:
                one = {"type": "file", "path": path, "size": len(file.data), "oid": file.oid}
                if file.lfs:
                    one.update(size=134, xetHash=file.xet,
                               lfs={"oid": file.sha256, "size": len(file.data),
                                    "pointerSize": 134})
                entries.append(one)
        return self.pages(request, entries)

    def repo_resolve(self, request, kind, name, rev, path, token):
        """/{id}/resolve/{rev}/{path}"""
        if (kind, name) in self.renamed:
            to = f"/{WORDS[kind]}{self.renamed[kind, name]}/resolve/{quote(rev, safe='')}/{path}"
            return Answer(307, b"", (("Location", to),))
        repo, refusal = self.find(self.repos, (kind, name), token)
        if refusal:
            return refusal
        sha = repo.sha(rev)
        if sha is None:
            return self.error(404, "RevisionNotFound", "Invalid rev id")
        file = repo.commits[sha].get(path)
        if file is None:
            return self.error(404, "EntryNotFound", "Entry not found")
        if not file.lfs:
            to = f"/api/resolve-cache/{kind}/{name}/{sha}/{quote(path)}?etag=%22{file.oid}%22"
            return Answer(307, b"Temporary Redirect", (
                ("Location", to), ("X-Repo-Commit", sha), ("ETag", f'"{file.oid}"'),
                ("X-Linked-Size", str(len(file.data)))))
        return self.redirect(request, file, (
            ("X-Repo-Commit", sha), ("ETag", f'"{file.sha256}"'),
            ("X-Linked-ETag", f'"{file.sha256}"')))

    def resolve_cache(self, request, kind, name, sha, path, token):
        """Small files; for those who may see the repository."""
        repo, refusal = self.find(self.repos, (kind, name), token)
        if refusal:
            return refusal
        file = repo.commits[sha][path]
        return ranged(request, file.data, (("ETag", f'"{file.oid}"'), ("X-Repo-Commit", sha)))

    # ---- the cdn --------------------------------------------------------------------------

    def sign(self, path, expires, epoch):
        """What a URL's signature must be."""
        return "LINKMARKED" + hmac.new(self.secret, f"{path} {expires} {epoch}".encode(),
                                       "sha256").hexdigest()

    def serve_cdn(self, request):
        """Bytes by content; nothing but harmless headers may come here."""
        foreign = [k for k in request.headers if k.lower() not in self.harmless]
        if foreign:
            self.violations.append(f"{request.method} {request.path}: {foreign}")
            return Answer(400, b"<Error><Code>InvalidArgument</Code></Error>")
        expires, epoch = int(request.query.get("Expires", 0)), int(request.query.get("Epoch", -1))
        good = hmac.compare_digest(self.sign(request.path, expires, epoch),
                                   request.query.get("Signature", ""))
        if not good or expires < time.time() or epoch != self.epoch:
            return Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        data = self.blobs.get(request.path.rsplit("/", 1)[-1])
        if data is None:
            return Answer(404)
        etag = hashlib.md5(data).hexdigest()
        answer = ranged(request, data, (("ETag", f'"{etag}"'), ("Cache-Control",
                                                               "public, max-age=31536000")))
        return answer
