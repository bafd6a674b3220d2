"""The committed blobs say what the committed texts say, to a reader written from the spec.

wfp1/NAME.wfp1 is what the program's encoder made of wfp1/NAME.txt: a line "OP width numel", then a
line "position value" for each changed element, the value in hexadecimal.  The unit test test_wfp1
holds the encoder to the same pairs, and makes them anew with the argument "write".
"""

from pathlib import Path

import pytest

from lib import wfp1

HERE = Path(__file__).resolve().parent / "wfp1"
NAMES = sorted(path.stem for path in HERE.glob("*.txt"))


def expected(name):
    """(op, width, numel, {position: value}) of the text."""
    first, *lines = (HERE / f"{name}.txt").read_text().splitlines()
    op, width, numel = first.split()
    elements = {}
    for line in lines:
        position, value = line.split()
        elements[int(position)] = int(value, 16)
    return op, int(width), int(numel), elements


def test_there_are_some():
    """A folder that has moved away must not look like success."""
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_reads(name):
    """Each blob has the elements of its text; in DENSE blocks also zeros."""
    patch = wfp1.read((HERE / f"{name}.wfp1").read_bytes())
    op, width, numel, elements = expected(name)
    assert (patch.op, patch.width, patch.numel) == (op, width, numel)
    assert patch.version == (2 if name.startswith("bits-") else 1)
    extra = {p: v for p, v in patch.elements.items() if p not in elements}
    assert {p: v for p, v in patch.elements.items() if p in elements} == elements
    assert all(v == 0 for v in extra.values()) and (not extra or op != "SET")


@pytest.mark.parametrize("name", NAMES)
def test_refuses_what_is_cut_off(name):
    """No beginning of a blob is a blob."""
    blob = (HERE / f"{name}.wfp1").read_bytes()
    for length in range(0, len(blob), max(1, len(blob) // 50)):
        with pytest.raises(wfp1.Malformed):
            wfp1.read(blob[:length])


def test_applies():
    """ADD wraps around at the element's width, XOR and SET do what they say."""
    patch = wfp1.Patch("ADD", 2, 3, 1, {0: 0xFFFF, 2: 1})
    assert wfp1.apply(patch, bytes.fromhex("0000 0100 ffff")).hex() == "ffff01000000"
    patch.op = "XOR"
    assert wfp1.apply(patch, bytes.fromhex("0000 0100 ffff")).hex() == "ffff0100feff"
    patch.op = "SET"
    assert wfp1.apply(patch, bytes.fromhex("0000 0100 ffff")).hex() == "ffff01000100"


def test_reads_hashes():
    """A blob of the fuzzer's corpus that has a hash for each block."""
    corpus = HERE.parents[1] / "fuzz" / "corpus" / "patch"
    patch = wfp1.read((corpus / "rice-add-16-hashes").read_bytes())
    assert set(patch.hashes) == {position // wfp1.BLOCK for position in patch.elements} == {0, 1}
    assert len(set(patch.hashes.values())) == 2
