"""Bad objects, directories and bases: each gets its own sentence, the last good version stays.

One mount serves many cases.  A case puts a bad object after the newest version, looks for the
sentence in status and log, sees that nothing else moved, and replaces the object by a good one.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess

import pytest

from lib import badfiles, checks, models, mounted, oracle, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount, wait_until

MODEL = "model.safetensors"
# One process, since it is looked whether two kinds share a sentence.
pytestmark = pytest.mark.xdist_group("bad")
SENTENCES = {}


def masked(sentence, name):
    """A sentence without what is particular to one object: names, numbers, quoted text."""
    sentence = sentence.replace(name, "OBJECT").replace(name.rsplit("/", 1)[-1], "OBJECT")
    sentence = re.sub(r'"(\\.|[^"\\])*"|\'[^\']*\'', "NAME", sentence)
    return re.sub(r"\d[\d,]*", "#", sentence)


def remember(kind, sentence, name):
    """Collects the sentences of a kind; kinds must not share any."""
    text = masked(sentence, name)
    assert 15 < len(sentence) < 600 and sentence.isprintable(), sentence
    for other, known in SENTENCES.items():
        assert other == kind or text not in known, f"{kind} and {other} both say: {text}"
    SENTENCES.setdefault(kind, set()).add(text)


def in_log(m, sentence):
    """The daemon's log has the sentence, too."""
    return wait_until(lambda: sentence in m.log_text(),
                      lambda: f"not in the log: {sentence}\n{m.log_text()[-2000:]}")


class Served:
    """A mount over a run that grows by one good version per case."""

    def __init__(self, bucket, mount):
        self.bucket, self.mount, self.want = bucket, mount, oracle.Oracle(bucket)
        self.good = set(bucket.glob("*/*"))
        self.number = self.blob = None
        self.settle(1)

    def path(self, ahead=1, folder="deltas"):
        """Where the object of a coming number belongs."""
        return self.bucket / folder / f"step_{self.number + ahead:06d}.safetensors"

    def settle(self, number, *paths):
        """This version is to become the current one; the paths are good objects."""
        self.good |= set(paths)
        self.mount.wait_version(number)
        self.number, self.blob = number, self.want.files(number)[MODEL]
        self.look()

    def look(self):
        """The current version is self.number, to the byte."""
        assert self.mount.version() == self.number
        assert reading.read_file(self.mount.at / MODEL) == self.blob

    def grow(self):
        """The next object is good: its version appears and nothing is left to complain about."""
        path = trl.put(self.path(), badfiles.good(self.number + 1))
        self.settle(self.number + 1, path)
        wait_until(lambda: self.mount.status()["problems"] == [],
                   lambda: f"left: {self.mount.status()['problems']}")

    def refuse(self, kind, make, folder="deltas", about=None):
        """The next object is bad, in this way; the problem is about it or another name."""
        path = self.path(1, folder)
        make(path)
        name = f"{folder}/{path.name}" if about is None else about
        sentence = self.mount.wait_problem(name)
        if kind:
            remember(kind, sentence, name)
        in_log(self.mount, sentence)
        self.look()
        assert self.mount.status()["state"] == "serving"
        return path

    def tidy(self):
        """Removes whatever a case has left that is not good."""
        for path in set(self.bucket.glob("*/*")) - self.good:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self.mount.status()["problems"] == [], "problems stay", 2)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The mount of this module."""
    bucket = tmp_path_factory.mktemp("bad") / "bucket"
    trl.Run(bucket, "v3").sync(models.start(60, models.SMALL)[1])
    with Mount(bucket, keep=2) as m:
        out = Served(bucket, m)
        out.grow()
        before = rss_mb(m)
        yield out
        out.grow()
        if mounted.SLOW == 1:
            assert rss_mb(m) < before + 60, "bad input made the daemon grow"


@pytest.fixture
def served(shared):
    """The module's mount; what a failed case leaves does not spoil the next."""
    shared.mount.live_on()
    yield shared
    shared.tidy()


