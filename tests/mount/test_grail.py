"""Runs of grail (PULSE): every byte of every window, its lineage, and what is refused."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import zstandard

from lib import checks, grail, models, mounted, places
from lib import safetensors_py as st
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")

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


# ---- mounted ------------------------------------------------------------------------------------


def holds(top, state):
    """The version has this state, in whatever files."""
    checks.holds(top, state, "*.safetensors")


def publish(t, *steps):
    """Steps such as "full 0", "delta 1", both at one place as "both 3"; each is made ready."""
    for step in steps:
        kind, i = step.split()
        if kind in ("full", "both"):
            t.full(int(i))
        if kind in ("delta", "both"):
            t.delta(int(i))
        t.ready(int(i))


@pytest.mark.parametrize("version, under, shards", [(2, "", 1), (3, "checkpoints/", 2),
                                                    (31, "grail/checkpoints/", 1)])
def test_every_byte(version, under, shards, bucket, scratch):
    """FULL alone, deltas, both at an anchor window; what is not READY is not there."""
    states = models.states(203, 7, SPEC, skip=STAYS, same=(5,))
    t = grail.Trainer(bucket, states, version, under, shards)
    publish(t, "full 0", "delta 1", "delta 2", "both 3")
    number = t.window
    with Mount(bucket) as m:
        m.wait_version(number(3))
        t.delta(4)
        mounted.wait_until(lambda: "READY-" in str(m.status()["notes"]), m.status)
        assert number(4) not in m.versions()
        t.ready(4)
        m.wait_version(number(4))
        for step in ("delta 5", "both 6"):
            publish(t, step)
            m.wait_version(number(int(step[-1])))
        mounted.wait_until(lambda: m.versions() == [number(i) for i in range(7)], m.status)
        for i, state in enumerate(states):
            top = m.tree(number(i))
            holds(top, state)
            assert json.loads((top / "config.json").read_text())["model_type"] == "tiny"
            checks.assert_ranges(next(top.glob("*.safetensors")),
                                 next(top.glob("*.safetensors")).read_bytes(), i, 3)
        m.wait_well()


# ---- lineage ------------------------------------------------------------------------------------


def index_of(t, i, part="DELTA"):
    """The key of a window's metadata.json."""
    return f"grail/checkpoints/checkpoint-{t.window(i)}/{part}/metadata.json"


