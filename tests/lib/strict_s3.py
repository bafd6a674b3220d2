"""An S3 server that believes nothing: every signature is computed again by botocore.

One bucket with objects in memory.  What a client does against the rules is kept in `violations` and
fails the test at the end; what it does wrong in a way that S3 answers is answered as S3 does.  With
`gateway`, a GET is a redirect to a content network on another port, as Hugging Face's gateway does
it: a credential that arrives there is a violation.
"""

import base64
import datetime
import hashlib
import re
import threading
import time
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lib import leaks, mounted
from lib.fake_server import Answer, FakeServer, ranged

HARMLESS = {"host", "user-agent", "accept", "accept-encoding", "range", "connection"}
AUTH = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
                  r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})")


class Key(NamedTuple):
    """What belongs to an access key.  What counts is when a request was signed, not when it comes
    to be looked at: on a busy machine that may be seconds later."""

    secret: str
    token: str = None
    expires: float = float("inf")


class Obj(NamedTuple):
    """An object's content and when it came."""

    data: bytes
    etag: str
    mtime: float


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status, code, extra="", headers=()):
        super().__init__(code)
        self.status, self.code, self.extra, self.headers = status, code, extra, tuple(headers)

    def answer(self):
        """As S3 writes it."""
        body = ('<?xml version="1.0" encoding="UTF-8"?>\n'
                f"<Error><Code>{self.code}</Code><Message>no</Message>{self.extra}</Error>")
        return Answer(self.status, body.encode(),
                      (*self.headers, ("Content-Type", "application/xml")))


