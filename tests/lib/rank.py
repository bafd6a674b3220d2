"""A rank of an engine: loads shards as the safetensors library does (open, map, parse; open again,
map, take the tensors) and says which version each tensor is of.  Run as a program, standard library
only: lines of words on stdin are commands, each answered by one line of JSON.

    open NAME        opens and maps a file and keeps the map        -> versions in it
    read NAME        the same without keeping it                     -> versions in it
    look             what the maps that are kept say now             -> {NAME: versions}
    close            lets them go                                    -> null
    load             index, then every shard of it, as `read`        -> versions met, in order
    loads            `load` again and again until the next command   -> [[load, seconds]]

Versions are those of fingerprint(): each tensor is one 16-bit number over and over.

    rank.py DIR PAUSE [COUNT]

PAUSE seconds lie between two shards.  COUNT ranks are forked that each do every command; answers
are lists then.
"""

import json
import mmap
import os
import random
import select
import struct
import sys
import threading
import time

FIRST = 0x3C00  # bits of 2 ** -7 as BF16: what follows is small and no NaN
INDEX = "model.safetensors.index.json"


def mapped(path):
    """A private map of a whole file, as its open is closed again."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def versions_in(header, data):
    """The versions that tensors of a shard are of, sorted; "torn" for one that is of two."""
    length = struct.unpack("<Q", header[:8])[0]
    found = set()
    for name, entry in json.loads(header[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in entry["data_offsets"])
        one = data[begin:begin + 2]
        whole = data[begin:end] == one * ((end - begin) // 2)
        found.add(struct.unpack("<H", one)[0] - FIRST if whole else "torn")
    return sorted(found, key=str)


class Rank:
    """What one process has open."""

    def __init__(self, top, pause):
        self.top, self.pause, self.kept = top, pause, {}

    def take(self, name):
        """(header map, data map) of a file."""
        path = os.path.join(self.top, name)
        return mapped(path), mapped(path)

    def open(self, name):
        """See above."""
        self.kept[name] = self.take(name)
        return versions_in(*self.kept[name])

    def read(self, name):
        """See above."""
        header, data = self.take(name)
        with header, data:
            return versions_in(header, data)

    def look(self):
        """See above."""
        return {name: versions_in(*maps) for name, maps in self.kept.items()}

    def close(self):
        """See above."""
        for maps in self.kept.values():
            for one in maps:
                one.close()
        self.kept.clear()

    def load(self):
        """See above."""
        with open(os.path.join(self.top, INDEX), encoding="utf-8") as f:
            names = sorted(set(json.load(f)["weight_map"].values()))
        met = []
        for i, name in enumerate(names):
            if i and self.pause:
                time.sleep(self.pause * random.uniform(0.5, 1.5))
            met += [v for v in self.read(name) if v not in met]
        return met

    def loads(self):
        """See above."""
        done = []
        while True:
            start = time.monotonic()
            done.append([self.load(), time.monotonic() - start])
            if select.select([0], [], [], 0)[0]:
                return done


def serve(rank):
    """Commands until the end of stdin."""
    # Unbuffered, so that select() sees what is there.
    with open(0, "rb", buffering=0) as lines:
        while line := lines.readline():
            word, *args = line.decode().split()
            print(json.dumps(getattr(rank, word)(*args)), flush=True)


def pass_answers(backs):
    """A list of all ranks' answers for each command, until one of them has ended."""
    while all(lines := [back.readline() for back in backs]):
        print(json.dumps([json.loads(line) for line in lines]), flush=True)


def run_many(rank, count):
    """Forked ranks; each command goes to all of them at the same time."""
    pipes = []
    for _ in range(count):
        (down, to), (back, up) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.dup2(down, 0)
            os.dup2(up, 1)
            for _, other in pipes:
                os.close(other)
            os.close(to)
            serve(rank)
            os._exit(0)
        os.close(down)
        os.close(up)
        pipes.append((open(back, "r", encoding="ascii"), to))
    answers = threading.Thread(target=pass_answers, args=[[back for back, _ in pipes]])
    answers.start()
    for line in sys.stdin:
        for _, to in pipes:
            os.write(to, line.encode())
    for _, to in pipes:
        os.close(to)
    answers.join()
    for _ in pipes:
        os.wait()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        run_many(Rank(sys.argv[1], float(sys.argv[2])), int(sys.argv[3]))
    else:
        serve(Rank(sys.argv[1], float(sys.argv[2])))
