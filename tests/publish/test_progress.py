"""What long work shows: a bar on a terminal, gone at the end, and one line of summary elsewhere."""

import contextlib
import os
import re
import subprocess
import threading
import time

from lib import models, mounted, published, publishing

AWAY = "\r\x1b[K"


class Terminal:
    """A pseudo-terminal as the standard error of a process; `text` is all that it got."""

    def __init__(self):
        self.ours, self.theirs = os.openpty()
        self.got = b""
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self):
        with contextlib.suppress(OSError):  # EIO: the last of the other side is gone
            while data := os.read(self.ours, 65536):
                self.got += data

    @property
    def text(self):
        """What it got so far."""
        return self.got.decode("utf-8", "replace")

    def start(self, *words, stdin=subprocess.DEVNULL, env=None):
        """Starts `weightfs WORDS`."""
        env = {**(env or os.environ), "TERM": "xterm"}
        process = subprocess.Popen([str(w) for w in (mounted.BINARY, *words)], stdin=stdin,
                                   stdout=subprocess.PIPE, stderr=self.theirs, env=env)
        os.close(self.theirs)
        self.thread.start()
        return process

    def end(self, process):
        """Waits for success; the lines that stay on the screen."""
        process.stdout.read()
        assert process.wait(mounted.WAIT) == 0, self.text
        self.thread.join(mounted.WAIT)
        os.close(self.ours)
        lines = self.text.replace("\r\n", "\n").split("\n")
        return [line for line in (one.split(AWAY)[-1] for one in lines) if line]

    def run(self, *words, **kwargs):
        """Both."""
        return self.end(self.start(*words, **kwargs))

    def bars(self):
        """What was drawn: [(what, the rest)]."""
        frames = re.findall(r"\r([^\r\n\x1b]+)\x1b\[K", self.text)
        return [re.fullmatch(r"([a-z][a-z0-9: ]*?)( +\d+ % \[[#.]{24}\])?(  \d.*, .*/s.*)",
                             frame).group(1, 3) for frame in frames]

    def names(self):
        """The names of the bars, in order, once each."""
        return list(dict.fromkeys(name for name, _ in self.bars()))


def quiet_lines(*words, **kwargs):
    """(lines of output, lines of errors) of the same without a terminal: no bar in them."""
    done = mounted.run(*words, **kwargs)
    for text in (done.stdout, done.stderr):
        assert "\r" not in text and "\x1b" not in text and "%" not in done.stderr, (words, text)
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_publish(bucket, scratch):
    """Comparing, encoding, and one upload of weights and companions; or the report's line alone."""
    places = [publishing.write_checkpoint(scratch / f"c{i}", state)
              for i, state in enumerate(models.states(3, 2, models.SMALL))]
    (places[0] / "vocabulary.txt").write_bytes(bytes(30_000_000))
    words = ["publish", "--state-dir", scratch / "state"]
    terminal = Terminal()
    assert terminal.run(*words, places[0], bucket) == []
    assert terminal.names() == ["compare", "encode", "upload"]
    uploads = [rest for name, rest in terminal.bars() if name == "upload"]
    totals = [re.search(r" of (\d+)\.\d MB, ", rest) for rest in uploads]
    assert uploads and all(t and int(t.group(1)) >= 30 for t in totals), uploads
    out, err = quiet_lines(*words, places[1], bucket)
    assert len(out) == 1 and out[0].startswith("version 2: delta") and not err


def test_stream(scratch, bucket):
    """Nobody knows how long a stream is: bytes and how fast."""
    place = publishing.write_checkpoint(scratch / "c", models.states(4, 1, models.SMALL)[0],
                                        companions=False)
    body = (place / "model.safetensors").read_bytes()
    words = ["publish", "--state-dir", scratch / "state", "-", bucket]
    terminal = Terminal()
    process = terminal.start(*words, stdin=subprocess.PIPE)
    end = time.monotonic() + mounted.WAIT
    sent = 0
    while sent < len(body) - 64 and time.monotonic() < end and not re.search(
            r"\rstandard input  [1-9][0-9.]* k?B, [0-9.]+ k?B/s\x1b", terminal.text):
        process.stdin.write(body[sent:sent + 64])
        process.stdin.flush()
        sent += 64
        time.sleep(0.02)
    process.stdin.write(body[sent:])
    process.stdin.close()
    assert terminal.end(process) == []
    assert terminal.names() == ["standard input", "compare", "encode", "upload"]
    assert re.search(r"\rstandard input  [1-9][0-9.]* k?B, [0-9.]+ k?B/s\x1b", terminal.text)
    assert not re.search(r"\rstandard input[^\r]*%", terminal.text)
    out, err = quiet_lines(*words, input=body.decode("latin-1"), encoding="latin-1")
    assert len(out) == 1 and "already" not in out[0] and not err


def test_upkeep(bucket, scratch):
    """compact, verify, export and prune; what is deleted is listed between the bars."""
    published.Published(bucket).publish_all(models.states(5, 9, models.MINI), (4, 8))
    terminal = Terminal()
    assert terminal.run("compact", "--from", "1", "--to", "3", bucket) == []
    assert terminal.names() == ["compact", "compare", "merge", "upload"]
    out, err = quiet_lines("compact", "--from", "1", "--to", "4", bucket)
    assert len(out) == 1 and not err
    terminal = Terminal()
    assert len(terminal.run("verify", bucket)) == 1
    assert terminal.names()[0] == "verify" and "version 9" in terminal.names()
    out, err = quiet_lines("verify", bucket)
    assert not out and len(err) == 1 and err[0].split(":")[0].endswith("0 problems")
    terminal = Terminal()
    assert len(terminal.run("export", bucket, "-o", scratch / "a")) == 1
    assert terminal.names() == ["export"]
    out, err = quiet_lines("export", bucket, "-o", scratch / "b")
    assert out == ["9"] and len(err) == 1
    terminal = Terminal()
    lines = terminal.run("prune", bucket)
    assert len(lines) == 1 and lines[0].startswith("prune: ") and terminal.names() == [
        "prune: listing", "prune"]
    assert all(re.search(r"^  \d+ of \d+ objects, \d+/s", rest)
               for name, rest in terminal.bars() if name == "prune")
    other = scratch / "other"
    published.Published(other).publish_all(models.states(5, 9, models.MINI), (4, 8))
    out, err = quiet_lines("prune", other)
    assert len(err) == 1 and err[0].startswith("prune: ") and out


def test_no_bar_where_none_is_wanted(bucket, scratch):
    """-q, and a terminal that cannot draw."""
    published.Published(bucket).publish_all(models.states(7, 3, models.MINI))
    terminal = Terminal()
    assert terminal.run("export", "-q", bucket, "-o", scratch / "a") == []
    assert terminal.text == ""
    terminal = Terminal()
    process = terminal.start("prune", "-q", bucket)
    assert terminal.end(process) == [] and terminal.text == ""
