"""A read-only filesystem to the last call, and what directories and attributes say."""

import ctypes
import errno
import os
import platform
import shutil
import socket
import stat
import struct
import subprocess

import pytest

from lib import models, oracle, reading, trl
from lib.mounted import Mount

MODEL = "model.safetensors"
GETDENTS64 = {"x86_64": 217, "aarch64": 61}.get(platform.machine())


@pytest.fixture(scope="module", name="the_mount")
def one_mount(tmp_path_factory):
    """One mount for all of these: nothing here can change it."""
    bucket = tmp_path_factory.mktemp("writes") / "bucket"
    models.write_companions(bucket)
    models.publish(trl.Run(bucket, "v3", interval=3), models.states(50, 5, models.SMALL))
    with Mount(bucket) as m:
        m.wait_version(5)
        m.want = oracle.Oracle(bucket).files(5)
        yield m


@pytest.fixture
def mount(the_mount):
    """The same, which lives on."""
    the_mount.live_on()
    return the_mount


def open_close(flags):
    """A call that opens with these flags."""
    return lambda path: os.close(os.open(path, flags, 0o644))


FILE_CALLS = {
    "O_WRONLY": open_close(os.O_WRONLY),
    "O_RDWR": open_close(os.O_RDWR),
    "O_TRUNC": open_close(os.O_WRONLY | os.O_TRUNC),
    "O_RDONLY|O_TRUNC": open_close(os.O_RDONLY | os.O_TRUNC),
    "O_APPEND": open_close(os.O_WRONLY | os.O_APPEND),
    "O_CREAT|O_RDWR": open_close(os.O_CREAT | os.O_RDWR),
    "truncate": lambda path: os.truncate(path, 0),
    "unlink": os.unlink,
    "rename away": lambda path: os.rename(path, str(path) + ".old"),
    "chmod": lambda path: os.chmod(path, 0o600),
    "chown": lambda path: os.chown(path, 1, 1),
    "utimes": lambda path: os.utime(path, (1, 1)),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"1"),
    "setxattr of ours": lambda path: os.setxattr(path, "user.weightfs.version", b"1"),
    "removexattr": lambda path: os.removexattr(path, "user.weightfs.version"),
    "link": lambda path: os.link(path, str(path) + ".link"),
}

DIRECTORY_CALLS = {
    "create": lambda d: open_close(os.O_CREAT | os.O_WRONLY)(d / "new"),
    "O_EXCL": lambda d: open_close(os.O_CREAT | os.O_EXCL | os.O_WRONLY)(d / "new"),
    "O_TMPFILE": lambda d: open_close(os.O_TMPFILE | os.O_WRONLY)(d),
    "mkdir": lambda d: os.mkdir(d / "new"),
    "symlink": lambda d: os.symlink("x", d / "new"),
    "fifo": lambda d: os.mkfifo(d / "new"),
    "socket": lambda d: bind(d / "s"),
    "chmod": lambda d: os.chmod(d, 0o700),
    "utimes": lambda d: os.utime(d, (1, 1)),
}


def bind(path):
    """Makes a socket by a short relative name."""
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as s:
        try:
            os.chdir(path.parent)
            s.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize("call", FILE_CALLS)
@pytest.mark.parametrize("where", [MODEL, "config.json", ".weightfs/versions/5/" + MODEL,
                                   ".weightfs/status", ".weightfs/version",
                                   ".weightfs/bucket/anchors/step_000001.safetensors"])
def test_files_are_read_only(mount, where, call):
    """Every call that would change a file says EROFS."""
    before = os.stat(mount.at / where)
    with pytest.raises(OSError) as error:
        FILE_CALLS[call](mount.at / where)
    assert error.value.errno == errno.EROFS, error.value
    after = os.stat(mount.at / where)
    assert (before.st_mode, before.st_ino) == (after.st_mode, after.st_ino)
    assert reading.read_file(mount.at / MODEL) == mount.want[MODEL]


