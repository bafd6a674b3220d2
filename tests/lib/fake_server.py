"""An HTTP server in this process that keeps a log of its requests and misbehaves when told to.

Handlers are written against Request and return an Answer; the faults of a server are applied in
between, so that every kind of server can be slow, cut, wrong or overloaded in the same ways.
"""

import contextlib
import gzip
import re
import socket
import socketserver
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from lib.ports import free_port


class Answer(NamedTuple):
    """What a handler returns; `stream` is an iterator of byte strings instead of a body."""

    status: int
    body: bytes = b""
    headers: tuple = ()
    stream: object = None


class Request:
    """One request as a handler sees it."""

    def __init__(self, method, target, headers, body):
        self.method, self.target, self.headers, self.body = method, target, headers, body
        parts = urlsplit(target)
        self.raw_path = parts.path
        self.path = unquote(parts.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))

    def range(self, size):
        """(first, last) of a Range header within size; None: there is none; (): not satisfiable."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return None
        first = int(match[1])
        last = min(int(match[2]) if match[2] else size - 1, size - 1)
        return (first, last) if first < size and first <= last else ()


class Seen(NamedTuple):
    """A line of the log."""

    method: str
    target: str
    headers: dict
    status: int


class Fault:
    """Misbehaviour for requests whose "METHOD target" matches a pattern, `times` times.

    kind: "status" (answer with it), "html" (the same with an HTML body), "cut" (half the body, then
    close), "reset" (half the body, then RST), "stall" (half the body, then nothing), "whole" (200
    to a range), "shift" (a wrong Content-Range), "gzip" (an encoded body), "extra" (more bytes than
    asked), "trickle" (slow), "short" (a shorter range, well said).
    """

    def __init__(self, pattern, kind, times=1, status=503, headers=()):
        self.pattern, self.kind, self.left = re.compile(pattern), kind, times
        self.status, self.headers, self.hits = status, tuple(headers), 0


def ranged(request, data, headers=()):
    """An answer with data as it is asked for: 200, 206 or 416."""
    span = request.range(len(data))
    headers = (*headers, ("Accept-Ranges", "bytes"))
    if span is None:
        return Answer(200, data, headers)
    if span == ():
        return Answer(416, b"", (*headers, ("Content-Range", f"bytes */{len(data)}")))
    first, last = span
    return Answer(206, data[first:last + 1],
                  (*headers, ("Content-Range", f"bytes {first}-{last}/{len(data)}")))


class FakeServer:
    """One listener on a loopback port.  handle(request) -> Answer runs in a thread of its own."""

    def __init__(self, handle, name):
        self.handle, self.name = handle, name
        self.seen, self.faults = [], []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.sockets = set()
        self.port = 0
        self.server = self.tls = None
        self.start()

    @property
    def origin(self):
        """http://127.0.0.1:port"""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def secure(self, certificate, key):
        """Speaks TLS from now on."""
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        self.stop()
        self.start()

    def start(self):
        """Listens, on the port of before if there was one."""
        self.closing.clear()
        self.port = self.port or free_port()
        self.server = _Listener(("127.0.0.1", self.port), _Handler)
        self.server.fake, self.server.gone = self, False
        if self.tls:
            # The handshake is made by each connection's thread: a slow client is nobody else's.
            self.server.socket = self.tls.wrap_socket(self.server.socket, server_side=True,
                                                      do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Goes away, connections included."""
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        with self.lock:
            self.server.gone = True
        self.drop_connections()

    def drop_connections(self):
        """Cuts everything that is connected."""
        with self.lock:
            sockets = list(self.sockets)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def fault(self, pattern, kind, times=1, **kwargs):
        """Adds a fault and returns it."""
        one = Fault(pattern, kind, times, **kwargs)
        with self.lock:
            self.faults.append(one)
        return one

    def take_fault(self, request):
        """The fault for this request, counted down."""
        with self.lock:
            for one in self.faults:
                if one.left > 0 and one.pattern.search(f"{request.method} {request.target}"):
                    one.left -= 1
                    one.hits += 1
                    return one
        return None

    def note(self, request, status):
        """Keeps a line of the log."""
        with self.lock:
            self.seen.append(Seen(request.method, request.target, dict(request.headers), status))

    def count(self, pattern, since=0):
        """How many requests of the log, from `since` on, match."""
        with self.lock:
            lines = [f"{s.method} {s.target}" for s in self.seen[since:]]
        return sum(1 for line in lines if re.search(pattern, line))

    def mark(self):
        """The log's length, for count(since=)."""
        with self.lock:
            return len(self.seen)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def server_bind(self):
        """Without asking anybody for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address):
        """Clients that go away are part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        """The log is FakeServer.seen."""

    def setup(self):
        super().setup()
        with self.server.fake.lock:
            self.server.fake.sockets.add(self.connection)
            gone = self.server.gone
        if gone:  # accepted just before the server went away, and not yet among those it cut
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self):
        with self.server.fake.lock:
            self.server.fake.sockets.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def serve(self):
        """Any method."""
        fake = self.server.fake
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # who sent it has died, and half a request is none
            self.close_connection = True
            return
        request = Request(self.command, self.path, self.headers, body)
        fault = fake.take_fault(request)
        if fault and fault.kind in ("status", "html"):
            body = b"<html><h1>Bad gateway</h1></html>" if fault.kind == "html" else b""
            answer = Answer(fault.status, body, (*fault.headers, ("Content-Type", "text/html")))
            fault = None
        else:
            if fault and fault.kind == "whole":
                del request.headers["Range"]
            answer = fake.handle(request)
        fake.note(request, answer.status)
        self.send(request, answer, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve

    def send(self, request, answer, fault):
        """Head and body, bent by the fault."""
        headers, body, status = list(answer.headers), answer.body, answer.status
        kind = fault.kind if fault else None
        if kind == "gzip" and body:
            body = gzip.compress(body)
            headers.append(("Content-Encoding", "gzip"))
            headers = [h for h in headers if h[0] != "Content-Range"]
            status = 200
        if kind == "shift":
            headers = [(k, re.sub(r"bytes \d+", "bytes 1234567", v) if k == "Content-Range" else v)
                       for k, v in headers]
        if kind == "short" and status == 206:
            first = int(re.search(r"bytes (\d+)", dict(headers)["Content-Range"])[1])
            body = body[:(len(body) + 1) // 2]
            headers = [(k, re.sub(r"\d+/", f"{first + len(body) - 1}/", v)
                        if k == "Content-Range" else v) for k, v in headers]
        chunked = answer.stream is not None or kind == "extra"
        if any(k.lower() == "date" for k, _ in headers):
            self.send_response_only(status)
        else:
            self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif not any(k.lower() == "content-length" for k, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if request.method == "HEAD":
            return
        if answer.stream is not None:
            self.send_stream(answer.stream)
        elif kind == "extra":
            self.send_stream([body, b"surplus"])
        elif kind in ("cut", "reset", "stall", "trickle"):
            self.send_badly(kind, body)
        else:
            self.wfile.write(body)

    def send_stream(self, parts):
        """Chunks, until the iterator ends or the server closes."""
        with contextlib.suppress(OSError):
            for part in parts:
                if part:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True

    def send_badly(self, kind, body):
        """Half of it, one way or another."""
        self.close_connection = True
        half = body[:len(body) // 2]
        if kind == "trickle":
            for at in range(0, len(body), 64):
                if self.server.fake.closing.is_set():
                    return
                self.wfile.write(body[at:at + 64])
                time.sleep(0.02)
            return
        self.wfile.write(half)
        self.wfile.flush()
        if kind == "stall":
            self.server.fake.closing.wait()
        elif kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                       struct.pack("ii", 1, 0))
            self.connection.close()
