"""Replies from memory that is lent, not copied: writers, eviction and readers that never meet."""

import hashlib
import json
import mmap
import os
import re
import threading

import pytest

from lib import bigrun, fake_server, models, reading, trl
from lib.mounted import SLOW, Mount, wait_until

MIB = 1 << 20


class Direct:
    """Reads a file again and again past the page cache, so that each read asks the daemon."""

    def __init__(self, path, want):
        self.fd, self.want = os.open(path, os.O_RDONLY | os.O_DIRECT), want
        self.reads, self.refused, self.wrong = 0, 0, []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        """Until it is told to stop."""
        with mmap.mmap(-1, MIB) as buffer:
            while not self.stop.is_set():
                for at in range(0, len(self.want), MIB):
                    self.read(buffer, at)

    def read(self, buffer, at):
        """One read: what the file was when it was opened, or an error."""
        self.reads += 1
        try:
            n = os.preadv(self.fd, [buffer], at)
        except OSError as error:
            self.refused += 1
            if error.errno != 5:
                self.wrong.append(str(error))
            return
        if buffer[:n] != self.want[at:at + MIB]:
            self.wrong.append(f"{n} bytes at {at}")

    def end(self):
        """No byte was another than it should be."""
        self.stop.set()
        self.thread.join()
        os.close(self.fd)
        assert not self.wrong, self.wrong[:5]
        assert self.reads


@pytest.mark.parametrize("how", ["rewritten", "cut", "deleted", "replaced"])
def test_objects_that_change_while_they_are_read(how, bucket):
    """Readers get the old bytes or EIO; old bytes for ever where a name went and not the file."""
    trl.Run(bucket, "v3").sync(models.states(7, 1, models.MINI)[0])
    old, new = (os.urandom(2 * MIB) for _ in range(2))
    names = [f"part{i}.dat" for i in range(4)]
    for name in names:
        (bucket / name).write_bytes(old)
        os.utime(bucket / name, (1000, 1000))
    with Mount(bucket) as m:
        m.wait_version(1)
        readers = [Direct(m.at / name, old) for name in names]
        for name, reader in zip(names, readers):
            wait_until(lambda r=reader: r.reads > 4, "nobody reads")
            if how == "rewritten":
                with open(bucket / name, "r+b", buffering=0) as f:
                    f.write(new)
            elif how == "cut":
                os.truncate(bucket / name, MIB + 5)
            else:
                (bucket / name).unlink()
                if how == "replaced":
                    (bucket / name).write_bytes(new)
        for reader in readers:
            since = reader.reads
            wait_until(lambda r=reader, n=since: r.reads > n + 4 and
                       (r.refused or how not in ("rewritten", "cut")),
                       lambda: ("it reads on", m.log_text()))
        for reader in readers:
            reader.end()
        refused = [reader.refused for reader in readers]
        assert [bool(n) for n in refused] == [how in ("rewritten", "cut")] * 4, (
            refused, m.log_text())
        assert m.status()["version"] == 1


@pytest.fixture
def web(bucket):
    """A run of one version of 40 MiB behind a web server."""
    run = bigrun.BigRun(bucket, 40)
    run.anchor()
    key = "anchors/step_000001.safetensors"
    data = (bucket / key).read_bytes()
    index = json.dumps({"objects": [{"key": key, "size": len(data), "mtime": 1000}]}).encode()
    tag = ("ETag", f'"{hashlib.md5(data).hexdigest()}"')

    def handle(request):
        name = request.path.lstrip("/")
        if name == "index.json":
            return fake_server.ranged(request, index)
        return fake_server.ranged(request, data, (tag,)) if name == key else \
            fake_server.Answer(404)

    server = fake_server.FakeServer(handle, "web")
    yield server
    server.stop()


def anonymous_mib(pid):
    """What a process has in memory besides pages of files."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read())[1]) // 1024


def test_eviction_while_it_is_read(web):
    """A cache smaller than the file: whatever is dropped under readers, they get its bytes."""
    with Mount(web.origin, args=["--cache-size", "16M"]) as m:
        m.wait_version(1)
        path = m.at / "model.safetensors"
        want = reading.read_file(path)
        readers = [Direct(path, want) for _ in range(4)]
        wait_until(lambda: min(r.reads for r in readers) >= 40, "no reads")
        for reader in readers:
            reader.end()
            assert not reader.refused
        if SLOW == 1:
            assert anonymous_mib(m.process.pid) < 400
        assert m.status()["counters"]["read_errors"] == 0


def test_a_cache_file_that_is_cut_short(web):
    """Somebody truncates the cache file under the mount: what is gone is fetched again."""
    with Mount(web.origin) as m:
        m.wait_version(1)
        path = m.at / "model.safetensors"
        want = reading.read_file(path)
        reader = Direct(path, want)
        data = next((m.work / "cache").rglob("*.data"))
        for size in (30 * MIB, 9 * MIB + 77, 0):
            since = reader.reads
            wait_until(lambda n=since: reader.reads > n + 100, "no reads")  # all is there again
            os.truncate(data, size)
        wait_until(lambda: reader.reads > since + 200, "no reads")
        reader.end()
        assert reading.read_direct(path) == want
        assert m.process.poll() is None
