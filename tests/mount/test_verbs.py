"""The verbs on the command line: what they print, what they refuse, and their exit codes."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from lib import checks, models, mounted, oracle, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount, wait_until

pytestmark = pytest.mark.usefixtures("own_cache")

MODEL = "model.safetensors"
VERBS = ["mount", "umount", "status", "wait", "hold", "release", "pin", "unpin", "log", "inspect",
         "export", "verify", "cache", "simulate"]


@pytest.fixture
def run(bucket):
    """A bucket with five versions."""
    models.write_companions(bucket)
    return models.publish(trl.Run(bucket, "v3"), models.states(90, 5, models.SMALL))


def refused(*words, code=1, **kwargs):
    """Runs what must fail: its line, without the prefix."""
    done = mounted.run(*words, check=False, **kwargs)
    assert done.returncode == code, done
    assert done.stdout == "", done
    assert done.stderr.startswith("weightfs: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr[len("weightfs: "):]


@contextlib.contextmanager
def background(*words):
    """The program as a process beside the test; killed if the test fails meanwhile."""
    process = subprocess.Popen([str(mounted.BINARY), *map(str, words)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def holds_open(process, name):
    """Has the process a file of this name open?"""
    folder = f"/proc/{process.pid}/fd"
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{fd}").endswith(name):
                return True
    return False


def on_terminal(*words):
    """Runs the program on a terminal of its own and returns all it wrote there."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(mounted.BINARY, [str(mounted.BINARY), *map(str, words)])
    out = b""
    try:
        while piece := os.read(fd, 4096):
            out += piece
    except OSError:  # the terminal's other end is closed
        pass
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out
    return out.decode()


def cut(path, by=1):
    """Takes bytes off the end of an object, by rename; its time stays, or it would look like the
    beginning of another run."""
    times = path.stat()
    trl.put(path, path.read_bytes()[:-by])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


# ---- the program --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help(verb):
    """--help, and help VERB, print the same: synopsis, options, examples, exit codes."""
    text = mounted.run(verb, "--help").stdout
    assert mounted.run("help", verb).stdout == text
    assert text.startswith(f"usage: weightfs {verb} ")
    for part in ("\nOptions:\n", "\nExamples:\n", "\nExit codes:\n", "--help"):
        assert part in text
    assert text.split("Examples:")[1].split("Exit codes:")[0].count(f"weightfs {verb}") >= 2


def test_program():
    """The list of verbs, the version, and what is no verb."""
    text = mounted.run("--help").stdout
    for verb in VERBS:
        assert f"\n  {verb} " in text
    assert mounted.run("help").stdout == text
    assert mounted.run("--version").stdout.split()[0] == "weightfs"
    assert "frobnicate" in refused("frobnicate", code=2)
    assert "frobnicate" in refused("help", "frobnicate", code=2)


@pytest.mark.parametrize("words,part", [
    (["log"], "SOURCE"), (["log", "a", "b"], '"b"'), (["log", "-n", "x", "a"], '"x"'),
    (["log", "--keep", "3", "a"], "--keep"), (["log", "--json=1", "a"], "--json"),
    (["inspect"], "FILE"), (["inspect", "--base", "b", "a"], "--base"),
    (["export", "a"], "-o"), (["export", "a", "-o"], "--output"),
    (["export", "a", "-o", "b", "--version", "-3"], '"-3"'),
    (["status", "--json", "--line", "a"], "--line"), (["status", "-x", "a"], "-x"),
    (["wait", "a", "--after", "1", "--version", "2"], "--after"),
    (["wait", "a", "--after", "18446744073709551615"], "--after"),
    (["wait", "a", "--after"], "--after"), (["umount", "a", "b"], '"b"'),
    (["mount", "", "b"], "empty"),
])
def test_usage(words, part):
    """A wrong command line: exit code 2 and a line that names the word."""
    said = refused(*words, code=2)
    assert part in said and f"weightfs {words[0]} --help" in said