def rss_mb(m):
    """Resident megabytes of the daemon."""
    with open(f"/proc/{m.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) // 1024


@pytest.mark.parametrize("case", badfiles.CASES)
def test_bad_delta(case, served):
    """Each rule of the validators and each truncation, as the newest delta."""
    kind, make = badfiles.CASES[case]
    about = "" if kind == "base version" else None
    served.refuse(kind, lambda path: trl.put(path, make(served.number + 1)), about=about)
    served.grow()


ANCHORS = ["leading space", "trailing byte", "a hole", "unknown tensor, full",
           "full with another shape", "full in another dtype", "half the header",
           "section 1 less a byte"]


@pytest.mark.parametrize("case", ANCHORS)
def test_bad_anchor(case, served):
    """The same rules hold for what lies in anchors/."""
    kind, make = badfiles.CASES[case]
    served.refuse(kind, lambda path: trl.put(path, make(served.number + 1)), "anchors").unlink()
    served.grow()


def fifo(path):
    """A named pipe: opening it must not block the daemon."""
    os.mkfifo(path)


def unix_socket(path):
    """A socket."""
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as s:
        try:
            os.chdir(path.parent)
            s.bind(path.name)
        finally:
            os.chdir(here)


def symlink_out(path):
    """A symbolic link to a good object outside of the bucket."""
    outside = path.parents[2] / "outside.safetensors"
    outside.write_bytes(badfiles.good(int(path.stem[5:])))
    os.symlink(outside, path)


def symlink_out_relative(path):
    """The same, by way of dot-dot."""
    outside = path.parents[2] / "outside.safetensors"
    outside.write_bytes(badfiles.good(int(path.stem[5:])))
    os.symlink("../../outside.safetensors", path)


def sparse(path, begin, size):
    """A file that appears with all of its size at once."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as f:
        f.write(begin)
        f.truncate(size)
    part.rename(path)


def sparse_terabyte(path):
    """A terabyte of nothing, with a header length as large as is allowed."""
    sparse(path, (100_000_000).to_bytes(8, "little"), 2**40)


def sparse_header(path):
    """A header that is one string of a hundred million bytes."""
    sparse(path, (100_000_000).to_bytes(8, "little") + b'{"', 100_000_008)


PLACES = {
    "a fifo": ("not a file", fifo),
    "a socket": ("not a file", unix_socket),
    "a link out": ("link out", symlink_out),
    "a link out by ..": ("link out", symlink_out_relative),
    "a link to itself": ("link out", lambda path: os.symlink(path.name, path)),
    "a dangling link": ("link out", lambda path: os.symlink("nothing", path)),
    "a sparse terabyte": ("no brace", sparse_terabyte),
    "a sparse header": (None, sparse_header),
}


@pytest.mark.parametrize("case", PLACES)
def test_bad_directory_entry(case, served):
    """Things in the bucket that are called like an object and are none."""
    kind, make = PLACES[case]
    served.refuse(kind, make).unlink()
    served.grow()


def test_directory_called_like_an_object(served):
    """A directory is no object, whatever it and the files in it are called; status says so, of an
    empty one and of a link to one, too.  It holds nobody back."""
    full, link, empty = served.path(), served.path(2), served.path(3)
    full.mkdir()
    (full / full.name).write_bytes(b"x")
    (full / "inside").mkdir()
    link.symlink_to("../anchors")
    empty.mkdir()
    for path in (full, link, empty):
        sentence = served.mount.wait_problem(f"deltas/{path.name}")
        remember("a directory", sentence, f"deltas/{path.name}")
    assert len(served.mount.status()["problems"]) == 3
    served.look()
    link.unlink()
    empty.rmdir()
    shutil.rmtree(full)
    served.grow()


NAMES = {
    "a number beyond 64 bits": ("no number", b"step_99999999999999999999999.safetensors"),
    "no number": ("no number", b"step_.safetensors"),
    "a negative number": ("no number", b"step_-1.safetensors"),
    "more than a number": ("no number", b"step_1x.safetensors"),
    "another case": ("no number", b"STEP_9.safetensors"),
    "quotes and escapes": ("no number", b"step_\"\\\n\x1b[31m'.safetensors"),
    "bytes that are not UTF-8": (None, b"step_000\xff.safetensors"),
}


@pytest.mark.parametrize("case", NAMES)
def test_bad_names(case, served):
    """Names that cannot be used are named in status, printable, and harm nobody."""
    kind, name = NAMES[case]
    path = os.path.join(os.fsencode(served.bucket), b"deltas", name)
    with open(path, "wb") as f:
        f.write(badfiles.good(1))
    found = wait_until(lambda: served.mount.status()["problems"],
                       lambda: f"nothing said: {served.mount.status()}")
    assert len(found) == 1 and found[0]["object"].isprintable()
    remember(kind or "no number", found[0]["error"], found[0]["object"])
    served.look()
    os.unlink(path)
    served.grow()


@pytest.mark.parametrize("name", ["step_9.safetensors.tmp", "note.txt", ".step_000009.safetensors",
                                  "step_9", "n" * 255, 'q"\\\n\x1b[31m'])
def test_names_of_others(name, served):
    """What is not called like an object is nobody's business."""
    path = served.bucket / "deltas" / name
    path.write_bytes(b"\0" * 100)
    served.grow()
    path.unlink()


def test_long_paths(served):
    """Directories far deeper than PATH_MAX next to the objects."""
    top = served.bucket / "deep"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("config.json", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    path = trl.put(served.path(), badfiles.good(served.number + 1))
    served.settle(served.number + 1, path)
    subprocess.run(["rm", "-rf", str(top)], check=True)
    served.grow()


def test_two_objects_of_one_number(served):
    """step_7 and step_000007 are the same number: the newer one counts, and status says so."""
    number = served.number + 1
    other = served.bucket / "deltas" / f"step_{number}.safetensors"
    trl.put(other, trl.delta_blob(number, {"a.weight": ([7], "BF16", [9])}))
    served.mount.wait_version(number)
    path = trl.put(served.path(), badfiles.good(number))
    sentence = served.mount.wait_problem(f"deltas/{other.name}")
    remember("two of one number", sentence, f"deltas/{other.name}")
    other.unlink()
    served.settle(number, path)
    served.grow()


def test_bad_in_the_middle(served):
    """What follows a bad delta waits, until the bad one is mended or a complete anchor comes."""
    n = served.number
    bad, after, worse = served.path(1), served.path(2), served.path(3)
    trl.put(bad, badfiles.CASES["twice the same"][1](n + 1))
    trl.put(after, badfiles.good(n + 2))
    served.mount.wait_problem(f"deltas/{bad.name}")
    served.mount.control("refresh")
    served.look()
    trl.put(bad, badfiles.good(n + 1))
    os.utime(after)
    served.settle(n + 2, bad, after)
    trl.put(worse, badfiles.CASES["a hole"][1](n + 3))
    served.mount.wait_problem(f"deltas/{worse.name}")
    state = models.start(61, models.SMALL)[1]
    anchor = trl.put(served.path(2, "anchors"),
                     trl.delta_blob(n + 4, {}, full=state, sparse=False))
    served.mount.wait_version(n + 4)
    assert reading.read_file(served.mount.at / MODEL).endswith(
        b"".join(state[name].data.tobytes() for name in st.torch_order(state)))
    worse.unlink()
    served.settle(n + 4, anchor)
    served.grow()


def test_sentences_are_as_many_as_kinds():
    """After all of the above: every kind had a sentence of its own (see remember)."""
    kinds = {kind for kind, _ in badfiles.CASES.values() if kind}
    assert len(badfiles.CASES) + len(PLACES) + len(NAMES) >= 60
    if kinds <= set(SENTENCES):
        texts = [text for known in SENTENCES.values() for text in known]
        assert len(texts) == len(set(texts))


# ---- mounts of their own ----------------------------------------------------------------------


def test_unreadable_object(bucket):
    """An object that the daemon may not read: no rights, said so."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to drop the rights that read everything")
    trl.Run(bucket, "v3").sync(models.start(62, models.SMALL)[1])
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    with Mount(bucket, prefix=drop) as m:
        served = Served(bucket, m)

        def make(path):
            path.parent.mkdir()
            hidden = path.parent / ".x"
            hidden.write_bytes(badfiles.good(2))
            os.chmod(hidden, 0)
            os.chown(hidden, 12345, 12345)
            os.rename(hidden, path)

        path = served.refuse("no rights", make)
        os.chown(path, 0, 0)
        os.chmod(path, 0o644)
        m.wait_version(2)


def test_nothing_is_whole(bucket):
    """A damaged first anchor: only companions, and status says why; then it is mended."""
    models.write_companions(bucket)
    states = models.states(63, 2, models.SMALL)
    run = trl.Run(bucket, "v3")
    paths = [run.sync(state) for state in states]
    sound = paths[0].read_bytes()
    paths[0].write_bytes(sound[:-10])
    os.utime(paths[0], ns=(paths[1].stat().st_mtime_ns - 10**9,) * 2)
    with Mount(bucket) as m:
        m.wait_problem("anchors/step_000001.safetensors")
        assert m.status()["state"] == "waiting" and m.version() is None
        checks.assert_tree(m.at, oracle.Oracle(bucket).companions())
        trl.put(paths[0], sound)
        os.utime(paths[1])
        m.wait_version(2)
        checks.assert_tree(m.at, oracle.Oracle(bucket).files(2))


def index_of(**weight_map):
    """The text of an index."""
    return trl.json.dumps({"metadata": {}, "weight_map": weight_map})


def base_with_index(folder, text):
    """A base directory whose index has this text, beside one good shard."""
    state = models.start(64, models.MINI)[1]
    models.write_companions(folder)
    (folder / "extra.safetensors").unlink()
    (folder / "one.safetensors").write_bytes(st.dump(state, {"format": "pt"}))
    (folder / "two.safetensors").write_bytes(st.dump(
        {"a.weight": state["a.weight"]}, {"format": "pt"}))
    (folder / oracle.INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())


INDEXES = {
    "not JSON": ("index JSON", "{"),
    "an array": ("index an array", "[]"),
    "no weight_map": ("index without map", '{"metadata":{}}'),
    "weight_map a string": ("index map form", '{"weight_map":"x"}'),
    "file a number": ("index value form", '{"weight_map":{"a.weight":5}}'),
    "empty weight_map": ("index map empty", '{"weight_map":{}}'),
    "in a directory": ("index directory", index_of(**{"a.weight": "sub/x.safetensors"})),
    "up": ("index path", index_of(**{"a.weight": "../x.safetensors"})),
    "absolute": ("index path", index_of(**{"a.weight": "/etc/x.safetensors"})),
    "missing shard": ("index shard", index_of(**{"a.weight": "three.safetensors"})),
    "tensor not in its shard": ("index tensor", index_of(
        **{"a.weight": "one.safetensors", "b.bias": "one.safetensors", "c.scale": "one.safetensors",
           "nothing": "one.safetensors"})),
    "tensor in two shards": ("two shards", index_of(
        **{"a.weight": "two.safetensors", "b.bias": "one.safetensors",
           "c.scale": "one.safetensors"})),
}


def refused_start(*args, **kwargs):
    """Runs a mount that must not start; the one line that it says."""
    done = mounted.run("mount", *args, check=False, **kwargs)
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert lines and lines[-1].startswith("weightfs: "), done.stderr
    return lines[-1]


@pytest.mark.parametrize("case", INDEXES)
def test_bad_base_index(case, scratch, bucket):
    """A base that is not a checkpoint is an error of the start."""
    kind, text = INDEXES[case]
    base = scratch / "base"
    base_with_index(base, text)
    (scratch / "mnt").mkdir()
    line = refused_start("-f", "--base", base, bucket, scratch / "mnt")
    remember(kind, line, str(scratch))
    assert not mounted.is_mounted(scratch / "mnt")


BASE_FILES = {
    "no weights": ("base without weights", None),
    "damaged": ("hole", badfiles.CASES["a hole"][1](1)),
    "cut": ("data cut", badfiles.CASES["section 1 less a byte"][1](1)),
}


@pytest.mark.parametrize("case", BASE_FILES)
def test_bad_base_file(case, scratch, bucket):
    """The same for a base's single file."""
    kind, blob = BASE_FILES[case]
    models.write_companions(scratch / "base")
    (scratch / "base" / "extra.safetensors").unlink()
    if blob is not None:
        (scratch / "base" / MODEL).write_bytes(blob)
    (scratch / "mnt").mkdir()
    line = refused_start("-f", "--base", scratch / "base", bucket, scratch / "mnt")
    if blob is None:
        remember(kind, line, str(scratch))
    else:
        assert MODEL in line


def test_base_of_another_model(scratch, bucket):
    """A run that does not fit the base: nothing of it is shown, and status says what differs."""
    state = models.start(65, models.SMALL)[1]
    other = {**state, "b.weight": models.fresh(models.start(1)[0], "BF16", (40,))}
    base = models.write_base(scratch / "base", other)
    trl.Run(bucket, "v3").sync(state)
    with Mount(bucket, base=base) as m:
        m.wait_problem("anchors/step_000001.safetensors", "b.weight")
        assert m.version() == 0
        checks.assert_tree(m.at, oracle.Oracle(bucket, base).files(0))
