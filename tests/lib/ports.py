"""Ports on 127.0.0.1 for servers of tests.

They lie below those that the kernel gives to outgoing connections, so that a port can be let go and
taken again (a server that goes away and comes back) without somebody's connection on it meanwhile.
Each process begins at another place and goes on from there.  A port that was given belongs to its
process to the end: a lock on a byte of a file that all processes of tests share, which goes when
the process does, keeps the others from it, also while no server listens there yet, or none any
more.
"""

import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile
import threading

FIRST, END = 10000, 32000
LOCK = threading.Lock()


def ephemeral():
    """The first port of outgoing connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
            return int(f.read().split()[0])
    except OSError:
        return END


def walk():
    """Every port once per round."""
    end = max(FIRST + 1000, min(END, ephemeral()))
    at = random.Random(os.urandom(8)).randrange(FIRST, end)
    for n in itertools.count():
        yield FIRST + (at - FIRST + n) % (end - FIRST)


WALK = walk()


def ledger():
    """The file, opened for good; None where another user's is in the way."""
    path = os.path.join(tempfile.gettempdir(), "weightfs-test-ports")
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
        with contextlib.suppress(OSError):
            fd = os.open(path, flags, 0o666)
            with contextlib.suppress(OSError):
                os.fchmod(fd, 0o666)
            return fd
    return None


LEDGER = ledger()


def reserve(port):
    """Makes a port this process's own; False: it is another's."""
    try:
        if LEDGER is not None:
            fcntl.lockf(LEDGER, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def free_port():
    """One that nobody listens on just now, and that no test is given again."""
    while True:
        with LOCK:
            port = next(WALK)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if reserve(port):
            return port
