"""Runs of grail (PULSE): every byte of every window, its lineage, and what is refused."""

import json

import pytest

from lib import grail, models, mounted

SPEC = {**models.TINY, "norm.f32": ("F32", (65, 3)), "half": ("F16", (3, 11, 13))}
# What grail's codec cannot say changes never.
STAYS = ("model.scale",)


def inspect(path, code=0):
    """What --json says, or the sentence."""
    done = mounted.run("inspect", "--json", path, check=code == 0)
    assert done.returncode == code
    return json.loads(done.stdout) if code == 0 else done.stderr


# ---- inspect ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version, stated", [(2, True), (3, False), (31, True)])
def test_inspect(version, stated, scratch):
    """A delta of each version, from the frame as it is."""
    old, new = models.states(201, 2, SPEC, skip=STAYS)
    data, path = grail.payload(version, old, new), scratch / "delta"
    path.write_bytes(grail.pack(data, stated))
    have, want = inspect(path), grail.changes(old, new)
    assert have["format"] == "grail sparse codec " + {2: "2", 3: "3", 31: "3.1"}[version]
    assert (have["kind"], have["size"]) == ("sparse", path.stat().st_size)
    assert have["unpacked"] == len(data) == have["header_bytes"] + have["totals"]["data_bytes"]
    told = {t["name"]: (t["dtype"], tuple(t["shape"]), t["changed"]) for t in have["tensors"]}
    assert told == {n: (new[n].dtype, new[n].shape, len(at)) for n, at in want.items()}
    text = mounted.run("inspect", path).stdout
    assert "a zstd frame of" in text and "positions ascend" in text
    if version == 31:
        assert "u8 rows, u16 columns" in text


def test_inspect_bad(scratch):
    """Frames that are cut, go on, hold something else or unpack without end."""
    old, new = models.states(202, 2, SPEC, skip=STAYS)
    good, path = grail.payload(31, old, new), scratch / "delta"
    for data, says in ((grail.pack(good)[:-3], "ends in the middle"),
                       (grail.pack(good) + b"x", "something behind it"),
                       (grail.pack(good[:-1]), "beyond the end of the data"),
                       (grail.pack(good + b"x"), "of which its tensors use"),
                       (grail.pack(b"what is this"), "header"),
                       (grail.pack(bytes(300 << 20)), "which no delta of its size should"),
                       (grail.pack(bytes(300 << 20), False), "which no delta of its size should")):
        path.write_bytes(data)
        assert says in inspect(path, 1)