@pytest.mark.parametrize("call", DIRECTORY_CALLS)
@pytest.mark.parametrize("where", [".", "1_Pooling", ".weightfs", ".weightfs/versions",
                                   ".weightfs/versions/5", ".weightfs/bucket/anchors"])
def test_directories_are_read_only(mount, where, call):
    """Every call that would make something says EROFS (O_TMPFILE: or not supported)."""
    names = sorted(os.listdir(mount.at / where))
    with pytest.raises(OSError) as error:
        DIRECTORY_CALLS[call](mount.at / where)
    allowed = (errno.EROFS, errno.EOPNOTSUPP) if call == "O_TMPFILE" else (errno.EROFS,)
    assert error.value.errno in allowed, error.value
    assert sorted(os.listdir(mount.at / where)) == names


def test_rmdir_and_rename_over(mount):
    """The calls that take an existing directory or two names."""
    for call in (lambda: os.rmdir(mount.at / "1_Pooling"),
                 lambda: os.rename(mount.at / "config.json", mount.at / MODEL),
                 lambda: os.rename(mount.at / "1_Pooling", mount.at / "2_Pooling")):
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == errno.EROFS


def test_names_that_are_not_there(mount):
    """ENOENT for what does not exist, ENOTDIR for a file used as a directory."""
    for path in ("nothing", "1_Pooling/nothing", ".weightfs/nothing", ".weightfs/versions/99",
                 ".weightfs/versions/05", ".weightfs/versions/x", ".weightfs/versions/-1",
                 ".weightfs/versions/99999999999999999999", ".weightfs/bucket/nothing",
                 "extra.safetensors", "adapter.bin", ".hidden", "anchors", "deltas"):
        with pytest.raises(FileNotFoundError):
            os.stat(mount.at / path)
    with pytest.raises(NotADirectoryError):
        os.stat(mount.at / "config.json" / "x")
    with pytest.raises(OSError) as error:
        os.stat(mount.at / ("n" * 2000))
    assert error.value.errno in (errno.ENAMETOOLONG, errno.ENOENT)


