"""The committed blobs of wfp1x say what the committed texts say, to a reader written from the spec.

wfp1x/NAME.wfp1x is what the program's encoder made of wfp1x/NAME.txt: a line "width numel shift
bits", then a line "position value" for each changed element, the value in hexadecimal.  The
reference is what reference() below says.  The unit test test_wfp1x holds encoder and decoder to the
same pairs, and makes them anew with the argument "write".
"""

from pathlib import Path

import pytest

from lib import wfp1

HERE = Path(__file__).resolve().parent / "wfp1x"
NAMES = sorted(path.stem for path in HERE.glob("*.txt"))


def reference(width, numel, shift, bits):
    """Element i: its low bits are those of i, its key is one less than half for every power of two
    that i is a multiple of."""
    if bits == 0:
        if width == 1:
            return bytes(range(256)) * (numel // 256) + bytes(range(numel % 256))
        return b"".join((i % 256**width).to_bytes(width, "little") for i in range(numel))
    half = 1 << bits - 1
    out = bytearray()
    for i in range(numel):
        multiple = i | 4096
        down = (multiple & -multiple).bit_length() - 1
        element = max(half - down, 0) << shift | i & (1 << shift) - 1
        out += element.to_bytes(width, "little")
    return bytes(out)


def expected(name):
    """(width, numel, shift, bits) and {position: value} of the text."""
    first, *lines = (HERE / f"{name}.txt").read_text().splitlines()
    pairs = (line.split() for line in lines)
    return tuple(map(int, first.split())), {int(p): int(v, 16) for p, v in pairs}


def test_there_are_some():
    """A folder that has moved away must not look like success."""
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_reads(name):
    """Each blob has the elements of its text."""
    (width, numel, shift, bits), elements = expected(name)
    patch = wfp1.read_x((HERE / f"{name}.wfp1x").read_bytes(), reference(width, numel, shift, bits))
    assert (patch.op, patch.width, patch.numel) == ("ADD", width, numel)
    assert patch.elements == elements


@pytest.mark.parametrize("name", ["bf16", "f64-any", "bf16-all"])
def test_refuses_what_is_not_whole(name):
    """No beginning of a blob is a blob, and another reference is found."""
    (width, numel, shift, bits), _ = expected(name)
    ref = reference(width, numel, shift, bits)
    blob = (HERE / f"{name}.wfp1x").read_bytes()
    for length in range(0, len(blob), max(1, len(blob) // 20)):
        with pytest.raises(wfp1.Malformed):
            wfp1.read_x(blob[:length], ref)
    with pytest.raises(wfp1.Malformed, match="reference"):
        wfp1.read_x(blob, bytes([ref[0] ^ 1]) + ref[1:])
