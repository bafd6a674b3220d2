"""nginx from the distribution, serving a directory in three ways on a loopback port.

/html/ lists directories as HTML, /json/ as JSON, /plain/ not at all.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path

from lib import mounted
from lib.ports import free_port

PROGRAM = shutil.which("nginx") or "/usr/sbin/nginx"

CONFIG = """
daemon off;
worker_processes 1;
pid {work}/pid;
error_log {work}/error.log;
{user}
events {{ worker_connections 256; }}
http {{
    access_log {work}/access.log combined;
    client_body_temp_path {work}/body; proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi; uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
    types {{ text/html html; application/json json; }}
    default_type application/octet-stream;
    gzip on; gzip_types application/json application/octet-stream; gzip_min_length 0;
    server {{
        listen 127.0.0.1:{port}{ssl};
        {certificates}
        location /html/ {{ alias {root}/; autoindex on; }}
        location /json/ {{ alias {root}/; autoindex on; autoindex_format json; }}
        location /plain/ {{ alias {root}/; }}
    }}
}}
"""


def certificate(work, name="127.0.0.1"):
    """A self-signed certificate for an address: (certificate, key)."""
    crt, key = work / "server.crt", work / "server.key"
    kind = "IP" if name[0].isdigit() else "DNS"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}",
                    "-keyout", key, "-out", crt], check=True, capture_output=True)
    return crt, key


class Nginx:
    """A server as a context manager; url("html") is where the directory is seen."""

    config = CONFIG

    def __init__(self, root, work, tls=None):
        self.root, self.work, self.tls = root, Path(work), tls
        self.work.mkdir(parents=True, exist_ok=True)
        self.port, self.process = free_port(), None

    def url(self, kind):
        """The directory's URL."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/{kind}"

    def start(self):
        """Starts it and waits until it listens."""
        certificates = ""
        if self.tls:
            certificates = f"ssl_certificate {self.tls[0]}; ssl_certificate_key {self.tls[1]};"
        text = self.config.format(
            work=self.work, root=self.root, port=self.port, ssl=" ssl" if self.tls else "",
            user="user root;" if Path("/proc/self").owner() == "root" else "",
            certificates=certificates)
        (self.work / "nginx.conf").write_text(text)
        self.process = subprocess.Popen([PROGRAM, "-c", self.work / "nginx.conf", "-e",
                                         self.work / "error.log"], stderr=subprocess.DEVNULL)
        end = time.monotonic() + mounted.WAIT
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return self
            assert self.process.poll() is None, (self.work / "error.log").read_text()
            time.sleep(0.02)
        raise AssertionError("nginx does not listen")

    def stop(self):
        """Ends it."""
        self.process.terminate()
        self.process.wait(mounted.WAIT)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def log(self):
        """["GET /html/ 200", ...]"""
        text = (self.work / "access.log").read_text()
        lines = text[:text.rfind("\n") + 1].splitlines()  # one may be half written
        return [f"{line.split(chr(34))[1].rsplit(' ', 1)[0]} {line.split(chr(34))[2].split()[0]}"
                for line in lines]