def dirents(path):
    """{name: (d_ino, d_type)} straight from getdents64."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    buffer = ctypes.create_string_buffer(700)
    out = {}
    try:
        while (got := libc.syscall(GETDENTS64, fd, buffer, len(buffer))) > 0:
            at = 0
            while at < got:
                ino, _, length, kind = struct.unpack_from("<QqHB", buffer.raw, at)
                name = buffer.raw[at + 19:at + length].split(b"\0")[0].decode()
                assert name not in out, name
                out[name] = (ino, kind)
                at += length
        assert got == 0
    finally:
        os.close(fd)
    return out


@pytest.mark.skipif(GETDENTS64 is None, reason="getdents64's number is not known here")
@pytest.mark.parametrize("where", [".", "1_Pooling", ".weightfs", ".weightfs/versions",
                                   ".weightfs/versions/5", ".weightfs/bucket",
                                   ".weightfs/bucket/deltas"])
def test_readdir(mount, where):
    """Entries come once, with their type, also through a small buffer; stat agrees with it."""
    entries = dirents(mount.at / where)
    assert {".", ".."} <= set(entries)
    kinds = {stat.S_IFREG: 8, stat.S_IFDIR: 4, stat.S_IFLNK: 10}
    for name, (_, kind) in entries.items():
        mode = os.lstat(mount.at / where / name).st_mode
        assert kinds[stat.S_IFMT(mode)] == kind, name
        if name not in ("..", "control", "current"):
            assert mode & 0o222 == 0, name
    assert len(entries) > 2


def test_what_is_listed(mount):
    """.weightfs is not listed but reachable, with all that belongs in it."""
    assert ".weightfs" not in os.listdir(mount.at)
    assert set(os.listdir(mount.dot)) == {
        "version", "newest", "status", "status.json", "metrics", "control", "current",
        "versions", "bucket"}
    assert (mount.dot / "version").read_text() == "5\n"
    assert (mount.dot / "newest").read_text() == "5\n"
    assert ".weightfs" not in os.listdir(mount.tree(5))


def test_seek_in_directories(mount):
    """telldir/seekdir and rewinding give the same names again."""
    fd = os.open(mount.at, os.O_RDONLY | os.O_DIRECTORY)
    try:
        first = os.listdir(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.listdir(fd) == first
    finally:
        os.close(fd)


def test_status_files(mount):
    """status for people, status.json for scripts, metrics for Prometheus."""
    status = mount.status()
    assert status["state"] == "serving" and status["version"] == status["newest"] == 5
    assert status["anchor"] == 3 and status["deltas"] == 2
    assert status["format"] == "TRL v2/v3 (gap_delta)"
    assert status["problems"] == [] and len(status["lineage"]) == 8
    assert [v["version"] for v in status["versions"]] == mount.versions()
    assert status["line"] in (mount.dot / "status").read_text()
    for line in (mount.dot / "metrics").read_text().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name.startswith("weightfs_") and float(value) >= 0, line


def test_xattrs(mount):
    """Weight files carry where they come from; nothing else has attributes."""
    path = mount.at / MODEL
    want = {"user.weightfs.version": b"5", "user.weightfs.anchor": b"3",
            "user.weightfs.deltas": b"2",
            "user.weightfs.lineage": mount.status()["lineage"].encode()}
    assert set(os.listxattr(path)) == set(want)
    for name, value in want.items():
        assert os.getxattr(path, name) == value
        assert os.getxattr(mount.tree(5) / MODEL, name) == value
    assert os.listxattr(mount.at / "config.json") == []
    for name in ("user.nothing", "security.selinux"):
        with pytest.raises(OSError) as error:
            os.getxattr(path, name)
        assert error.value.errno in (errno.ENODATA, errno.EOPNOTSUPP), name


def test_statfs(mount):
    """statfs: as large as what it shows, and full."""
    for path in (mount.at, mount.at / MODEL, mount.dot / "versions"):
        s = os.statvfs(path)
        assert s.f_blocks * s.f_frsize >= len(mount.want[MODEL])
        assert s.f_bfree == s.f_bavail == 0 and s.f_ffree == 0
        assert s.f_namemax == 255 and s.f_bsize > 0 and s.f_files > 0


def test_access_and_modes(mount):
    """Readable by all who get in, writable by nobody, directories can be entered."""
    assert os.access(mount.at / MODEL, os.R_OK) and os.access(mount.at, os.R_OK | os.X_OK)
    assert stat.S_IMODE(os.stat(mount.at / MODEL).st_mode) == 0o444
    assert stat.S_IMODE(os.stat(mount.at).st_mode) == 0o555
    s = os.stat(mount.at / MODEL)
    assert s.st_nlink == 1 and s.st_size == len(mount.want[MODEL])
    assert s.st_blocks * 512 >= s.st_size
    folder = os.open(mount.at, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        os.read(folder, 10)
    os.close(folder)


def test_access_of_those_without_roots_rights(mount):
    """access(W_OK) is refused to everybody but root, whom the kernel does not ask."""
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    prefix = drop if os.geteuid() == 0 else []
    if prefix and not shutil.which("setpriv"):
        pytest.skip("needs setpriv to drop root's rights")
    for path in (mount.at, mount.at / MODEL, mount.at / "1_Pooling", mount.dot / "versions"):
        assert subprocess.run([*prefix, "test", "-r", path], check=False).returncode == 0
        assert subprocess.run([*prefix, "test", "-w", path], check=False).returncode == 1


def test_mutable_files_are_read_whole(mount):
    """version and status have no size to trust; reading to the end gives a text that is whole."""
    for name in ("version", "status", "status.json", "metrics"):
        text = (mount.dot / name).read_bytes()
        assert text.endswith(b"\n")
        fd = os.open(mount.dot / name, os.O_RDONLY)
        pieces = []
        while piece := os.read(fd, 7):
            pieces.append(piece)
        os.close(fd)
        assert len(b"".join(pieces)) > 0 and b"".join(pieces).endswith(b"\n")
    assert os.path.samefile(mount.dot / "current", mount.tree(5))
