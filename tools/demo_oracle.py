#!/usr/bin/env python3
"""An independent computation of what a mount must show, with Python's standard library only.

    demo_oracle.py BUCKET [VERSION...]

Replays a run in TRL's bucket layout (anchors/ and deltas/, `.idx` and `.val` in the gap_delta or
raw encoding) and prints for each version, or for those named, the SHA-256 that model.safetensors
has: the first anchor's header, its metadata replaced by {"format":"pt"}, and the tensors as they
are after that version.  It shares nothing with the program it checks.
"""

import array
import hashlib
import json
import re
import sys
from pathlib import Path

CODES = {"U16": "H", "U32": "I", "I32": "I", "BF16": "H"}


def read_object(path):
    """The header's text, and {name: (dtype, bytes)}; "__metadata__" as a dictionary."""
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    text = blob[8:8 + length].decode()
    header = json.loads(text)
    tensors = {"__metadata__": header.pop("__metadata__", {})}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], blob[8 + length + begin:8 + length + end])
    return text, tensors


def numbers(tensor):
    """A tensor's bytes as integers, whatever this machine's byte order."""
    dtype, data = tensor
    out = array.array(CODES[dtype], data)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def positions_of(index, encoding):
    """Flat positions from the index tensor."""
    values = numbers(index)
    if encoding == "raw":
        return values
    at, out = -1, []
    for gap in values:
        at += gap + 1
        out.append(at)
    return out


class Replay:
    """The state of a run, as one block of bytes in the first anchor's layout."""

    def __init__(self, anchor):
        text, tensors = read_object(anchor)
        header = json.loads(text)
        meta = re.search(r'"__metadata__"\s*:\s*', text)
        _, end = json.JSONDecoder().raw_decode(text, meta.end())
        shown = text[:meta.end()] + '{"format":"pt"}' + text[end:]
        self.header = len(text).to_bytes(8, "little") + shown.ljust(len(text)).encode()
        self.places = {n: tuple(e["data_offsets"]) for n, e in header.items()
                       if n != "__metadata__"}
        self.data = bytearray(max(end for _, end in self.places.values()))
        self.apply(tensors)

    def apply(self, tensors):
        """Whole tensors replace what was there; pairs change elements."""
        encoding = tensors["__metadata__"].get("encoding", "gap_delta")
        for name, tensor in tensors.items():
            if name in self.places:
                begin, end = self.places[name]
                self.data[begin:end] = tensor[1]
            elif name.endswith(".idx"):
                begin, _ = self.places[name[:-4]]
                values = tensors[name[:-4] + ".val"][1]
                for i, at in enumerate(positions_of(tensor, encoding)):
                    self.data[begin + 2 * at:begin + 2 * at + 2] = values[2 * i:2 * i + 2]

    def sha256(self):
        """Of the file that the mount shows."""
        return hashlib.sha256(self.header + self.data).hexdigest()


def main(bucket, wanted):
    """Prints "VERSION SHA256" for each version of the run, or for the wanted ones."""
    found = {}
    for path in sorted(Path(bucket).glob("*/step_*.safetensors")):
        found[int(re.fullmatch(r"step_(\d+)", path.stem)[1])] = path
    replay = None
    for number in sorted(found):
        if replay is None:
            replay = Replay(found[number])
        else:
            replay.apply(read_object(found[number])[1])
        if not wanted or number in wanted:
            print(number, replay.sha256())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], {int(word) for word in sys.argv[2:]})
