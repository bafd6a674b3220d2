"""Starting and stopping: daemon, ready pipe, signals, umount, stale mount points, other users."""

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import uuid

import pytest

from lib import checks, models, mounted, oracle, reading, trl
from lib.mounted import Mount, is_mounted, wait_until

MODEL = "model.safetensors"


@pytest.fixture
def run(bucket):
    """A bucket with three versions."""
    models.write_companions(bucket)
    return models.publish(trl.Run(bucket, "v3"), models.states(80, 3, models.SMALL))


@pytest.fixture
def point(scratch):
    """A mount point that is unmounted again, whatever happened."""
    path = scratch / "mnt"
    path.mkdir()
    yield path
    if is_mounted(path):
        mounted.unmount(path)


def mount(bucket, point, *args, **kwargs):
    """Mounts in the background with a cache of its own."""
    return mounted.run("mount", "--poll", 0.1, "--settle", 0, "--cache-dir",
                       point.parent / "cache", *args, bucket, point, **kwargs)


def daemon_pid(point):
    """The process that serves a mount point (found by its command line)."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
                if os.fsencode(str(point)) in words and b"mount" in words:
                    return int(entry)
    return None


def gone(pid):
    """Has this process ended, with all of its threads?  Whose child it is now may never ask."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            state = f.read().rsplit(")", 1)[1].split()[0]
        return state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return True


def wait_shown(point, number):
    """Waits until a background mount shows a version."""
    mounted.run("wait", point, "--version", number, "--timeout", mounted.WAIT,
                timeout=2 * mounted.WAIT)


# ---- daemon -------------------------------------------------------------------------------------


def test_daemon_and_umount(bucket, run, point):
    """`mount` returns when the mount is usable, `umount` when it and its daemon are gone."""
    done = mount(bucket, point)
    assert is_mounted(point) and done.stderr == ""
    wait_shown(point, 3)
    checks.assert_tree(point, oracle.Oracle(bucket).files(3))
    pid = daemon_pid(point)
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    assert int(fields[3]) != os.getsid(0), "still in the terminal's session"
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    mounted.run("umount", point)
    assert not is_mounted(point)
    wait_until(lambda: gone(pid), "the daemon stays")
    assert mounted.run("umount", point, check=False).returncode == 1


def test_umount_while_busy(bucket, run, point):
    """An open file keeps the mount; the refusal says why; then it goes."""
    mount(bucket, point)
    wait_shown(point, 3)
    with open(point / MODEL, "rb") as f:
        done = mounted.run("umount", point, check=False)
        assert done.returncode == 1 and "--lazy" in done.stderr
        assert is_mounted(point) and f.read(8)
    mounted.run("umount", point)


def refused(*args, code=1, **kwargs):
    """A start that must fail: its one line on the terminal."""
    done = mounted.run(*args, check=False, **kwargs)
    assert done.returncode == code, done
    assert done.stderr.startswith("weightfs: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("foreground", [[], ["-f"]])
def test_bad_starts(foreground, bucket, run, point, scratch):
    """What cannot be mounted is said on the terminal in one line, also by a daemon."""
    nowhere, a_file = scratch / "nowhere", scratch / "file"
    a_file.write_text("x")
    args = ["mount", *foreground, "--cache-dir", scratch / "cache"]
    assert "nowhere" in refused(*args, nowhere, point)
    assert "file" in refused(*args, a_file, point)
    assert "nowhere" in refused(*args, bucket, nowhere)
    assert "file" in refused(*args, bucket, a_file)
    assert "nowhere" in refused(*args, "--base", nowhere, bucket, point)
    said = refused("mount", *foreground, "--cache-dir", a_file, bucket, point)
    assert "file" in said
    assert not is_mounted(point)


@pytest.mark.parametrize("words", [
    [], ["frobnicate"], ["mount"], ["mount", "a"], ["mount", "a", "b", "c"], ["mount", "--nope"],
    ["mount", "--settle", "soon", "a", "b"], ["mount", "--max-hold", "0", "a", "b"],
    ["hold"], ["hold", "--for", "0", "a"], ["release", "a", "b"], ["pin", "a"], ["pin", "a", "x"],
    ["unpin", "a", "-1"], ["mount", "--poll", "soon", "a", "b"],
    ["mount", "--keep", "-1", "a", "b"],
    ["mount", "--shard-size", "huge", "a", "b"], ["mount", "--shard-size", "0", "a", "b"],
    ["mount", "-o", "nonsense", "a", "b"], ["mount", "--times", "maybe", "a", "b"],
    ["mount", "--log-level", "loud", "a", "b"], ["mount", "--base"], ["umount"], ["status"],
    ["wait", "x", "--timeout", "never"],
])
def test_usage(words, scratch):
    """Usage errors: exit code 2 and a line that says what is wrong."""
    done = mounted.run(*words, check=False, cwd=scratch)
    assert done.returncode == 2, done
    assert done.stderr.startswith(("weightfs: ", "usage: ")), done.stderr


def test_mounted_twice(bucket, run, point):
    """A second mount on the same place is refused, and the first goes on."""
    mount(bucket, point)
    wait_shown(point, 3)
    done = mount(bucket, point, check=False)
    assert done.returncode == 1 and "already" in done.stderr
    assert reading.read_file(point / MODEL) == oracle.Oracle(bucket).files(3)[MODEL]
    mounted.run("umount", point)


def test_two_mounts_of_one_source(bucket, run, scratch):
    """Two mounts of one bucket with different layouts do not know of each other."""
    want, sharded = oracle.Oracle(bucket), oracle.Oracle(bucket, shard_size=4096)
    with Mount(bucket) as one, Mount(bucket, shard_size=4096) as two:
        one.wait_version(3)
        two.wait_version(3)
        checks.assert_tree(one.at, want.files(3))
        checks.assert_tree(two.at, sharded.files(3))


def test_ready_fd(bucket, run, point):
    """--ready-fd: "ready" when usable; closed without it when the start fails."""
    for source, said in ((bucket, b"ready\n"), (bucket / "nowhere", b"")):
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [str(mounted.BINARY), "mount", "--ready-fd", str(writer), "--cache-dir",
             str(point.parent / "cache"), str(source), str(point)],
            pass_fds=[writer], stderr=subprocess.DEVNULL)
        os.close(writer)
        assert select.select([reader], [], [], mounted.WAIT)[0]
        got = b""
        while piece := os.read(reader, 100):
            got += piece
        os.close(reader)
        assert got == said
        assert process.wait(timeout=mounted.WAIT) == (0 if said else 1)
        assert is_mounted(point) == bool(said)
        if said:
            mounted.run("umount", point)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals(number, bucket, run):
    """SIGTERM, SIGINT and SIGHUP unmount and end with code 0."""
    with Mount(bucket) as m:
        m.wait_version(3)
        m.process.send_signal(number)
        assert m.process.wait(timeout=mounted.WAIT) == 0
        assert not is_mounted(m.at)


