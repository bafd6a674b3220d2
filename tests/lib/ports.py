"""Ports on 127.0.0.1 for servers of tests.

They lie below those that the kernel gives to outgoing connections, so that a port can be let go and
taken again (a server that goes away and comes back) without somebody's connection on it meanwhile.
Each process begins at another place and goes on from there.  A port that was given belongs to its
process to the end: a name in the abstract namespace, which goes when the process does, keeps tests
that run at the same time from it, also while no server listens there yet, or none any more.
"""

import itertools
import os
import random
import socket
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
OURS = []  # what keeps the ports that were given


def reserve(port):
    """Makes a port this process's own; False: it is another's, or was given before."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0weightfs-test-port-{port}")
    except OSError:
        name.close()
        return False
    OURS.append(name)
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
