"""A stand-in for `hf`, the Hub's command line, that uploads into lib/fake_hub.py.

The real one speaks Xet, which the fake Hub does not.  `real=True`: the real program's own parser
and command take the words, and only the call that uploads is replaced.  Otherwise a few lines stand
for all of it, since the real one takes a second to start.

    with FakeHub() as hub, Uploads(hub) as uploads:
        env = uploads.install(scratch)     # PATH with the stand-in
"""

import base64
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROGRAM = '''#!{python}
import base64, json, os, sys, urllib.error, urllib.request
REAL, URL = {real!r}, {url!r}

def send(bucket, add=(), delete=(), token=None):
    token = token or os.environ.get("HF_TOKEN")
    for source, path in add:
        data = source if isinstance(source, bytes) else open(source, "rb").read()
        ask({{"op": "put", "path": path, "data": base64.b64encode(data).decode()}}, bucket, token)
    for path in delete:
        ask({{"op": "rm", "path": path}}, bucket, token)

def ask(body, bucket, token):
    body.update(bucket=bucket, words=sys.argv[1:], quiet=os.environ.get("NO_COLOR"))
    request = urllib.request.Request(URL, json.dumps(body).encode(),
                                     {{"X-Who": str(token)}})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request).read()
    except urllib.error.HTTPError as e:
        print("Set HF_DEBUG=1 for more", file=sys.stderr)
        print("\\033[31mError: " + e.read().decode() + "\\033[0m", file=sys.stderr)
        print("Hint: look at the docs", file=sys.stderr)
        sys.exit(1)

if REAL:
    from huggingface_hub import HfApi
    from huggingface_hub.cli.hf import main
    HfApi.batch_bucket_files = lambda self, bucket_id, *, add=(), delete=(), **_: send(
        bucket_id, add or (), delete or (), self.token if isinstance(self.token, str) else None)
    sys.exit(main())
words = sys.argv[1:]
assert words[:3] == ["buckets", "cp", "--quiet"] and len(words) == 5, words
ns, name, path = words[4].removeprefix("hf://buckets/").split("/", 2)
send(f"{{ns}}/{{name}}", add=[(words[3], path)])
'''


class Uploads:
    """Takes what the stand-in uploads.  `words`: the command lines so far; `refuse`: {path:
    sentence} of what is refused."""

    def __init__(self, hub):
        self.hub, self.words, self.refuse, self.lock = hub, [], {}, threading.Lock()
        self.before = lambda path: None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def install(self, scratch, real=False):
        """Writes the program into a directory of its own; PATH with it in front."""
        folder = Path(scratch) / "bin"
        folder.mkdir(exist_ok=True)
        url = f"http://127.0.0.1:{self.server.server_port}/"
        (folder / "hf").write_text(PROGRAM.format(python=sys.executable, real=real, url=url))
        (folder / "hf").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    def take(self, body, token):
        """(status, text) of one request."""
        with self.lock:
            self.words.append(body["words"])
        if token not in self.hub.tokens:
            return 401, "401 Unauthorized: no such token"
        if body["path"] in self.refuse:
            return 403, self.refuse[body["path"]]
        self.before(body["path"])
        if body["op"] == "put":
            self.hub.put(body["bucket"], {body["path"]: base64.b64decode(body["data"])})
        else:
            self.hub.delete(body["bucket"], [body["path"]])
        return 200, "ok"

    def handler(self):
        """The class of the server's requests."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """One upload."""

            def do_POST(self):
                """Reads, does, answers."""
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers.get("X-Who")
                status, text = outer.take(body, token)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                """Says nothing."""

        return Handler
