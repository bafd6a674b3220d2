"""The search for secrets finds what it is there for; without this it might as well not look."""

import base64
import contextlib
import os
import re
import subprocess
import sys

import pytest

from lib import leaks, mounted
from lib.leaks import Search


@pytest.fixture
def search():
    """One of its own: its finds fail nothing."""
    return Search()


def found(search):
    """How many finds, which are forgotten."""
    return len(search.take())


@pytest.mark.parametrize("text", [
    "a token hf_MARKEDx", "SECRETMARKED", base64.b64encode(b"user:passMARKED").decode(),
    base64.b64encode(b"user:pasMARKED!").decode(), base64.b64encode(b"user:paMARKED").decode(),
    "MARKED".encode().hex(), "GET /x?Signature=abc", "Authorization: Bearer x",
    "AWS4-HMAC-SHA256 Credential=x"])
def test_spellings(search, text):
    """Plain, in base64 wherever it begins, in hexadecimal, and the forms of signed requests."""
    search.text("here", text)
    search.text("here", "x" * 5000 + text + "y" * 5000)
    assert found(search) == 2
    search.text("here", "the market is marked")
    assert found(search) == 0


def test_files(search, scratch):
    """In the middle, at the end, behind a hole, in a name, in a link, in an attribute; in files
    that were changed after the test had put them there, but not in those that were not."""
    (scratch / "d").mkdir()
    (scratch / "d" / "middle").write_bytes(b"x" * 999999 + b"aMARKEDb" + b"y" * 99)
    with open(scratch / "sparse", "wb") as f:
        f.seek(1 << 40)
        f.write(b"MARKED")
        f.truncate(1 << 41)
    (scratch / "nameMARKED").touch()
    os.symlink("to MARKED", scratch / "link")
    search.tree(scratch)
    assert found(search) == 4
    own = leaks.put(scratch / "own", "MARKED")
    search.own = dict(leaks.SEARCH.own)
    search.file(own)
    assert found(search) == 0
    own.write_text("MARKED and more")
    search.file(own)
    assert found(search) == 1
    with contextlib.suppress(OSError):
        os.setxattr(scratch / "d", "user.note", b"MARKED")
        search.attributes(scratch / "d")
        assert found(search) == 1
    for path in (scratch / "d" / "middle", scratch / "sparse", scratch / "nameMARKED",
                 scratch / "link", own):
        path.unlink()
    if "user.note" in os.listxattr(scratch / "d"):
        os.removexattr(scratch / "d", "user.note")


def test_parts(scratch):
    """Of a large file its begin and its end are looked at, each once, and every byte of a small."""
    path = scratch / "f"
    data = bytes(range(256)) * 1024
    path.write_bytes(data)
    assert b"".join(p[:65536] for p in leaks.parts(path, 65536)) == data[:65536] + data[-65536:]
    assert [p for p in leaks.parts(path, 1 << 20)] == [data]


def test_processes(search, monkeypatch):
    """What a program under watch writes into pipes."""
    monkeypatch.setattr(subprocess, "Popen", subprocess.Popen)
    monkeypatch.setattr(leaks, "SEARCH", search)
    text = "import sys; print('MARK' + 'ED'); print('MARK' + 'ED', file=sys.stderr)"
    subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert found(search) == 0
    leaks.watch_processes([sys.executable])
    subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert found(search) == 2


LEAKY = """
import os
import subprocess

def test_file(scratch):
    (scratch / "log").write_text("hf_MARK" "ED")

def test_printed():
    subprocess.run(["sh", "-c", "echo MARK''ED"], check=True)

def test_kept():
    with open(os.environ["XDG_CACHE_HOME"] + "/kept", "w") as f:
        f.write("MARK" "ED")
"""


def test_a_leak_fails_the_run(scratch):
    """A suite with three leaks, each of them reported, run with the fixtures of this one."""
    (scratch / "test_leaky.py").write_text(LEAKY)
    conftest = mounted.TOP / "tests" / "conftest.py"
    leaks.foreign(scratch / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(conftest.parent)!r})\n" + conftest.read_text())
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           "--import-mode=importlib", "--rootdir", scratch, scratch],
                          capture_output=True, text=True, timeout=mounted.WAIT * 3, check=False)
    assert done.returncode == 1, done.stdout
    assert "3 passed, 3 errors in " in done.stdout
    for where in ("scratch/log", "a test's processes printed", "/kept"):
        assert re.search(f"MARKED in .*{where.removeprefix('scratch')}", done.stdout), where