def test_missing_link(bucket):
    """Without a window in between nothing after it is seen, until the next FULL."""
    states = models.states(204, 6, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1", "delta 3", "delta 4")
    with Mount(bucket) as m:
        m.wait_version(t.window(1))
        m.wait_problem(index_of(t, 3), f"applies to version {t.window(2)}", str(t.window(1)))
        assert t.window(3) not in m.versions() and len(m.status()["problems"]) == 1
        publish(t, "both 5")
        m.wait_version(t.window(5))
        holds(m.at, states[5])
        # The link arrives late: nothing of what was shown changes.
        publish(t, "delta 2")
        mounted.wait_until(lambda: m.status()["problems"] == [], m.status)
        assert m.status()["version"] == t.window(5)
        for i in (2, 3, 4):
            m.control(f"pin {t.window(i)}")
            holds(m.tree(t.window(i)), states[i])


def test_retention(bucket):
    """The trainer deletes chains before the last FULL while they are mounted, and before."""
    states = models.states(205, 6, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1", "both 2", "delta 3")
    with Mount(bucket) as m:
        m.wait_version(t.window(3))
        shutil.rmtree(t.folder(0))
        shutil.rmtree(t.folder(1))
        publish(t, "delta 4")
        m.wait_version(t.window(4))
        holds(m.at, states[4])
        m.wait_well()
    shutil.rmtree(t.folder(2) / "DELTA")
    with Mount(bucket) as m:
        m.wait_version(t.window(4))
        mounted.wait_until(lambda: m.versions() == [t.window(i) for i in (2, 3, 4)], m.status)
        m.wait_well()


def test_wrong_base(bucket):
    """prev_window, window and checkpoint_type that are not what lies there."""
    states = models.states(206, 4, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1")
    for says, sentence in (({"prev_window": t.window(0)}, "applies to version"),
                           ({"window": t.window(3)}, "says that it is version"),
                           ({"prev_window": t.window(2)}, "which is not before it"),
                           ({"checkpoint_type": "FULL"}, "its checkpoint_type is \"FULL\""),
                           ({"file_manifest": {"../x": "0" * 64}}, "does not list")):
        t.delta(2, **says)
        t.ready(2)
        with Mount(bucket) as m:
            m.wait_version(t.window(1))
            m.wait_problem(index_of(t, 2), sentence)
            assert t.window(2) not in m.versions()
            holds(m.at, states[1])
    t.delta(2)
    with Mount(bucket) as m:
        m.wait_version(t.window(2))
        holds(m.at, states[2])


def test_late_full(bucket):
    """FULL at an anchor window is uploaded in the background: its metadata may be there before its
    weights, and all of it may be younger than the windows after it."""
    states = models.states(209, 6, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1", "delta 2")
    with Mount(bucket) as m:
        m.wait_version(t.window(2))
        t.full(3)
        model = t.folder(3) / "FULL" / "model.safetensors"
        model.rename(bucket / "elsewhere")
        publish(t, "delta 3", "delta 4")
        m.wait_version(t.window(4))
        holds(m.at, states[4])
        with Mount(bucket) as fresh:
            fresh.wait_version(t.window(4))
            holds(fresh.at, states[4])
            assert fresh.status()["anchor"] == t.window(0)
        (bucket / "elsewhere").rename(model)
        os.utime(model)
        (t.folder(3) / "FULL" / "metadata.json").touch()
        publish(t, "delta 5")
        m.wait_version(t.window(5))
        holds(m.at, states[5])
        m.wait_well()
    with Mount(bucket) as m:
        m.wait_version(t.window(5))
        holds(m.at, states[5])
        assert m.status()["anchor"] == t.window(3) and m.status()["problems"] == []


# ---- bad objects --------------------------------------------------------------------------------


def bad_payloads(old, new):
    """(content of the frame, what is said of it)."""
    def one(says, index, values):
        says.update(indices_offset=0, indices_size=len(index), values_offset=len(index),
                    values_size=len(values))
        return grail.compose(31, [says], index + values)

    def part(name, shape, rows, cols, kind="int32", dtype="bfloat16"):
        rows, cols = np.array(rows, "<i4").tobytes(), np.array(cols, "<i4").tobytes()
        values = bytes(len(rows) // 4 * (4 if dtype == "float32" else 2))
        return one({"name": name, "shape": shape, "num_nonzero": len(rows) // 4,
                    "value_dtype": dtype, "row_dtype": kind, "col_dtype": kind,
                    "rows_size": len(rows), "cols_size": len(cols)}, rows + cols, values)

    good = grail.payload(31, old, new)
    yield part("a.weight", [20, 30], [0, -1], [3, 3]), "a row below the one before"
    yield part("a.weight", [20, 30], [0, 0], [3, -1]), "a column not above the one before"
    yield part("a.weight", [20, 30], [19, 1], [3, 3]), "row 20 at place 1 is outside its shape"
    yield part("a.weight", [20, 30], [0], [30]), "column 30 at place 0 is outside its shape"
    yield part("a.weight", [30, 20], [0], [3]), "has shape [30, 20] here and [20, 30] in the model"
    yield part("a.weight", [1 << 40], [5], [0]), "in the model"
    yield part("who.weight", [20, 30], [0], [3]), 'tensor "who.weight" is unknown'
    yield part("a.weight", [20, 30], [0], [3], dtype="float32"), "are F32, the tensor is BF16"
    yield part("a.weight", [20, 30], [0], [3], kind="int64"), "not known here"
    yield good[:-1], "beyond the end of the data"
    yield good + b"\0", "of which its tensors use"
    yield b"\xff\xff\xff\xff{}", "its header of"
    yield b"", "too short"
    yield bytes(300 << 20), "which no delta of its size should"


def test_bad_deltas(bucket):
    """What is wrong in a delta is said, and the version before stays."""
    states = models.states(207, 2, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0")
    with Mount(bucket) as m:
        m.wait_version(t.window(0))
        for data, sentence in bad_payloads(*states):
            publish(t, "delta 1")  # another identity each time, and one that is right in between
            t.delta(1, data=data)
            told = mounted.wait_until(
                lambda s=sentence: [p for p in m.status()["problems"] if s in p["error"]],
                lambda s=sentence: (s, m.status()["problems"]))
            assert told[0]["object"].endswith(grail.DELTA)
            (t.folder(1) / f"READY-{t.window(1) + 30}").unlink()
        publish(t, "delta 1")
        m.wait_version(t.window(1))
        holds(m.at, states[1])


def test_no_object(bucket):
    """READY, and what its manifest lists is not there."""
    states = models.states(208, 2, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1")
    (t.folder(1) / "DELTA" / grail.DELTA).unlink()
    with Mount(bucket) as m:
        m.wait_version(t.window(0))
        mounted.wait_until(lambda: grail.DELTA in str(m.status()["problems"]), m.status)
        t.delta(1)
        m.wait_version(t.window(1))
        holds(m.at, states[1])


# ---- verified -----------------------------------------------------------------------------------


def verify(bucket, code=0):
    """What verify --json says."""
    done = mounted.run("verify", "--json", "-q", bucket, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_verify(bucket):
    """SHA-256 of every file that file_manifest lists: weights, deltas and what lies beside them."""
    states = models.states(210, 4, SPEC, skip=STAYS)
    t = grail.Trainer(bucket, states, shards=2)
    publish(t, "full 0", "delta 1", "both 2", "delta 3")
    have = verify(bucket)
    assert (have["ok"], have["versions"], have["whole"]) == (True, 4, 4)
    assert have["sums"] == 2 * 5 + 3 * 2  # two shards, their index, two companions; two per delta
    for hashes in (grail.weights_hash, grail.old_weights_hash):
        t.delta(1, weights_hash=hashes(states[1]))
        have = verify(bucket)
        assert have["ok"] and have["hashes"] == 3
        t.delta(1, weights_hash=hashes(states[2]))
        have = verify(bucket, 1)
        assert len(have["problems"]) == 1 and hashes(states[1]) in have["problems"][0]["error"]
    t.delta(1)
    other = grail.pack(grail.payload(31, states[0], states[3]))
    for path, data in ((t.folder(0) / "FULL" / "tokenizer.json", b"[]"),
                       (t.folder(3) / "DELTA" / grail.DELTA, other)):
        good = path.read_bytes()
        path.write_bytes(data)
        have = verify(bucket, 1)
        told = [p for p in have["problems"] if p["object"] == str(path.relative_to(bucket))]
        assert len(told) == 1 and grail.sha256(data) in told[0]["error"]
        assert grail.sha256(good) in told[0]["error"]
        path.write_bytes(good)
    assert verify(bucket)["ok"]


def test_said(bucket):
    """status, log and --format name it; a run that is laid out otherwise is none of it."""
    states = models.states(211, 2, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1")
    with Mount(bucket, args=["--format", "grail"]) as m:
        m.wait_version(t.window(1))
        assert (m.status()["format"], m.status()["writer"]) == ("grail", "grail")
        holds(m.at, states[1])
    assert "grail" in mounted.run("log", bucket).stdout
    with Mount(bucket, args=["--format", "trl"]) as m:
        told = mounted.wait_until(lambda: str(m.status()["notes"] + m.status()["problems"])
                                  if "grail" in str(m.status()) else "", m.status)
        assert "--format grail" in told and m.status()["version"] is None


@pytest.mark.parametrize("kind", [places.S3Place, places.HubPlace, places.WebPlace])
def test_remote(kind, bucket, monkeypatch):
    """Over a network: the frame is fetched once and unpacked here; what comes later is seen."""
    states = models.states(212, 4, SPEC, skip=STAYS)
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1")
    with kind() as place:
        places.enter(place, monkeypatch)
        place.upload(bucket)
        with Mount(place.url, poll=0.1, args=[*place.args, "--times", "ignore"]) as m:
            m.wait_version(t.window(1))
            holds(m.at, states[1])
            for step in ("delta 2", "both 3"):
                publish(t, step)
                place.upload(bucket)
                m.wait_version(t.window(int(step[-1])))
            holds(m.at, states[3])
            m.wait_well()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_weights_hash(mode, bucket, scratch):
    """A delta that was made for another base fits and is not what the trainer had: weights_hash
    tells, to verify, export and a mount, which goes back; the next FULL goes on."""
    states = models.states(213, 5, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1")
    with Mount(bucket, args=["--verify", mode]) as m:
        m.wait_version(t.window(1))
        t.delta(2, data=grail.payload(31, states[0], states[2])[:-2] + b"\x12\x34")
        t.ready(2)
        told = mounted.wait_until(lambda: [p for p in m.status()["problems"]
                                           if grail.weights_hash(states[2]) in p["error"]],
                                  m.status)
        assert told[0]["object"].endswith(f"checkpoint-{t.window(2)}/DELTA/{grail.DELTA}")
        m.wait_version(t.window(1))
        holds(m.at, states[1])
        have = verify(bucket, 1)
        assert have["hashes"] == 1 and len(have["problems"]) == 1
        assert grail.weights_hash(states[2]) in have["problems"][0]["error"]
        done = mounted.run("export", bucket, "-o", scratch / "out", "--version", t.window(2),
                           check=False)
        assert done.returncode != 0 and grail.weights_hash(states[2]) in done.stderr
        publish(t, "both 3", "delta 4")
        m.wait_version(t.window(4))
        holds(m.at, states[4])


def test_export(bucket, scratch):
    """A FULL without weights_hash is held to its files' SHA-256, a delta's version to its hash."""
    states = models.states(214, 2, models.SMALL, skip=("c.scale",))
    t = grail.Trainer(bucket, states)
    publish(t, "full 0", "delta 1")
    path = t.folder(0) / "FULL" / "model.safetensors"
    data = bytearray(path.read_bytes())
    for version, state in zip((t.window(0), t.window(1)), states):
        mounted.run("export", bucket, "-q", "-o", scratch / f"{version}", "--version", version)
        holds(scratch / f"{version}", state)
    data[-1] ^= 1
    path.write_bytes(data)
    for version, says in ((t.window(0), grail.sha256(data)),
                          (t.window(1), grail.weights_hash(states[1]))):
        out = scratch / f"bad-{version}"
        done = mounted.run("export", bucket, "-o", out, "--version", version, check=False)
        assert done.returncode == 1 and says in done.stderr and not out.exists()
        mounted.run("export", bucket, "-o", out, "--version", version, "--verify", "off")


# ---- large --------------------------------------------------------------------------------------

COLUMNS = 4096
# No frame's window sees these twice.
POOL = np.random.default_rng(9).integers(0, 65536, 512 * COLUMNS).astype("<u2")
MEGABYTES = int(os.environ.get("SOAK_DELTA_MB", "80"))


def stream(frame, rows):
    """Writes a delta of every other element of a tensor of that many rows, with POOL's values."""
    n = rows * COLUMNS // 2
    says = {"name": "t", "shape": [rows, COLUMNS], "num_nonzero": n, "value_dtype": "bfloat16",
            "row_dtype": "uint8", "col_dtype": "uint16", "indices_offset": 0,
            "indices_size": 3 * n, "rows_size": n, "cols_size": 2 * n, "values_offset": 3 * n,
            "values_size": 2 * n}
    step, column = np.zeros(COLUMNS // 2, "u1"), np.full(COLUMNS // 2, 2, "<u2")
    frame.write(grail.compose(31, [says], step.tobytes()))
    step[0] = column[0] = 1
    for _ in range(rows - 1):
        frame.write(step.tobytes())
    for _ in range(rows):
        frame.write(column.tobytes())
    for at in range(0, n, POOL.size):
        frame.write(POOL[:min(n - at, POOL.size)].tobytes())


@pytest.mark.timeout(mounted.LIFETIME + MEGABYTES)
def test_memory(bucket):
    """A delta of SOAK_DELTA_MB megabytes (80) takes no more memory than one of a few."""
    rows = MEGABYTES * 1000000 // (5 * COLUMNS // 2)
    empty = {"t": st.Tensor("BF16", (1, COLUMNS), np.zeros(COLUMNS, "<u2"))}
    t = grail.Trainer(bucket, [empty, empty])
    publish(t, "full 0")
    head = st.frame(st.pad_text(st.header_json({"t": {
        "dtype": "BF16", "shape": [rows, COLUMNS], "data_offsets": [0, 2 * rows * COLUMNS]}})))
    with open(t.folder(0) / "FULL" / "model.safetensors", "wb") as f:
        f.write(head)
        f.truncate(len(head) + 2 * rows * COLUMNS)
    t.delta(1)
    with open(t.folder(1) / "DELTA" / grail.DELTA, "wb") as f, \
            zstandard.ZstdCompressor(level=1).stream_writer(f) as frame:
        stream(frame, rows)
    with Mount(bucket, args=["--verify", "off"]) as m:
        m.wait_version(t.window(0))
        t.ready(1)
        m.wait_version(t.window(1), mounted.WAIT + MEGABYTES)
        told = Path(f"/proc/{m.process.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", told).group(1))
        print(f"{MEGABYTES} MB, peak {peak} kB")
        if mounted.VARIANT == "release":
            assert peak < 40000
        with open(m.at / "model.safetensors", "rb") as f:
            for row in (0, 1, 31, rows // 2, rows - 1):
                f.seek(len(head) + 2 * row * COLUMNS)
                have = np.frombuffer(f.read(2 * COLUMNS), "<u2")
                want = POOL[(row * COLUMNS // 2 + np.arange(COLUMNS // 2)) % POOL.size]
                assert not have[::2].any() and (have[1::2] == want).all(), row


def test_ready_without_its_contents(bucket):
    """A window that is said to be ready and has nothing to read: that is said, and it is shown when
    the rest has come."""
    states = models.states(44, 4, models.SMALL)
    t = grail.Trainer(bucket, states)
    t.full(0)
    t.ready(0)
    with Mount(bucket) as m:
        m.wait_version(t.window(0))
        t.delta(1)
        about = t.folder(1) / "DELTA" / "metadata.json"
        text = about.read_bytes()
        about.unlink()
        t.ready(1)
        mounted.wait_until(lambda: any("has its READY-* and none of what it should be of" in n
                                       for n in m.status()["notes"]), m.status)
        assert m.version() == t.window(0)
        about.write_bytes(text)
        m.wait_version(t.window(1))
        mounted.wait_until(lambda: m.status()["notes"] == [], m.status)
