"""Several runs in one source: a directory each, that come and go, with a single run's bytes."""

import json
import os
import shutil
import signal
import subprocess
import threading

import pytest

from lib import (anyformat, checks, models, mounted, oracle, passthrough, places, randomrun,
                 reading, trl)
from lib import safetensors_py as st
from lib.mounted import Mount, wait_until

pytestmark = pytest.mark.usefixtures("own_cache")

STATES = models.states(11, 8, models.SMALL)
ADAPTER = b"adapter" * 1000
MODEL = "model.safetensors"


def begin(root, states, generation="v3"):
    """A run of TRL's with companions; its writer."""
    models.write_companions(root)
    return models.publish(trl.Run(root, generation, interval=4), states)


def strangers(root):
    """What is no run's, at the top and beside the runs."""
    for path, data in {"tokenizer.json": b"{}", "notes/today.txt": b"it goes well",
                       "lora/adapter_model.safetensors": ADAPTER, "lora/adapter_config.json": b"{}",
                       "team/optimizer.pt": b"\x80state", "team/v1/log": b"a line"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def wait_there(path):
    """A run, as such: before its first anchor it is a directory like any."""
    wait_until((path / ".weightfs").is_dir, f"{path} does not come")


def same_tensors(top, state):
    """Every tensor of a version, to the byte."""
    have = {}
    for path in top.glob("*.safetensors"):
        have.update(st.load_file(path)[0])
    assert {n: t.data.tobytes() for n, t in have.items()} == \
        {n: t.data.tobytes() for n, t in state.items()}, top


def test_too_many(bucket):
    """As many as there are files for; the others are named, and come when one has gone."""
    names = [f"run{i:02}" for i in range(12)]
    for name in names:
        begin(bucket / name, STATES[:1])
    with Mount(bucket, prefix=["prlimit", "--nofile=128:128"]) as m:
        shown = [one["path"] for one in m.status()["runs"] if one["shown"]]
        assert shown == names[:8] and sorted(os.listdir(m.at)) == shown
        others = [one["trouble"] for one in m.status()["runs"] if not one["shown"]]
        assert len(others) == 4 and all("mount this one by itself" in one for one in others)
        assert m.log_text().count("mount this one by itself") == 1
        for name in shown:
            assert m.run(name).version() == 1
        shutil.rmtree(bucket / names[0])
        wait_until((m.at / names[8] / ".weightfs").is_dir, "there is room for another one")
        assert not (m.at / names[9]).exists()


def test_every_byte(bucket):
    """Versions of all generations of TRL's, while they go on; what is no run's is as it lies."""
    other = strangers(bucket)
    names = {f"run{i}" if i % 2 else f"team/{'deep/' * (i % 4 // 2)}run{i}": generation
             for i, generation in enumerate(sorted(trl.GENERATIONS))}
    runs = {name: begin(bucket / name, STATES[:3], g) for name, g in names.items()}
    with Mount(bucket) as m:
        assert sorted(os.listdir(m.at)) == \
            sorted(["lora", "notes", "team", "tokenizer.json"] + [n for n in names if "/" not in n])
        for number in (0, 1):
            for name, run in runs.items():
                if number:
                    models.publish(run, STATES[3:5])
                want, one = oracle.Oracle(bucket / name), m.run(name)
                one.wait_version(want.numbers()[-1])
                for version in want.numbers():
                    one.control(f"pin {version}")
                    checks.assert_tree(one.tree(version), want.files(version), name)
                checks.assert_tree(one.at, want.files(one.version()), name)
                assert one.status()["source"] == str(bucket / name)
        for path, data in other.items():
            assert (m.at / path).read_bytes() == data
            assert (m.dot / "bucket" / path).read_bytes() == data
        told = m.status()
        assert [one["path"] for one in told["runs"]] == sorted(names)
        assert all(one["version"] == m.run(one["path"]).version() for one in told["runs"])
        inodes = [path.stat().st_ino for path in m.at.rglob("*")]
        assert len(inodes) == len(set(inodes))


def test_every_format(bucket, scratch):
    """One run of each format that needs no base, in one mount."""
    writers = {}
    for name, kind in anyformat.WRITERS.items():
        (bucket / name).mkdir()
        writer = kind(bucket / name, scratch / name, 5)
        writer.write(randomrun.make(5, kind.dtypes))
        if writer.mount_args:
            shutil.rmtree(bucket / name)
        else:
            writers[name] = writer
    assert len(writers) > 5
    with Mount(bucket, keep=64) as m:
        assert sorted(os.listdir(m.at)) == sorted(writers)
        for name, writer in writers.items():
            one = m.run(name)
            one.wait_version(max(writer.states))
            wait_until(lambda o=one, w=writer: [v for v in o.versions() if v] == sorted(w.states),
                       lambda o=one: o.status())
            for number, state in writer.states.items():
                same_tensors(one.tree(number), state)


def test_coming_and_going(bucket):
    """A run appears, is deleted while it is read, and comes back as another one."""
    begin(bucket / "a", STATES[:2])
    with Mount(bucket) as m:
        before = (m.at / "a").stat().st_ino
        begin(bucket / "later" / "b", STATES[:1])
        wait_there(m.at / "later" / "b")
        m.run("later/b").wait_version(1)
        want = oracle.Oracle(bucket / "a").files(2)[MODEL]
        fd = os.open(m.at / "a" / MODEL, os.O_RDONLY)
        ino, stop, seen = os.fstat(fd).st_ino, threading.Event(), []

        def reads():
            while not stop.is_set():
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                seen.append(os.pread(fd, len(want) + 1, 0) == want)

        thread = threading.Thread(target=reads)
        thread.start()
        with subprocess.Popen([mounted.BINARY, "wait", "--after", "2", m.at / "a"],
                              stderr=subprocess.PIPE, text=True) as wait:
            shutil.rmtree(bucket / "a")
            wait_until(lambda: not (m.at / "a").exists(), "a does not go")
            said = wait.communicate(timeout=mounted.WAIT)[1]
            assert wait.returncode == 1 and ("this one is gone" in said or "no such" in said), said
        assert os.listdir(m.at) == ["later"]
        assert [one["path"] for one in m.status()["runs"]] == ["later/b"]
        begin(bucket / "a", STATES[4:6])
        wait_there(m.at / "a")
        m.run("a").wait_version(2)
        again = oracle.Oracle(bucket / "a").files(2)
        checks.assert_tree(m.at / "a", again)
        assert (m.at / "a").stat().st_ino != before
        assert os.fstat(fd).st_ino == ino != (m.at / "a" / MODEL).stat().st_ino
        stop.set()
        thread.join()
        assert seen and all(seen)
        os.close(fd)
        shutil.rmtree(bucket / "later")
        wait_until(lambda: os.listdir(m.at) == ["a"], "later does not go")
        checks.assert_tree(m.at / "a", again)


def test_an_empty_source(bucket):
    """What it is to be shows with its first objects: until then the status says so."""
    with Mount(bucket) as m:
        assert "its first objects will show" in (m.dot / "status").read_text()
        with subprocess.Popen([mounted.BINARY, "wait", m.at], stderr=subprocess.PIPE,
                              text=True) as wait:
            begin(bucket / "x" / "one", STATES[:2])
            wait_there(m.at / "x" / "one")
            said = wait.communicate(timeout=mounted.WAIT)[1]
            assert wait.returncode == 1 and "several runs" in said, said
        m.run("x/one").wait_version(2)
        checks.assert_tree(m.at / "x" / "one", oracle.Oracle(bucket / "x" / "one").files(2))
        assert not (m.dot / "version").exists() and not (m.dot / "versions").exists()
        # Whatever comes to the top now is shown as it lies, and said.
        begin(bucket, STATES[:1])
        wait_until((m.at / "anchors").is_dir, "anchors does not come")
        wait_until(lambda: os.listdir(m.at / "anchors") == os.listdir(bucket / "anchors"),
                   "its object does not come")
        wait_until(lambda: "--runs one" in (m.dot / "status").read_text(), "it is not said")


def test_forced(bucket):
    """--runs one: files in directories, as before; several: also where there is nothing yet."""
    with Mount(bucket, args=["--runs", "several"]) as m:
        assert not (m.dot / "newest").exists()
        assert "waiting: no run" in m.status()["line"]
        begin(bucket / "r", STATES[:1])
        wait_there(m.at / "r")
        m.run("r").wait_version(1)
    with Mount(bucket, args=["--runs", "one"]) as m:
        assert m.version() is None and m.status()["state"] == "waiting"
        assert (m.at / "r" / "config.json").exists()
        assert not (m.at / "r" / ".weightfs").exists()
    assert '"auto", "one" or "several"' in mounted.run("mount", "--runs", "two", bucket, bucket,
                                                      check=False).stderr


def test_one_base(bucket, scratch):
    """Runs that began from the same checkpoint, which has what they do not upload."""
    spec = {**models.SMALL, "never.uploaded": ("BF16", (7, 9))}
    states = models.states(21, 4, spec, skip=("never.uploaded",))
    base = models.write_base(scratch / "base", states[0], shards=2)
    for name, part in (("a", states[1:3]), ("t/b", states[3:])):
        run = trl.Run(bucket / name, "v3", interval=4)
        for state in part:
            run.sync({n: t for n, t in state.items() if n != "never.uploaded"})
    with Mount(bucket, base=base) as m:
        for name in ("a", "t/b"):
            want, one = oracle.Oracle(bucket / name, base=base), m.run(name)
            one.wait_version(want.numbers()[-1])
            for version in want.numbers():
                one.control(f"pin {version}")
                checks.assert_tree(one.tree(version), want.files(version))
    shutil.rmtree(bucket)
    bucket.mkdir()
    with Mount(bucket, base=base) as m:
        assert m.version() == 0


def test_a_run_at_the_top(bucket):
    """Then it is the only one, whatever lies in directories."""
    begin(bucket, STATES[:2])
    begin(bucket / "old", STATES[3:4])
    with Mount(bucket) as m:
        m.wait_version(2)
        assert not (m.at / "old" / ".weightfs").exists()


@pytest.mark.parametrize("text", ["run7", "", "weight_v000001"])
def test_latest_at_the_top(text, bucket):
    """It says where the one run is; of somebody else's, status and tools say what to do."""
    begin(bucket / "a", STATES[:2])
    (bucket / "latest").write_text(text)
    with Mount(bucket) as m:
        m.wait_problem("latest", "--runs several")
        assert "--runs several" in m.status()["line"]
        done = mounted.run("export", "-o", bucket.parent / "out", bucket, check=False)
        assert done.returncode == 1 and "--runs several" in done.stderr
    with Mount(bucket, args=["--runs", "several"]) as m:
        m.run("a").wait_version(2)
        assert (m.at / "latest").read_text() == text


def test_directories_that_cannot_be_read(bucket):
    """A run may lie in them: that is said, until they can be read."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to drop the rights that read everything")
    begin(bucket / "a", STATES[:1])
    begin(bucket / "team" / "b", STATES[:1])
    os.chown(bucket / "team" / "b", 12345, 12345)
    (bucket / "team" / "b").chmod(0)
    (bucket / "private.txt").write_text("not ours")
    (bucket / "private.txt").chmod(0)
    os.chown(bucket / "private.txt", 12345, 12345)
    with Mount(bucket, prefix=["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]) as m:
        wait_until(lambda: "1 directory cannot be listed, such as team/b" in
                   (m.status()["unreadable"] or ""), m.status)
        assert "such as team/b (permission denied)" in (m.dot / "status").read_text()
        wait_until(lambda: "such as team/b" in m.log_text(), m.log_text)
        (bucket / "team" / "b").chmod(0o755)
        wait_there(m.at / "team" / "b")
        wait_until(lambda: m.status()["unreadable"] is None, m.status)


def test_tools(bucket, scratch):
    """Verbs take MOUNTPOINT/RUN; of the source, and above the runs, they say what there is."""
    begin(bucket / "a", STATES[:3])
    run = begin(bucket / "t" / "b", STATES[:2])
    with Mount(bucket) as m:
        for place in (bucket, m.at):
            for verb in ("log", "verify"):
                done = mounted.run(verb, place, check=False)
                assert done.returncode == 1 and "holds 2 runs: a, t/b; name one" in done.stderr
        done = mounted.run("export", bucket, "-o", scratch / "out", check=False)
        assert done.returncode == 1 and "holds 2 runs" in done.stderr, done.stderr
        for words in (["wait", m.at], ["pin", m.at, "1"], ["hold", m.at]):
            done = mounted.run(*words, check=False)
            assert done.returncode == 1 and f"{m.at}/RUN" in done.stderr, done.stderr
        done = mounted.run("umount", m.at / "a", check=False)
        assert done.returncode == 1 and f"weightfs umount {m.at}" in done.stderr, done.stderr
        lines = mounted.run("status", m.at).stdout.splitlines()
        assert lines[0] == f"2 runs in {bucket}"
        assert lines[1].startswith("  a: version 3 = ") and lines[2].startswith("  t/b: version 2")
        assert mounted.run("status", "--line", m.at / "t" / "b").stdout.startswith("version 2")
        assert mounted.run("wait", m.at / "a").stdout == "3\n"
        assert len(mounted.run("log", m.at / "a").stdout.splitlines()) == 3
        mounted.run("verify", m.at / "t" / "b")
        mounted.run("pin", m.at / "a", "1")
        assert 1 in m.run("a").versions()
        mounted.run("hold", m.at / "t" / "b")
        run.sync(STATES[2])
        assert m.control("refresh") == f"ok: 2 runs in {bucket}"
        assert (m.run("t/b").dot / "newest").read_text() == "3\n" and m.run("t/b").version() == 2
        mounted.run("release", m.at / "t" / "b")
        m.run("t/b").wait_version(3)
        text = (m.dot / "metrics").read_text()
        assert 'weightfs_version{run="t/b"} 3' in text and 'weightfs_version{run="a"} 3' in text
        wait_until(lambda: "t/b: version 3 of lineage" in m.log_text(), m.log_text)
        path = scratch / "path"
        mounted.run("follow", m.at / "a", "--once", "--exec", f"echo $WEIGHTFS_PATH > {path}")
        assert path.read_text().strip() == f"{m.at}/a/.weightfs/versions/3"


def test_nothing_is_published_above(bucket, scratch):
    """A run at the top would hide the others, so that has to be said."""
    begin(bucket / "a", STATES[:1])
    checkpoint = models.write_base(scratch / "checkpoint", STATES[0])
    done = mounted.run("publish", checkpoint, bucket, "--anchor", "--version", "1", check=False)
    assert done.returncode == 1 and "holds runs in directories (a)" in done.stderr, done.stderr
    mounted.run("publish", checkpoint, bucket / "b", "--anchor", "--version", "1")
    with Mount(bucket) as m:
        assert sorted(os.listdir(m.at)) == ["a", "b"]


def test_loads_are_apart(bucket):
    """Who loads one run by plain path holds that one only."""
    writers = {name: begin(bucket / name, STATES[:1]) for name in ("a", "b")}
    with Mount(bucket, settle=0.3) as m:
        with open(m.at / "a" / MODEL, "rb") as f:
            assert f.read(8)
            for writer in writers.values():
                writer.sync(STATES[1])
            m.run("b").wait_version(2)
            wait_until(lambda: (m.run("a").dot / "newest").read_text() == "2\n",
                       lambda: m.run("a").status())
            assert m.run("a").version() == 1
            assert m.run("a").status()["loads"] and not m.run("b").status()["loads"]
        m.run("a").wait_version(2)


@pytest.mark.parametrize("options", [["--warm"], ["--materialize", "always"]])
def test_each_is_prepared(options, bucket):
    """Warmed, or written out where the kernel passes files through, run by run."""
    if "always" in options and passthrough.why_not():
        pytest.skip(passthrough.why_not())
    writers = {name: begin(bucket / name, STATES[:1]) for name in ("a", "t/b")}
    with Mount(bucket, args=options) as m:
        for name, writer in writers.items():
            one, want = m.run(name), oracle.Oracle(bucket / name)
            serving = one.status()["serving"]
            assert serving["inotify"] == m.run("a").status()["serving"]["inotify"]
            writer.sync(STATES[1])
            one.wait_version(2)
            checks.assert_tree(one.at, want.files(2))
            wait_until(lambda o=one: "version 2" in json.dumps(o.status()["serving"]) or
                       options[0] != "--warm", lambda o=one: o.status())
        shutil.rmtree(bucket / "t")
        wait_until(lambda: os.listdir(m.at) == ["a"], "t does not go")


class Remote:
    """Runs in one place over the network."""

    def __init__(self, place, root):
        self.place, self.root = place, root

    def mount(self, work=None, *args):
        """With listings that are always asked for."""
        return Mount(self.place.url, work=work, args=[
            *self.place.args, "--times", "ignore", *args])


@pytest.fixture(params=sorted(places.KINDS))
def remote(request, scratch, monkeypatch):
    """Each kind of place."""
    with places.KINDS[request.param]() as place:
        places.enter(place, monkeypatch)
        yield Remote(place, scratch / "source")


def stored(m):
    """Is all on disk that came?"""
    told = m.status()["blocks"]
    return told["stored_bytes"] == told["fetched_bytes"]


def test_killed_and_offline(remote, scratch):
    """Every byte from each kind of place; killed, a warm cache has all runs without the network."""
    names = ["a", "team/b"]
    runs = {name: begin(remote.root / name, STATES[:2]) for name in names}
    strangers(remote.root)
    remote.place.upload(remote.root)
    want = {n: oracle.Oracle(remote.root / n, trust_times=False) for n in names}
    work = scratch / "work"
    with pytest.raises(AssertionError, match="exit code"):
        with remote.mount(work) as m:
            for name, run in runs.items():
                m.run(name).wait_version(2)
                run.sync(STATES[2])
            remote.place.upload(remote.root)
            begin(remote.root / "c", STATES[:1])
            remote.place.upload(remote.root)
            wait_there(m.at / "c")
            for name in names:
                m.run(name).wait_version(3)
                for version in (1, 2, 3):
                    m.run(name).control(f"pin {version}")
                    checks.assert_tree(m.run(name).tree(version), want[name].files(version))
            assert (m.at / "lora" / "adapter_model.safetensors").read_bytes() == ADAPTER
            rows = mounted.run("log", m.at / "team" / "b").stdout.splitlines()
            assert len(rows) == 3 and all(row.endswith("ok") for row in rows), rows
            wait_until(lambda: stored(m), lambda: m.status()["blocks"])
            m.process.send_signal(signal.SIGKILL)
            m.process.wait()
    remote.place.gone()
    with remote.mount(work) as m:
        for name in names:
            m.run(name).wait_version(3)
            checks.assert_tree(m.run(name).at, want[name].files(3))
            assert "offline" in m.run(name).status()["line"]
        assert (m.at / "lora" / "adapter_model.safetensors").read_bytes() == ADAPTER
        assert sorted(os.listdir(m.at / "team")) == ["b", "optimizer.pt", "v1"]
        remote.place.back()
        begin(remote.root / "d", STATES[:1])
        remote.place.upload(remote.root)
        wait_there(m.at / "d")
        m.run("d").wait_version(1)
        checks.assert_tree(m.at / "d", oracle.Oracle(remote.root / "d").files(1))


def test_equal_anchors_are_fetched_once(scratch, monkeypatch):
    """Two runs that began from the same checkpoint: its bytes come once, whatever it is called."""
    root = scratch / "source"
    spec = {"big": ("BF16", (1024, 1024))}
    _, state = models.start(3, spec)
    models.write_companions(root)
    blob = st.dump(state, {"format": "pt"})
    for name in ("a", "b"):
        trl.put(root / name / "anchors" / f"step_00000{1 + (name == 'b')}.safetensors", blob)
    with places.S3Place() as place:
        places.enter(place, monkeypatch)
        place.upload(root)
        with Mount(place.url, args=[*place.args, "--times", "ignore"]) as m:
            for name in ("a", "b"):
                assert reading.read_file(m.at / name / MODEL)[-len(blob) // 2:] == \
                    blob[-len(blob) // 2:]
        given = sum((last or 0) + 1 - first for target, first, last in place.ranges(place.data)
                    if "anchors" in target)
        assert given < 1.3 * len(blob), (given, len(blob))


def test_fifty_runs(bucket):
    """Threads and memory stay within bounds; all are there when the mount can be used."""
    states = models.states(12, 2, {"w": ("BF16", (64, 64))})
    for i in range(50):
        models.publish(trl.Run(bucket / f"run{i:02d}", "v3", interval=4), states)
    with Mount(bucket) as m:
        assert len(os.listdir(m.at)) == 50
        for i in range(0, 50, 7):
            assert m.run(f"run{i:02d}").version() == 2
        fields = dict(line.split(":", 1) for line in open(f"/proc/{m.process.pid}/status",
                                                          encoding="utf-8"))
        threads, rss = int(fields["Threads"]), int(fields["VmRSS"].split()[0])
        print(f"50 runs: {threads} threads, {rss} kB")
        assert threads < 50 * 4 + 60
        if mounted.VARIANT == "release":
            assert rss < 200000