def test_signal_while_a_file_is_open(bucket, run):
    """A clean end also when somebody still holds a file."""
    with Mount(bucket) as m:
        m.wait_version(3)
        with open(m.at / MODEL, "rb") as f:
            f.read(8)
            m.process.send_signal(signal.SIGTERM)
            assert m.process.wait(timeout=mounted.WAIT) == 0
        wait_until(lambda: not is_mounted(m.at), "still mounted")


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_stale_mount_point(number, bucket, run, point):
    """The daemon dies; a new mount on the same place just works."""
    mount(bucket, point)
    wait_shown(point, 3)
    pid = daemon_pid(point)
    os.kill(pid, number)
    wait_until(lambda: gone(pid), "it does not die")
    with pytest.raises(OSError):
        os.listdir(point)
    mount(bucket, point)
    wait_shown(point, 3)
    checks.assert_tree(point, oracle.Oracle(bucket).files(3))
    mounted.run("umount", point)


def test_umount_of_a_stale_mount_point(bucket, run, point):
    """`umount` also clears what a dead daemon left."""
    mount(bucket, point)
    pid = daemon_pid(point)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), "it does not die")
    mounted.run("umount", point)
    assert not is_mounted(point)


def test_restart_with_the_same_cache(bucket, run, scratch):
    """Killed in the middle and started again over the same cache: the same bytes."""
    want = oracle.Oracle(bucket)
    with Mount(bucket, work=scratch / "work", expect_exit=-signal.SIGKILL) as m:
        m.wait_version(3)
        m.process.kill()
        m.process.wait()
    for name in sorted((scratch / "work" / "cache").rglob("*")):
        if name.is_file() and name.stat().st_size > 64:
            os.truncate(name, name.stat().st_size // 2)
            break
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(3)
        checks.assert_tree(m.at, want.files(3))


def test_cache_directory_can_be_deleted(bucket, run, scratch):
    """The cache goes away under a running mount: what is shown stays readable."""
    want = oracle.Oracle(bucket)
    states = models.states(80, 5, models.SMALL)
    with Mount(bucket, work=scratch / "work") as m:
        m.wait_version(3)
        mounted.remove_in_use(scratch / "work" / "cache")
        reading.drop_caches()
        checks.assert_tree(m.at, want.files(3))
        checks.publish(m, run, states[3:])
        checks.assert_tree(m.at, want.files(5))


# ---- status and options -------------------------------------------------------------------------


def test_status_verb(bucket, run):
    """`weightfs status`: a person's text, or the JSON of status.json."""
    with Mount(bucket) as m:
        m.wait_version(3)
        # It says how old the version is, so the second may be another.
        wait_until(lambda: m.status()["line"] in mounted.run("status", m.at).stdout, m.status)
        done = mounted.run("status", "--json", m.at)
        assert trl.json.loads(done.stdout)["version"] == 3
    assert mounted.run("status", bucket, check=False).returncode == 1


def test_fstab_options(bucket, run, point):
    """-o takes fstab's words, the kernel's and our own."""
    mount(bucket, point, "-o", "ro,nosuid,nodev,noexec,_netdev,keep=2,poll=0.1,x-systemd.automount")
    wait_shown(point, 3)
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        line = next(line for line in f if line.split()[4] == str(point))
    assert "nosuid" in line and "nodev" in line and "noexec" in line
    assert " fuse.weightfs " in line and str(bucket) in line
    mounted.run("umount", point)


def test_log_file(bucket, run, point):
    """--log-file: a daemon's words go there."""
    log = point.parent / "its.log"
    mount(bucket, point, "--log-file", log, "--log-level", "debug")
    wait_shown(point, 3)
    mounted.run("umount", point)
    assert log.stat().st_size > 0


def test_log_file_moved_away(bucket, run):
    """SIGHUP: what logrotate moved away is left, and another file is begun; nothing ends."""
    log = bucket.parent / "its.log"
    with Mount(bucket, args=["--log-file", log]) as m:
        m.wait_version(3)
        for number in (1, 2):
            log.rename(log.with_suffix(f".{number}"))
            m.process.send_signal(signal.SIGHUP)
            wait_until(log.exists, "no new log")
            m.control(f"pin {number}")
            assert f"pinned {number}" in log.read_text()


# ---- other users --------------------------------------------------------------------------------


@pytest.fixture
def user():
    """A fresh ordinary user: (name, uid)."""
    if os.geteuid() != 0 or not shutil.which("useradd"):
        pytest.skip("needs root and useradd to make an ordinary user")
    name = "wfs" + uuid.uuid4().hex[:8]

    def added():
        # Another test may be adding its own just now.
        done = subprocess.run(["useradd", "-M", "-s", "/bin/sh", name], capture_output=True,
                              text=True, check=False)
        return None if done.returncode and "cannot lock" in done.stderr else done

    done = wait_until(added, "the list of users stays locked")
    if done.returncode != 0:
        pytest.skip(f"useradd: {done.stderr.strip()}")
    yield name, pwd.getpwnam(name).pw_uid
    subprocess.run(["userdel", "--force", name], capture_output=True, check=False)


def as_user(uid):
    """A prefix that runs a command as an ordinary user without any rights of root."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]


USER_SCRIPT = f"""
set -e
{mounted.ALONE}
cd "$WORK"
if ! $AS_USER test -w /dev/fuse; then  # most machines let everybody; where not, only here
    mknod fuse c 10 229
    chmod 666 fuse
    mount --bind fuse /dev/fuse
fi
$AS_USER "$WEIGHTFS" mount --poll 0.1 --cache-dir "$WORK/cache" "$BUCKET" "$WORK/mnt"
$AS_USER "$WEIGHTFS" wait "$WORK/mnt" --version 3 --timeout {mounted.WAIT} > "$WORK/waited"
$AS_USER sha256sum "$WORK/mnt/model.safetensors"
ls "$WORK/mnt" && exit 9
$AS_USER "$WEIGHTFS" umount "$WORK/mnt"
! mountpoint -q "$WORK/mnt"
"""


def test_as_an_ordinary_user(bucket, run, scratch, user):
    """Through fusermount3, without any right: the user sees it, root does not.  In a mount
    namespace of its own, which takes whatever is left with it when it ends."""
    prefix = as_user(user[1])
    if subprocess.run([*prefix, str(mounted.BINARY), "--help"], capture_output=True,
                      check=False).returncode != 0:
        pytest.skip(f"an ordinary user cannot run {mounted.BINARY}")
    work = scratch / "work"
    for path in (work, work / "mnt", work / "cache"):
        path.mkdir()
        os.chown(path, user[1], user[1])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", USER_SCRIPT], capture_output=True, text=True,
        timeout=4 * mounted.WAIT, check=False,
        env={**os.environ, "WORK": str(work), "BUCKET": str(bucket), "HOME": str(work),
             "WEIGHTFS": str(mounted.BINARY), "AS_USER": " ".join(prefix)})
    if "unshare" in done.stderr or "mknod" in done.stderr:
        pytest.skip(f"no namespace of its own here: {done.stderr.strip()}")
    assert done.returncode == 0, done
    assert done.stdout.split()[0] == reading.sha256(oracle.Oracle(bucket).files(3)[MODEL])


@pytest.mark.parametrize("allow", [False, True])
def test_allow_other(allow, bucket, run, scratch, user):
    """Root's mount: other users get in with --allow-other and not without it."""
    scratch.chmod(0o755)
    work = scratch / "work"
    work.mkdir()
    with Mount(bucket, work=work, args=["--allow-other"] if allow else []) as m:
        m.wait_version(3)
        done = subprocess.run([*as_user(user[1]), "cat", str(m.at / MODEL)], capture_output=True,
                              check=False)
        assert (done.returncode == 0) == allow, done.stderr
        if allow:
            assert done.stdout == oracle.Oracle(bucket).files(3)[MODEL]
