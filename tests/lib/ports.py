"""Ports on 127.0.0.1 for servers of tests.

They lie below those that the kernel gives to outgoing connections, so that a port can be let go and
taken again (a server that goes away and comes back) without somebody's connection on it meanwhile.
Each process begins at another place and goes on from there.
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


def free_port():
    """One that nobody listens on just now, and that this process does not give again soon."""
    while True:
        with LOCK:
            port = next(WALK)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