def test_stdout_that_is_full(bucket, run):
    """Output that does not get there is a failure."""
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([mounted.BINARY, "log", "--json", bucket], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "standard output" in done.stderr


def test_places_that_are_no_mounts(scratch):
    """status, wait and umount say that there is no mount, or no directory."""
    for verb in ("status", "wait", "umount"):
        assert "not a weightfs mount" in refused(verb, scratch)
        refused(verb, scratch / "nowhere")
    assert "no such directory" in refused("status", scratch / "nowhere")


# ---- status and wait ----------------------------------------------------------------------------


def ageless(text):
    """Without what goes on while one looks."""
    return re.sub(r"\d+ s old", "N s old", text)


def test_status(bucket, run):
    """The three forms agree with the files of the mount."""
    with Mount(bucket) as m:
        m.wait_version(5)
        text = ageless(mounted.run("status", m.at).stdout)
        line = ageless(mounted.run("status", "--line", m.at).stdout)
        assert text.startswith(line) and line.startswith("version 5 = anchor 1 + 4 deltas, ")
        have = json.loads(mounted.run("status", "--json", m.at).stdout)
        assert have["version"] == 5 and have["source"] == str(bucket)
        assert line == ageless(have["line"] + "\n")


def test_status_of_a_dead_mount(bucket, run, scratch):
    """The process has gone: the sentence says so, and what helps."""
    with Mount(bucket, work=scratch / "work", expect_exit=-signal.SIGKILL) as m:
        m.wait_version(5)
        m.process.kill()
        m.process.wait()
        said = refused("status", m.at)
        assert "dead" in said and "umount" in said
        refused("wait", m.at)
        refused("log", m.at)


def comes_not(m, says, *words):
    """wait gives up, and says what did not come; or, of a mount that stood still as long, that it
    does not answer."""
    def tried():
        done = mounted.run("wait", m.at, *words, check=False)
        assert done.returncode == 3 and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert says in done.stderr or "the mount does not answer" in done.stderr, done
        return says in done.stderr

    wait_until(tried, f'it is never said that "{says}"')


def test_wait(bucket):
    """wait sleeps until the number is there; 3 when it does not come; the held and the newest."""
    models.write_companions(bucket)
    states = models.states(91, 3, models.SMALL)
    run = trl.Run(bucket, "v3")
    with Mount(bucket) as m:
        comes_not(m, "no version came", "--timeout", "0.05")
        run.sync(states[0])
        assert mounted.run("wait", m.at).stdout == "1\n"
        with background("wait", m.at, "--after", 1) as waiting:
            run.sync(states[1])
            assert waiting.communicate(timeout=mounted.WAIT)[0] == "2\n"
        m.control("hold 1000")
        run.sync(states[2])
        assert mounted.run("wait", m.at, "--version", "3").stdout == "3\n"
        assert mounted.run("wait", m.at, "--current").stdout == "2\n"
        comes_not(m, "version 3 did not come", "--current", "--version", 3, "--timeout", "50ms")


@pytest.mark.parametrize("how", ["killed", "detached"])
def test_wait_ends_with_the_mount(how, bucket, run):
    """A mount that goes away ends the wait with a sentence; one that is detached ends with it."""
    with Mount(bucket) as m:
        m.wait_version(5)
        with background("wait", m.at, "--after", 5) as waiting:
            wait_until(lambda: holds_open(waiting, "/newest"), "wait does not wait")
            if how == "killed":
                m.process.send_signal(signal.SIGTERM)
            else:
                mounted.run("umount", "--lazy", m.at)
            said = waiting.communicate(timeout=mounted.WAIT)[1]
            assert waiting.returncode == 1 and "went away" in said
        m.process.wait(timeout=mounted.WAIT)


# ---- log ----------------------------------------------------------------------------------------


def test_log(bucket, run):
    """One line per version, newest first; a damaged one with its sentence."""
    cut(run.path(False, 4))
    lines = mounted.run("log", bucket).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["5", "4", "3", "2", "1"]
    assert " blocked" in lines[0] and " broken" in lines[1] and " ok" in lines[2]
    assert "deltas/step_000004.safetensors: " in lines[1]
    assert "anchor" in lines[4] and "100%" in lines[4]
    newest = mounted.run("log", "-n", 2, bucket).stdout.splitlines()
    assert [line.split()[0] for line in newest] == ["5", "4"]


def test_log_json(bucket, run):
    """The numbers of --json are those of the objects."""
    have = json.loads(mounted.run("log", "--json", bucket).stdout)
    assert [v["version"] for v in have] == [5, 4, 3, 2, 1]
    elements = sum(t.data.size for t in run.snapshot.values())
    for v in have:
        path = bucket / v["object"]
        assert v["bytes"] == path.stat().st_size and v["state"] == "ok" and v["problem"] is None
        assert abs(v["mtime"] - path.stat().st_mtime) < 1e-3
        _, header, _ = st.split(path.read_bytes())
        meta = header["__metadata__"]
        assert v["changed"] == int(meta["total_changed_elements"])
        assert v["elements"] == elements
        assert v["density"] == pytest.approx(v["changed"] / elements)
    assert len({v["lineage"] for v in have}) == 1
    assert [v["kind"] for v in have] == ["delta"] * 4 + ["anchor"]
    assert json.loads(mounted.run("log", "--json", "-n", "1", bucket).stdout) == have[:1]


def test_log_of_a_mount(bucket, run):
    """A mount point stands for its source, with the mount's own options."""
    with Mount(bucket, args=["--times", "ignore"]) as m:
        m.wait_version(5)
        assert (json.loads(mounted.run("log", "--json", m.at).stdout)
                == json.loads(mounted.run("log", "--json", "--times", "ignore", bucket).stdout))


def test_log_of_nothing(scratch, bucket):
    """An empty directory is an empty log; what cannot be read is an error."""
    done = mounted.run("log", bucket)
    assert done.stdout == "" and "no version yet" in done.stderr
    assert json.loads(mounted.run("log", "--json", bucket).stdout) == []
    assert "nowhere" in refused("log", scratch / "nowhere")
    assert "a source is a directory" in refused("log", "gs://org/name")
    assert "--base" in refused("log", bucket, "--base", scratch / "nowhere")
    (scratch / "file").write_text("")
    assert "--cache-dir" in refused("log", bucket, "--cache-dir", scratch / "file")


def test_log_colours(bucket, run):
    """Colours on a terminal and nowhere else."""
    assert "\x1b[" in on_terminal("log", bucket)
    assert "\x1b[" not in mounted.run("log", bucket).stdout


# ---- inspect ------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["v1.0", "v1.3", "v2-raw", "v3"])
def test_inspect(generation, bucket):
    """Every object of a run: what --json says is what a reader of the file finds."""
    run = trl.Run(bucket, generation)
    models.publish(run, models.states(92, 4))
    for path in sorted(bucket.rglob("*.safetensors")):
        have = json.loads(mounted.run("inspect", "--json", path).stdout)
        _, header, _ = st.split(path.read_bytes())
        assert have["metadata"] == header.pop("__metadata__")
        assert have["size"] == path.stat().st_size
        want = oracle.read_object(1, path)
        assert sorted(t["name"] for t in have["tensors"]) == sorted(want.parts)
        for t in have["tensors"]:
            part = want.parts[t["name"]]
            if t["kind"] == "full":
                assert oracle.is_full(part) and tuple(t["shape"]) == tuple(part.shape)
                continue
            positions = [int(p) for p in part.positions]
            gaps = [b - a - 1 for a, b in zip([-1, *positions], positions)]
            assert t["changed"] == len(positions)
            assert (t["first"], t["last"]) == (positions[0], positions[-1])
            assert (t["min_gap"], t["max_gap"]) == (min(gaps), max(gaps))
        text = mounted.run("inspect", "--tensors", path).stdout
        for t in have["tensors"]:
            assert f"\n  {t['name']}  " in text


def test_inspect_others(bucket, run, scratch):
    """A plain checkpoint, a file of the mount, a patch of the cache, one with many tensors."""
    many = {f"t{i:03}": st.make("BF16", (i,), np.zeros(i, "<u2")) for i in range(40)}
    (scratch / "many").write_bytes(st.dump(many, {"format": "pt"}))
    text = mounted.run("inspect", scratch / "many").stdout
    assert "tensors: 40" in text and "t039" in text and "t001" not in text
    assert "28 smaller ones" in text
    assert "t001" in mounted.run("inspect", "-t", scratch / "many").stdout
    with Mount(bucket) as m:
        m.wait_version(5)
        have = json.loads(mounted.run("inspect", "--json", m.at / MODEL).stdout)
        assert have["kind"] == "full" and have["metadata"] == {"format": "pt"}
        patches = list((m.work / "cache").rglob("*.patch"))
        assert patches
        for patch in patches:
            have = json.loads(mounted.run("inspect", "--json", patch).stdout)
            assert have["kind"] == "patch" and have["totals"]["changed"] > 0
            assert all(t["changed"] <= t["numel"] for t in have["tensors"])
            blob = bytearray(patch.read_bytes())
            blob[-9] ^= 1
            (scratch / "bad.patch").write_bytes(blob)
            refused("inspect", scratch / "bad.patch")


def test_inspect_bad_files(scratch):
    """A damaged file is one sentence and exit code 1, never half a description."""
    def said(blob):
        path = scratch / "object"
        path.write_bytes(blob)
        line = refused("inspect", path)
        assert line.startswith(f"{path}: ")
        return line

    good = trl.delta_blob(2, {"w": ([1, 5, 9], "BF16", [1, 2, 3])}, "v2-raw")
    path = scratch / "good"
    path.write_bytes(good)
    mounted.run("inspect", path)
    for blob in (b"", b"abc", good[:-1], good[:30], good + b"x", b"\xff" * 64):
        said(blob)
    unsorted = trl.delta_blob(2, {"w": ([5, 1, 9], "BF16", [1, 2, 3])}, "v2-raw")
    assert '"w"' in said(unsorted) and "not above 5" in said(unsorted)
    repeated = trl.delta_blob(2, {"w": ([1, 1, 9], "BF16", [1, 2, 3])}, "v2-raw")
    assert "repeats" in said(repeated)
    assert "nvcomp_cascaded" in said(trl.delta_blob(2, {"w": ([1], "BF16", [1])},
                                                    encoding="nvcomp_cascaded"))
    assert "directory" in refused("inspect", scratch)
    (scratch / "index.json").write_text('{"weight_map": {}}')
    assert "is JSON" in refused("inspect", scratch / "index.json")
    assert "regular" in refused("inspect", "/dev/null")
    refused("inspect", scratch / "nowhere")


# ---- export -------------------------------------------------------------------------------------


def test_export_every_version(bucket, scratch):
    """An exported directory is the version's tree, byte for byte, and leaves nothing beside it."""
    models.write_companions(bucket)
    models.publish(trl.Run(bucket, "v1.3"), models.states(93, 5, models.SMALL))
    want = oracle.Oracle(bucket)
    for number in want.numbers():
        out = scratch / f"out-{number}"
        done = mounted.run("export", bucket, "-o", out, "--version", number)
        assert done.stdout == f"{number}\n" and done.stderr.count("\n") == 1
        checks.assert_tree(out, want.files(number))
    done = mounted.run("export", bucket, "-q", "-o", scratch / "newest")
    assert done.stderr == "" and done.stdout == f"{want.numbers()[-1]}\n"
    assert not [name for name in os.listdir(scratch) if ".tmp." in name]


def test_export_layouts(bucket, scratch):
    """--shard-size and --base as a mount has them; a mount point stands for its options."""
    states = models.states(94, 3, models.SMALL)
    models.publish(trl.Run(bucket, "v3"), states)
    base = models.write_base(scratch / "base", states[0], shards=2)
    mounted.run("export", bucket, "-o", scratch / "a", "--shard-size", 4096)
    checks.assert_tree(scratch / "a", oracle.Oracle(bucket, shard_size=4096).files(3))
    want = oracle.Oracle(bucket, base=base)
    mounted.run("export", bucket, "-o", scratch / "b", "--base", base)
    checks.assert_tree(scratch / "b", want.files(3))
    mounted.run("export", bucket, "-o", scratch / "c", "--base", base, "--version", 0)
    checks.assert_tree(scratch / "c", want.files(0))
    with Mount(bucket, base=base) as m:
        m.wait_version(3)
        mounted.run("export", m.at, "-o", scratch / "d", "--version", 2)
        checks.assert_tree(scratch / "d", want.files(2))


def test_export_into_what_is_there(bucket, run, scratch):
    """An empty directory is taken; a checkpoint only with --force; anything else never."""
    want = oracle.Oracle(bucket)
    out = scratch / "out"
    out.mkdir()
    mounted.run("export", bucket, "-o", f"{out}/", "--version", 2)
    assert "--force" in refused("export", bucket, "-o", out)
    checks.assert_tree(out, want.files(2))
    (out / "stale.txt").write_text("of before")
    mounted.run("export", bucket, "-o", out, "--force")
    checks.assert_tree(out, want.files(5))
    home = scratch / "home"
    (home / "deep").mkdir(parents=True)
    (home / "deep" / "letter").write_text("dear")
    assert "no checkpoint" in refused("export", bucket, "-o", home, "--force")
    assert (home / "deep" / "letter").read_text() == "dear"
    (scratch / "file").write_text("x")
    assert "not a directory" in refused("export", bucket, "-o", scratch / "file", "--force")
    refused("export", bucket, "-o", scratch / "no" / "parent")
    assert sorted(os.listdir(scratch)) == ["bucket", "file", "home", "out", "tool-cache"]


def test_export_of_what_is_not_whole(bucket, run, scratch):
    """The newest whole one is taken; a broken one that is asked for is refused with its reason."""
    cut(run.path(False, 5))
    out = scratch / "out"
    assert "step_000005" in refused("export", bucket, "-o", out, "--version", 5)
    assert "99" in refused("export", bucket, "-o", out, "--version", 99)
    assert not out.exists()
    assert mounted.run("export", bucket, "-o", out).stdout == "4\n"
    cut(run.path(True, 1))
    assert "step_000001" in refused("export", bucket, "-o", scratch / "none")


def test_export_interrupted(bucket, scratch):
    """SIGTERM in the middle: exit code 1, a sentence, and nothing left behind."""
    # One anchor that is so large that nobody has written it before we look, and takes no room.
    data = 4 << 40
    header = json.dumps({"w": {"dtype": "BF16", "shape": [data // 2],
                               "data_offsets": [0, data]}}).encode()
    path = bucket / "anchors" / "step_000001.safetensors"
    path.parent.mkdir()
    with open(path, "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate(8 + len(header) + data)
    os.utime(path, (time.time() - 100,) * 2)
    with background("export", bucket, "-o", scratch / "out") as process:
        wait_until(lambda: list(scratch.glob("out.tmp.*/model.safetensors")), "it does not begin")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=mounted.WAIT)[1]
    assert process.returncode == 1 and "interrupted" in said and said.count("\n") == 1
    assert not list(scratch.glob("out*"))


def test_export_progress(bucket, run, scratch):
    """A bar on a terminal; one line of summary remains."""
    text = on_terminal("export", bucket, "-o", scratch / "out")
    assert "export " in text and "%" in text and "\r" in text
    assert text.rstrip().split("\r")[-1].strip() == "5" and "written to" in text


# ---- mount and its paths ------------------------------------------------------------------------


def test_relative_paths(bucket, run, scratch):
    """The daemon leaves its directory; paths given relative to it still work."""
    (scratch / "mnt").mkdir()
    mounted.run("mount", "--cache-dir", "cache", "./bucket", "mnt/", cwd=scratch)
    try:
        mounted.run("wait", "mnt", "--version", 5, cwd=scratch)
        have = json.loads(mounted.run("status", "--json", "mnt", cwd=scratch).stdout)
        assert have["source"] == str(bucket) and have["mountpoint"] == str(scratch / "mnt")
        assert (scratch / "cache").is_dir()
        assert (reading.read_file(scratch / "mnt" / MODEL)
                == oracle.Oracle(bucket).files(5)[MODEL])
    finally:
        mounted.run("umount", "mnt", cwd=scratch)