def iso(t):
    """As listings have it."""
    return datetime.datetime.fromtimestamp(t, datetime.timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%S.000Z")


class StrictS3:
    """s3 and cdn: the two listeners.  Attributes may be changed at any time."""

    def __init__(self, bucket="bucket", region="us-east-1", gateway=False, path=""):
        self.bucket, self.region, self.gateway, self.path = bucket, region, gateway, path
        self.lock = threading.RLock()
        self.objects, self.uploads, self.links = {}, {}, {}
        self.keys = {"AKIDMARKED": Key("SECRETMARKED")}
        self.public = False
        self.wrong_region = "400"     # or "301", "301-endpoint"
        self.clock = 0                # seconds that the server is ahead
        self.page, self.encode, self.tokens = 1000, True, True
        self.quoted, self.honour_if_match, self.etags = True, True, True
        self.conditional_delete, self.conditional_put = True, True
        self.slow, self.complete_errors, self.moves = 0, 0, 0
        self.payer = False
        self.epoch = 0
        self.violations, self.before_get = [], None
        self.upload_parts, self.most_at_once, self.at_once = [], 0, 0
        self.patience = mounted.WAIT  # of the first part for a second one beside it
        self.second = threading.Condition()
        self.s3 = FakeServer(self.serve, "s3")
        self.cdn = FakeServer(self.serve_cdn, "cdn")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.s3.stop()
        self.cdn.stop()
        if kind is None:
            assert not self.violations, self.violations

    @property
    def endpoint(self):
        """For --endpoint-url."""
        return self.s3.origin + self.path

    # ---- what tests do --------------------------------------------------------------------

    def put(self, key, data, mtime=None):
        """Writes an object."""
        with self.lock:
            etag = hashlib.md5(data).hexdigest() if self.etags else ""
            self.objects[key] = Obj(data, etag, mtime or time.time())

    def put_tree(self, root, prefix=""):
        """Uploads a directory, with its files' times."""
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            self.put(prefix + str(path.relative_to(root)), path.read_bytes(),
                     path.stat().st_mtime)

    def expire_links(self):
        """What the content network gave out so far is refused from now on."""
        self.epoch += 1

    def violation(self, text):
        """Something that no client may do."""
        with self.lock:
            self.violations.append(text)

    # ---- who asks -------------------------------------------------------------------------

    def now(self):
        """The server's clock."""
        return time.time() + self.clock

    def check_time(self, stamp):
        """Within 15 minutes; what it is as a number."""
        then = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(
            tzinfo=datetime.timezone.utc).timestamp()
        if abs(then - self.now()) > 900:
            raise Refused(403, "RequestTimeTooSkewed",
                          headers=[("Date", formatdate(self.now(), usegmt=True))])
        return then

    def check_region(self, region):
        """That of the bucket, or the answer that says so."""
        if region == self.region:
            return
        named = [("x-amz-bucket-region", self.region)]
        if self.wrong_region == "301":
            raise Refused(301, "PermanentRedirect", headers=named)
        if self.wrong_region == "301-endpoint":
            raise Refused(301, "PermanentRedirect",
                          f"<Endpoint>{self.bucket}.s3.{self.region}.amazonaws.com</Endpoint>")
        raise Refused(400, "AuthorizationHeaderMalformed", f"<Region>{self.region}</Region>")

    def check_signature(self, request):
        """The whole of AWS4-HMAC-SHA256, by botocore's own arithmetic."""
        headers = {k.lower(): v for k, v in request.headers.items()}
        match = AUTH.fullmatch(headers.get("authorization", ""))
        if not match:
            if "authorization" in headers:
                self.violation(f"unreadable Authorization on {request.target}")
            if self.public:
                return
            raise Refused(403, "AccessDenied")
        access, date, region, service, signed, signature = match.groups()
        names = signed.split(";")
        must = {"host", "x-amz-date", "x-amz-content-sha256"} | {
            k for k in headers if k.startswith("x-amz-")}
        if service != "s3" or not must <= set(names) or names != sorted(names):
            self.violation(f"signed headers {signed} of {sorted(must)}")
        digest = headers.get("x-amz-content-sha256")
        if digest not in (hashlib.sha256(request.body).hexdigest(), "UNSIGNED-PAYLOAD"):
            raise Refused(400, "XAmzContentSHA256Mismatch")
        if access not in self.keys:
            raise Refused(403, "InvalidAccessKeyId")
        key = self.keys[access]
        for secret in leaks.unmarked(key.secret, key.token):
            self.violation(f"a secret that is not marked: {secret}")
        stamp = headers["x-amz-date"]
        if stamp[:8] != date:
            self.violation("the scope's date is not that of x-amz-date")
        then = self.check_time(stamp)
        again = AWSRequest(request.method, f"http://{headers['host']}{request.target}",
                           {n: headers[n] for n in names if n in headers})
        again.context["timestamp"] = stamp
        signer = S3SigV4Auth(Credentials(access, key.secret), "s3", region)
        text = signer.string_to_sign(again, signer.canonical_request(again))
        if signer.signature(text, again) != signature:
            raise Refused(403, "SignatureDoesNotMatch")
        if key.token != headers.get("x-amz-security-token") or then > key.expires:
            raise Refused(400, "ExpiredToken")
        self.check_region(region)

    # ---- requests -------------------------------------------------------------------------

    def serve(self, request):
        """Any request of S3's API."""
        try:
            with self.lock:
                if self.slow > 0:
                    self.slow -= 1
                    raise Refused(503, "SlowDown")
            if "aws-chunked" in request.headers.get("Content-Encoding", ""):
                self.violation("a chunked body")
            self.check_signature(request)
            if self.payer and request.headers.get("x-amz-request-payer") != "requester":
                raise Refused(403, "AccessDenied")
            if not request.raw_path.startswith(self.path + "/"):
                raise Refused(404, "NoSuchBucket")
            if self.moves > 0 and request.method == "GET" and "moved" not in request.query:
                self.moves -= 1
                glue = "&" if "?" in request.target else "?"
                return Answer(307, b"", (("Location", f"{request.target}{glue}moved=1"),))
            bucket, _, key = request.raw_path[len(self.path) + 1:].partition("/")
            if unquote(bucket) != self.bucket:
                raise Refused(404, "NoSuchBucket")
            if not key:
                return self.serve_list(request)
            return self.serve_object(request, unquote(key, errors="surrogateescape"))
        except Refused as refused:
            answer = refused.answer()
            return answer._replace(body=b"") if request.method == "HEAD" else answer

    def serve_list(self, request):
        """ListObjectsV2, in pages."""
        q = request.query
        if q.get("list-type") != "2" or "delimiter" in q:
            self.violation(f"a listing by {request.target}")
        encode = self.encode and q.get("encoding-type") == "url"
        start = q.get("start-after", "")
        if "continuation-token" in q:
            token = base64.b64decode(q["continuation-token"], validate=True)
            assert token.startswith(b"\xfb\xef\xbe"), "the token is not the one given"
            start = token[3:].decode("utf-8", "surrogateescape").rstrip("\0")
        with self.lock:
            keys = sorted((k for k in self.objects if k.startswith(q.get("prefix", ""))),
                          key=lambda k: k.encode("utf-8", "surrogateescape"))
            todo = [k for k in keys if k > start]
            rows = [(k, self.objects[k]) for k in todo[:self.page]]
        more = len(todo) > len(rows)
        show = (lambda k: quote(k, safe="", errors="surrogateescape").replace("%20", "+")) \
            if encode else escape
        xml = ['<?xml version="1.0" encoding="UTF-8"?>\n'
               '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
               f"<Name>{self.bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>"]
        if encode:
            xml.append("<EncodingType>url</EncodingType>")
        if more and self.tokens:
            # Bytes whose base64 has all of "+", "/" and "=".
            raw = b"\xfb\xef\xbe" + rows[-1][0].encode("utf-8", "surrogateescape")
            while len(raw) % 3 == 0:
                raw += b"\0"
            xml.append(f"<NextContinuationToken>{base64.b64encode(raw).decode()}"
                       "</NextContinuationToken>")
        for key, one in rows:
            etag = f"&quot;{one.etag}&quot;" if self.quoted else one.etag
            xml.append(f"<Contents><Key>{show(key)}</Key><LastModified>{iso(one.mtime)}"
                       f"</LastModified>{f'<ETag>{etag}</ETag>' if one.etag else ''}"
                       f"<Size>{len(one.data)}</Size></Contents>")
        xml.append("</ListBucketResult>")
        return Answer(200, "".join(xml).encode(), (("Content-Type", "application/xml"),))

    def serve_object(self, request, key):
        """One object by its method."""
        if request.method in ("GET", "HEAD"):
            return self.serve_read(request, key)
        if request.method == "PUT":
            return self.serve_put(request, key)
        if request.method == "POST":
            return self.serve_post(request, key)
        if request.method == "DELETE" and "uploadId" in request.query:
            self.uploads.pop(request.query["uploadId"], None)
            return Answer(204)
        if request.method == "DELETE":
            return self.serve_delete(request, key)
        raise Refused(405, "MethodNotAllowed")

    def serve_delete(self, request, key):
        """Removes a key; conditional where the server knows that."""
        want = request.headers.get("If-Match")
        if want is not None and not self.conditional_delete:
            raise Refused(501, "NotImplemented")
        with self.lock:
            one = self.objects.get(key)
            if want is not None and (one is None or want != f'"{one.etag}"'):
                raise Refused(412, "PreconditionFailed")
            self.objects.pop(key, None)
        return Answer(204)

    def object_headers(self, one):
        """Of GET and HEAD."""
        headers = (("Last-Modified", formatdate(one.mtime, usegmt=True)),)
        return (*headers, ("ETag", f'"{one.etag}"')) if one.etag else headers

    def serve_read(self, request, key):
        """Bytes, or in gateway mode a link to them."""
        if self.before_get and request.method == "GET":
            self.before_get(request, key)
        with self.lock:
            one = self.objects.get(key)
        if one is None:
            raise Refused(404, "NoSuchKey")
        if request.method == "HEAD":
            return Answer(200, b"", (*self.object_headers(one),
                                     ("Content-Length", str(len(one.data)))))
        if self.gateway:
            with self.lock:
                self.links[one.etag] = one.data
            target = f"{self.cdn.origin}/{one.etag}?Signature=LINKMARKED&epoch={self.epoch}"
            return Answer(302, b"over there", (("Location", target),))
        want = request.headers.get("If-Match")
        if want is None and self.etags and request.headers.get("Range") != "bytes=0-0":
            self.violation(f"a read of {key} without If-Match")
        if want is not None and self.honour_if_match and want != f'"{one.etag}"':
            raise Refused(412, "PreconditionFailed")
        if request.range(len(one.data)) == ():
            raise Refused(416, "InvalidRange")
        return ranged(request, one.data, self.object_headers(one))

    def serve_cdn(self, request):
        """The content network: signed links, and no credentials."""
        extra = {k.lower() for k in request.headers} - HARMLESS
        if extra:
            self.violation(f"headers that reached the content network: {sorted(extra)}")
        parts = urlsplit(request.target)
        if request.query.get("epoch") != str(self.epoch):
            return Answer(403, b"expired")
        with self.lock:
            data = self.links.get(parts.path[1:])
        if data is None:
            return Answer(404)
        return ranged(request, data, (("ETag", '"another"'),))

    # ---- writing --------------------------------------------------------------------------

    def check_condition(self, request, key):
        """If-None-Match: * and If-Match."""
        if not self.conditional_put:
            return
        with self.lock:
            one = self.objects.get(key)
        if request.headers.get("If-None-Match") == "*" and one:
            raise Refused(412, "PreconditionFailed")
        want = request.headers.get("If-Match")
        if want and one is None:
            raise Refused(404, "NoSuchKey")
        if want and want != f'"{one.etag}"':
            raise Refused(412, "PreconditionFailed")

    def serve_put(self, request, key):
        """An object, or a part of one."""
        if "partNumber" in request.query:
            upload = self.uploads.get(request.query["uploadId"])
            if upload is None:
                raise Refused(404, "NoSuchUpload")
            with self.second:  # the first part waits until there is another one beside it
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                self.second.notify_all()
                self.second.wait_for(lambda: self.most_at_once > 1, self.patience)
                self.at_once -= 1
            upload[int(request.query["partNumber"])] = request.body
            self.upload_parts.append(len(request.body))
            etag = hashlib.md5(request.body).hexdigest()
        else:
            with self.lock:
                self.check_condition(request, key)
                self.put(key, request.body)
            etag = hashlib.md5(request.body).hexdigest()
        return Answer(200, b"", (("ETag", f'"{etag}"'),))

    def serve_post(self, request, key):
        """Begins or completes a multipart upload."""
        if "uploads" in request.query:
            name = f"id+/{len(self.uploads)}="
            self.uploads[name] = {}
            return Answer(200, ("<InitiateMultipartUploadResult><UploadId>"
                                f"{name}</UploadId></InitiateMultipartUploadResult>").encode())
        name = request.query["uploadId"]
        if name not in self.uploads:
            raise Refused(404, "NoSuchUpload")
        with self.lock:
            if self.complete_errors > 0:
                self.complete_errors -= 1
                return Refused(200, "InternalError").answer()
            self.check_condition(request, key)
            parts = self.uploads.pop(name)
            digests = b""
            data = b""
            for number, etag in re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>",
                                           request.body.decode()):
                part = parts[int(number)]
                if etag.replace("&quot;", "").strip('"') != hashlib.md5(part).hexdigest():
                    raise Refused(400, "InvalidPart")
                data += part
                digests += hashlib.md5(part).digest()
            self.put(key, data)
            etag = f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"
            self.objects[key] = self.objects[key]._replace(etag=etag)
        return Answer(200, f"<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag>"
                           "</CompleteMultipartUploadResult>".encode())
