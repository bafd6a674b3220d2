"""Our SigV4 signer against botocore's.

botocore signs a set of awkward requests; its answers are kept as a C header that the unit test of
the signer compares with (so that a build needs no Python).  The test here makes them again with
the botocore of the day.  The header is written by

    python tests/interop/test_sigv4.py >tests/unit/remote/sigv4_vectors.h
"""

import hashlib
import os

import pytest

botocore_auth = pytest.importorskip("botocore.auth")
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials  # noqa: E402

HEADER = os.path.join(os.path.dirname(__file__), "..", "unit", "remote", "sigv4_vectors.h")
ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "FQoGZXIvYXdzEBYaD/token+with/odd=chars=="
TIME, STAMP = 1440938160, "20150830T123600Z"
EMPTY = hashlib.sha256(b"").hexdigest()
BODY = hashlib.sha256(b"a body").hexdigest()

# method, URL, region, token?, payload hash, extra headers
CASES = [
    ("GET", "https://bucket.s3.amazonaws.com/", "us-east-1", False, EMPTY, {}),
    ("GET", "https://s3.eu-west-3.amazonaws.com/bucket/a/b.safetensors", "eu-west-3", True, EMPTY,
     {"If-Match": '"9b2cf535f27731c974343645a3985328-5"'}),
    ("HEAD", "http://127.0.0.1:9000/bucket/with%20blank%2Band%25.bin", "us-east-1", False, EMPTY,
     {}),
    ("GET", "https://s3.hf.co/namespace/bucket/run/model.safetensors", "us-east-1", False,
     "UNSIGNED-PAYLOAD", {}),
    ("GET", "https://h/b/%E2%82%AC%C3%A4/a//b/../c/./d~e-f_g.h", "us-east-1", False, EMPTY, {}),
    ("GET", "https://h/b/%3D%3A%40%2A%27%21%24%26%3B%2C%28%29%23%3F", "us-east-1", False, EMPTY,
     {}),
    ("GET", "https://h/b?list-type=2&prefix=run%2Fdeltas%2F&delimiter=%2F&max-keys=1000"
     "&encoding-type=url", "us-west-2", True, EMPTY, {}),
    ("GET", "https://h/b?list-type=2&continuation-token=1%2Bab%2F%3D%3D&start-after=a%20b%2B~",
     "us-east-1", False, EMPTY, {}),
    ("GET", "https://h/b?location=", "us-east-1", False, EMPTY, {}),
    ("GET", "https://h/b?b=2&a=2&a=1&A=3&a-b=4&a%25=5", "us-east-1", False, EMPTY, {}),
    ("PUT", "https://h/b/key", "us-east-1", True, BODY,
     {"Content-Type": "application/octet-stream", "x-amz-meta-a": "  two   blanks  "}),
    ("PUT", "https://h:8443/b/key?partNumber=3&uploadId=x.y_z-~", "us-east-1", False,
     "UNSIGNED-PAYLOAD", {"If-None-Match": "*"}),
    ("POST", "https://h/b/key?uploads=", "ap-northeast-1", False, EMPTY,
     {"x-amz-request-payer": "requester"}),
    ("DELETE", "https://h/b/key?versionId=null", "us-east-1", False, EMPTY, {}),
]


def sign(case):
    """The Authorization header that botocore makes for a case."""
    method, url, region, with_token, payload, headers = case
    request = AWSRequest(method=method, url=url, headers=dict(headers))
    request.context["timestamp"] = STAMP

    class Auth(botocore_auth.S3SigV4Auth):
        """With the hash of the body as given."""

        def payload(self, _):
            return payload

    auth = Auth(Credentials(ACCESS, SECRET, TOKEN if with_token else None), "s3", region)
    auth._modify_request_before_signing(request)
    text = auth.string_to_sign(request, auth.canonical_request(request))
    auth._inject_signature_to_request(request, auth.signature(text, request))
    return request.headers["Authorization"]


def quoted(text):
    """A C string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def vectors():
    """The C header."""
    lines = ["/* SPDX-License-Identifier: Apache-2.0 */",
             "/* What botocore signs for awkward requests, by tests/interop/test_sigv4.py. */",
             "/* clang-format off */",
             f'#define VECTOR_ACCESS {quoted(ACCESS)}',
             f'#define VECTOR_SECRET {quoted(SECRET)}',
             f'#define VECTOR_TOKEN {quoted(TOKEN)}',
             f"#define VECTOR_TIME INT64_C({TIME})",
             "static const struct vector vectors[] = {"]
    for case in CASES:
        method, url, region, with_token, payload, headers = case
        auth = sign(case)
        lines += ["\t{", f"\t\t.method = METHOD_{method},", f"\t\t.url = {quoted(url[:60])}"]
        lines += [f"\t\t\t{quoted(url[at:at + 60])}" for at in range(60, len(url), 60)]
        lines[-1] += ","
        lines += [f"\t\t.region = {quoted(region)},",
                  f"\t\t.token = {'true' if with_token else 'false'},",
                  f"\t\t.payload = {quoted(payload)},"]
        if headers:
            lines.append("\t\t.headers = {")
            lines += [f"\t\t\t{{{quoted(k)}, {quoted(v)}}}," for k, v in headers.items()]
            lines.append("\t\t},")
        signed, signature = auth.split("SignedHeaders=")[1].split(", Signature=")
        lines += ["\t\t.names ="]
        lines += [f"\t\t\t{quoted(signed[at:at + 60])}" for at in range(0, len(signed), 60)]
        lines[-1] += ","
        lines += [f"\t\t.signature = {quoted(signature)},", "\t},"]
    lines += ["};", "/* clang-format on */"]
    return "\n".join(lines) + "\n"


def test_vectors_are_botocores():
    with open(HEADER, encoding="ascii") as file:
        assert file.read() == vectors()


if __name__ == "__main__":
    print(vectors(), end="")
