"""Whether versions that are written out whole can be had here, found out without the program."""

import ctypes
import os
import subprocess

from lib import mounted


def libfuse_version():
    """Of the libfuse that the program is linked with: (major, minor)."""
    said = subprocess.run(["ldd", mounted.BINARY], capture_output=True, text=True, check=True)
    path = next(line.split()[2] for line in said.stdout.splitlines() if "libfuse3.so" in line)
    version = ctypes.CDLL(path).fuse_pkgversion
    version.restype = ctypes.c_char_p
    return tuple(int(n) for n in version().decode().split(".")[:2])


def why_not():
    """The reason why there is none, for a skip; None where there must be."""
    kernel = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
    if os.geteuid() != 0:
        return "passthrough is for root"
    if kernel < (6, 9):
        return "this kernel has no FUSE passthrough"
    if libfuse_version() < (3, 13):
        return "this libfuse gives no way to FUSE passthrough"
    return None
