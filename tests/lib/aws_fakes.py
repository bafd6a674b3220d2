"""The services that give AWS credentials, on one loopback port: container, instance, STS.

Each answer is a new access key that a StrictS3 is told of, good for `life` seconds; of `most` of
them.
"""

import datetime
import json
import time
from urllib.parse import parse_qs

from lib.fake_server import Answer, FakeServer
from lib.strict_s3 import Key


def stamp(t):
    """An Expiration."""
    return datetime.datetime.fromtimestamp(t, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# So much longer the server takes what is signed with a key than is promised: between its look at
# the clock and the signature a client may be kept waiting.
GRACE = 2


class AwsFakes:
    """life: of the keys given out; broken: services that answer 500."""

    def __init__(self, s3, life=3600, claim=None):
        self.s3, self.life, self.claim = s3, life, claim
        self.given, self.most, self.broken, self.sessions = 0, float("inf"), False, set()
        self.container_token, self.web_token = "CONTAINERMARKED", "WEBTOKENMARKED"
        self.asked = []
        self.server = FakeServer(self.serve, "credentials")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    @property
    def origin(self):
        """http://127.0.0.1:port"""
        return self.server.origin

    def give(self):
        """A new key, which the server knows from now on.  What it says of its end may be wrong."""
        self.given += 1
        access, expires = f"ASIAMARKED{self.given}", time.time() + self.life
        if self.claim is None:
            expires += GRACE
        key = Key(f"SECRETMARKED{self.given}", f"TOKENMARKED{self.given}/+=", expires)
        self.s3.keys[access] = key
        return access, key, stamp(time.time() + (self.claim or self.life))

    def end(self):
        """All keys that were given out so far end now, whatever was promised."""
        for access, key in list(self.s3.keys.items()):
            if access.startswith("ASIA"):
                self.s3.keys[access] = key._replace(expires=0)

    def document(self, **extra):
        """As container and instance write it."""
        access, key, expires = self.give()
        return Answer(200, json.dumps({
            **extra, "AccessKeyId": access, "SecretAccessKey": key.secret, "Token": key.token,
            "Expiration": expires}).encode(), (("Content-Type", "application/json"),))

    def serve(self, request):
        """By path."""
        self.asked.append(f"{request.method} {request.path}")
        if self.broken or self.given >= self.most:
            return Answer(500)
        if request.path == "/container":
            if request.headers.get("Authorization") != self.container_token:
                return Answer(401)
            return self.document()
        if request.path.startswith("/latest/"):
            return self.serve_instance(request)
        if request.method == "POST" and request.path == "/":
            return self.serve_sts(request)
        return Answer(404)

    def serve_instance(self, request):
        """IMDSv2: nothing without a session's token."""
        if request.method == "PUT" and request.path == "/latest/api/token":
            if "X-aws-ec2-metadata-token-ttl-seconds" not in request.headers:
                return Answer(400)
            token = f"SESSIONMARKED{len(self.sessions)}"
            self.sessions.add(token)
            return Answer(200, token.encode())
        if request.headers.get("X-aws-ec2-metadata-token") not in self.sessions:
            return Answer(401)
        base = "/latest/meta-data/iam/security-credentials/"
        if request.path == base:
            return Answer(200, b"the-role")
        if request.path == base + "the-role":
            return self.document(Code="Success")
        return Answer(404)

    def serve_sts(self, request):
        """AssumeRoleWithWebIdentity, unsigned."""
        form = {k: v[0] for k, v in parse_qs(request.body.decode()).items()}
        if "Authorization" in request.headers or form.get("WebIdentityToken") != self.web_token \
                or form.get("Action") != "AssumeRoleWithWebIdentity" \
                or form.get("Version") != "2011-06-15" or not form.get("RoleArn"):
            return Answer(400, b"<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error>"
                               b"</ErrorResponse>")
        access, key, expires = self.give()
        return Answer(200, ("<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/"
                            "doc/2011-06-15/'><AssumeRoleWithWebIdentityResult><Credentials>"
                            f"<AccessKeyId>{access}</AccessKeyId>"
                            f"<SecretAccessKey>{key.secret}</SecretAccessKey>"
                            f"<SessionToken>{key.token}</SessionToken>"
                            f"<Expiration>{expires}</Expiration></Credentials>"
                            "</AssumeRoleWithWebIdentityResult>"
                            "</AssumeRoleWithWebIdentityResponse>").encode())
