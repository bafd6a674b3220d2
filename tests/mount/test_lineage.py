"""Everything that can happen to a run: the rows of the table in the README's "What is current",
each with real mounts, for runs ordered by names and times (TRL's layout), by weightfs.json, and by
version directories.

A row here is a row there: its situation and the sentences it has in quotation marks are looked for
in the README.
"""

import json
import os
import re
import shutil
import time

import pytest

from lib import hfdir, models, mounted, published
from lib import safetensors_py as st
from lib.lineage_models import FEWER, OTHER
from lib.lineages import (MODEL, Directories, Names, Row, declared_run, directories_run, names_run,
                          place, same, shows, states, stays, tick)
from lib.mounted import Mount

# ---- a trainer that begins again ----------------------------------------------------------------

AGAIN = Row("a trainer begins again from 1",
            ("older than one with a lower number", "not named by weightfs.json",
             "left by an earlier run", "was finished after version"))


@AGAIN.case("names")
def again_names(bucket, _):
    """The new run at once."""
    a, b = states(1), states(2)
    writer = names_run(bucket, a, 6)
    with Mount(bucket) as m:
        shows(m, 6, a[6])
        before = m.status()["lineage"]
        writer.anchor(1, b[1])
        shows(m, 1, b[1])
        AGAIN.said(m, "older than one with a lower number")
        assert m.status()["lineage"] != before
        writer.delta(2, b[1], b[2])
        shows(m, 2, b[2])
    with Mount(bucket) as m:
        shows(m, 2, b[2])


@AGAIN.case("declared")
def again_declared(bucket, _):
    """The other lineage is followed."""
    a, b = states(3), states(4)
    declared_run(bucket, a, 5)
    with Mount(bucket) as m:
        shows(m, 5, a[5])
        time.sleep(0.02)
        new = declared_run(bucket, b, 2, lineage="11223344")
        shows(m, 2, b[2])
        AGAIN.said(m, "not named by weightfs.json")
        assert m.status()["lineage"] == "11223344"
        new.publish(b[3])
        shows(m, 3, b[3])


@AGAIN.case("directories")
def again_directories(bucket, _):
    """As by names, an old whole checkpoint included."""
    a, b = states(5), states(6)
    writer = directories_run(bucket, a, 3)
    writer.anchor(4, a[4])
    writer.delta(5, a[4], a[5])
    with Mount(bucket) as m:
        shows(m, 5, a[5])
        writer.anchor(1, b[1])
        shows(m, 1, b[1])
        AGAIN.said(m, "left by an earlier run")
        writer.delta(2, b[1], b[2])
        shows(m, 2, b[2])
    with Mount(bucket) as m:
        shows(m, 2, b[2])


@AGAIN.case("checkpoints")
def again_checkpoints(bucket, _):
    """Where all are whole the highest number counts, and the younger one is named."""
    a, b = states(7), states(8)
    writer = Directories(bucket, "checkpoint-{}")
    for n in (1, 2, 3):
        writer.anchor(n, a[n])
    with Mount(bucket) as m:
        shows(m, 3, a[3])
        writer.anchor(1, b[1])
        AGAIN.said(m, "was finished after version")
        stays(m, 3, a[3])
        for n in (2, 3):
            shutil.rmtree(writer.folder(n))
        shows(m, 1, b[1])


RESUMED = Row("or goes on from somewhere in the middle",
              ("older than one with a lower number", "left by an earlier run"))


@RESUMED.case("names")
def resumed_names(bucket, _):
    """The number that is written now is current, whatever was shown."""
    a = states(9)
    b = [*a[:4], *states(10)[4:]]
    writer = names_run(bucket, a, 7)
    with Mount(bucket) as m:
        shows(m, 7, a[7])
        held = os.open(m.at / MODEL, os.O_RDONLY)
        writer.delta(4, a[3], b[4])
        shows(m, 4, b[4])
        RESUMED.said(m, "older than one with a lower number")
        writer.delta(5, b[4], b[5])
        shows(m, 5, b[5])
        assert st.load(os.pread(held, 1 << 20, 0))[0]["a.weight"].data.tobytes() == \
            a[7]["a.weight"].data.tobytes()
        os.close(held)
    with Mount(bucket) as m:
        shows(m, 5, b[5])


@RESUMED.case("declared")
def resumed_declared(bucket, _):
    """weightfs.json says so."""
    a = states(11)
    b = [*a[:4], *states(12)[4:]]
    writer = declared_run(bucket, a, 7)
    with Mount(bucket) as m:
        shows(m, 7, a[7])
        writer.steps = [e for e in writer.steps if e["version"] < 4]
        writer.publish(b[4])
        shows(m, 4, b[4])
        writer.publish(b[5])
        shows(m, 5, b[5])


@RESUMED.case("directories")
def resumed_directories(bucket, _):
    """As by names."""
    a = states(13)
    b = [*a[:4], *states(14)[4:]]
    writer = directories_run(bucket, a, 7)
    with Mount(bucket) as m:
        shows(m, 7, a[7])
        writer.delta(4, a[3], b[4])
        shows(m, 4, b[4])
        RESUMED.said(m, "left by an earlier run")
        writer.delta(5, b[4], b[5])
        shows(m, 5, b[5])


# ---- pointers -----------------------------------------------------------------------------------

REWOUND = Row("`weightfs.json` or `latest` is set back", ("not named by weightfs.json",))


@REWOUND.case("declared")
def rewound_declared(bucket, _):
    """At once, and forwards again."""
    s = states(15)
    writer = declared_run(bucket, s, 5)
    steps = writer.steps
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        writer.steps = steps[:3]
        time.sleep(0.02)
        writer.pointer()
        shows(m, 3, s[3])
        REWOUND.said(m, "not named by weightfs.json")
        writer.steps = steps
        writer.pointer()
        shows(m, 5, s[5])


@REWOUND.case("directories")
def rewound_directories(bucket, _):
    """The same with latest."""
    s = states(16)
    directories_run(bucket, s, 5)
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        place(bucket / "latest", b"weight_v000003", tick())
        shows(m, 3, s[3])
        place(bucket / "latest", b"weight_v000004", tick())
        shows(m, 4, s[4])


# ---- two at once --------------------------------------------------------------------------------

INTERLEAVED = Row("two runs write into one place",
                  ("so of another run", "applies to version"))


@INTERLEAVED.case("names")
def interleaved_names(bucket, _):
    """A delta of the one is never applied to the other's state."""
    a, b = states(17), states(18)
    one, two = names_run(bucket, a, 5), Names(bucket)
    with Mount(bucket) as m:
        shows(m, 5, a[5])
        two.anchor(1, b[1])
        shows(m, 1, b[1])
        one.delta(6, a[5], a[6])
        INTERLEAVED.said(m, "so of another run")
        stays(m, 1, b[1])
        two.delta(2, b[1], b[2])
        shows(m, 2, b[2])
        one.delta(7, a[6], a[7])
        stays(m, 2, b[2])
        one.anchor(8, a[8])
        shows(m, 8, a[8])
    with Mount(bucket) as m:
        shows(m, 8, a[8])


@INTERLEAVED.case("declared")
def interleaved_declared(bucket, _):
    """Whoever wrote weightfs.json last."""
    a, b = states(19), states(20)
    one = declared_run(bucket, a, 3)
    with Mount(bucket) as m:
        shows(m, 3, a[3])
        two = published.Published(bucket, lineage="55667788")
        two.names = 1000
        for n in (1, 2):
            two.publish(b[n])
            shows(m, n, b[n])
            one.publish(a[n + 3])
            shows(m, n + 3, a[n + 3])


@INTERLEAVED.case("directories")
def interleaved_directories(bucket, _):
    """base_version says whose it is."""
    a, b = states(21), states(22)
    one, two = directories_run(bucket, a, 5), Directories(bucket)
    with Mount(bucket) as m:
        shows(m, 5, a[5])
        two.anchor(1, b[1])
        shows(m, 1, b[1])
        one.delta(6, a[5], a[6])
        INTERLEAVED.said(m, "applies to version")
        stays(m, 1, b[1])
        two.delta(2, b[1], b[2])
        shows(m, 2, b[2])
        stays(m, 2, b[2])


# ---- objects that change, go away, come late ----------------------------------------------------

REWRITTEN = Row("an object is rewritten",
                ("older than one with a lower number", "left by an earlier run",
                 "is damaged and has to be made again"))


@REWRITTEN.case("names")
def rewritten_names(bucket, _):
    """The newest: shown as it is now.  One below: what lies above was made for what it was."""
    s, other = states(23), states(24)
    writer = names_run(bucket, s, 5)
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        writer.delta(5, s[4], other[5])
        shows(m, 5, other[5])
        writer.delta(3, s[2], other[3])
        shows(m, 3, other[3])
        REWRITTEN.said(m, "older than one with a lower number")


@REWRITTEN.case("declared")
def rewritten_declared(bucket, _):
    """It is not what was published: what was shown stays, and a new mount shows the one below."""
    s = states(25)
    writer = declared_run(bucket, s, 5)
    path = writer.path(5)
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        blob = bytearray(path.read_bytes())
        blob[-1] ^= 1
        place(path, bytes(blob), tick())
        stays(m, 5, s[5])
    with Mount(bucket) as m:
        shows(m, 4, s[4])
        REWRITTEN.said(m, "is damaged and has to be made again")


@REWRITTEN.case("directories")
def rewritten_directories(bucket, _):
    """As by names."""
    s, other = states(26), states(27)
    writer = directories_run(bucket, s, 5)
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        writer.delta(5, s[4], other[5])
        shows(m, 5, other[5])
        writer.delta(3, s[2], other[3])
        shows(m, 3, other[3])
        REWRITTEN.said(m, "left by an earlier run")


DELETED = Row("the newest objects are deleted",
              ("stays, although not all of its objects are there",
               "is named by weightfs.json and is not there"))


def deleted(bucket, s, remove):
    """What is shown stays, a new mount shows what is left."""
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        remove()
        DELETED.said(m, "stays, although not all of its objects are there")
        stays(m, 5, s[5])
    with Mount(bucket) as m:
        shows(m, 3, s[3])


@DELETED.case("names")
def deleted_names(bucket, _):
    """Two deltas."""
    s = states(28)
    writer = names_run(bucket, s, 5)
    deleted(bucket, s, lambda: [writer.path(n).unlink() for n in (5, 4)])


@DELETED.case("declared")
def deleted_declared(bucket, _):
    """weightfs.json still names them."""
    s = states(29)
    writer = declared_run(bucket, s, 5)
    deleted(bucket, s, lambda: [writer.path(n).unlink() for n in (5, 4)])
    with Mount(bucket) as m:
        shows(m, 3, s[3])
        DELETED.said(m, "is named by weightfs.json and is not there")


@DELETED.case("directories")
def deleted_directories(bucket, _):
    """Two directories."""
    s = states(30)
    writer = directories_run(bucket, s, 5)
    deleted(bucket, s, lambda: [shutil.rmtree(writer.folder(n)) for n in (5, 4)])


LATE = Row("objects come late, or in another order",
           ("waiting a moment for number", "is named by weightfs.json and is not there",
            "applies to version"))


@LATE.case("names")
def late_names(bucket, _):
    """Within --hole-grace."""
    s = states(31)
    writer = names_run(bucket, s, 3)
    now = time.time()
    with Mount(bucket, hole_grace=1000) as m:
        shows(m, 3, s[3])
        writer.delta(5, s[4], s[5], now + 2)
        LATE.said(m, "waiting a moment for number")
        stays(m, 3, s[3])
        writer.delta(4, s[3], s[4], now + 1)
        shows(m, 5, s[5])


@LATE.case("declared")
def late_declared(bucket, _):
    """weightfs.json before its objects."""
    s = states(32)
    writer = declared_run(bucket, s, 5)
    away = bucket.parent / "away"
    writer.path(4).rename(away)
    with Mount(bucket) as m:
        shows(m, 3, s[3])
        LATE.said(m, "is named by weightfs.json and is not there")
        away.rename(writer.path(4))
        shows(m, 5, s[5])


@LATE.case("directories")
def late_directories(bucket, _):
    """A link of the chain."""
    s = states(33)
    writer = directories_run(bucket, s, 3)
    with Mount(bucket) as m:
        shows(m, 3, s[3])
        at, after = tick(), tick()
        writer.delta(5, s[4], s[5], after)
        LATE.said(m, "applies to version")
        stays(m, 3, s[3])
        writer.delta(4, s[3], s[4], at)
        shows(m, 5, s[5])


SKEWED = Row("the clocks of its objects disagree",
             ("older than one with a lower number", "left by an earlier run"))


def skewed(bucket, s, say):
    """Up to the one that is ahead; all of it with --times ignore."""
    with Mount(bucket) as m:
        shows(m, 3, s[3])
        SKEWED.said(m, say)
    with Mount(bucket, args=["--times", "ignore"]) as m:
        shows(m, 5, s[5])
        m.wait_well()


@SKEWED.case("names")
def skewed_names(bucket, _):
    """One object is of tomorrow."""
    s = states(34)
    writer = names_run(bucket, s, 2)
    writer.delta(3, s[2], s[3], time.time() + 86400)
    for n in (4, 5):
        writer.delta(n, s[n - 1], s[n])
    skewed(bucket, s, "older than one with a lower number")


@SKEWED.case("declared")
def skewed_declared(bucket, _):
    """Times mean nothing."""
    s = states(35)
    writer = declared_run(bucket, s, 5)
    for n in (2, 3, 4):
        os.utime(writer.path(n), (time.time() + 1000 * n * (-1) ** n,) * 2)
    with Mount(bucket) as m:
        shows(m, 5, s[5])
        m.wait_well()


@SKEWED.case("directories")
def skewed_directories(bucket, _):
    """As by names."""
    s = states(36)
    writer = directories_run(bucket, s, 2)
    writer.delta(3, s[2], s[3], time.time() + 86400)
    for n in (4, 5):
        writer.delta(n, s[n - 1], s[n])
    skewed(bucket, s, "left by an earlier run")


ANCHORLESS = Row("there is no anchor, or it is gone",
                 ("there is no complete anchor to start from",
                  "is named by weightfs.json and is not there", "name its directory with --base"))


@ANCHORLESS.case("names")
def anchorless_names(bucket, _):
    """Nothing, until there is one."""
    s = states(37)
    writer = names_run(bucket, s, 4)
    writer.path(1, True).unlink()
    with Mount(bucket) as m:
        ANCHORLESS.said(m, "there is no complete anchor to start from")
        assert m.version() is None and not (m.at / MODEL).exists()
        writer.anchor(5, s[5])
        shows(m, 5, s[5])


@ANCHORLESS.case("declared")
def anchorless_declared(bucket, _):
    """The same, and the object is named."""
    s = states(38)
    writer = declared_run(bucket, s, 4)
    writer.path(1, "anchor").unlink()
    with Mount(bucket) as m:
        ANCHORLESS.said(m, "is named by weightfs.json and is not there")
        assert m.version() is None
        writer.publish(s[5], anchor=True)
        shows(m, 5, s[5])


@ANCHORLESS.case("directories")
def anchorless_directories(bucket, scratch):
    """--base is one."""
    s = states(39)
    writer = Directories(bucket)
    for n in (1, 2):
        writer.delta(n, s[n], s[n + 1])
    with Mount(bucket) as m:
        ANCHORLESS.said(m, "name its directory with --base")
        assert m.version() is None
    with Mount(bucket, base=models.write_base(scratch / "base", s[1])) as m:
        shows(m, 2, s[3])


ROWS = [AGAIN, RESUMED, REWOUND, INTERLEAVED, REWRITTEN, DELETED, LATE, SKEWED, ANCHORLESS, OTHER,
        FEWER]
CASES = [pytest.param(case, id=f"{case.__name__}") for row in ROWS for case in row.cases.values()]


@pytest.mark.parametrize("case", CASES)
def test_row(case, bucket, scratch):
    """One row, one kind of run."""
    case(bucket, scratch)


def test_replayed(bucket):
    """An XOR that is applied a second time, under the next number, never becomes visible where
    checksums are compared before."""
    s = states(46)
    trainer = hfdir.Trainer(bucket, s, shards=1)
    trainer.full(1)
    trainer.delta(2)
    again = {n: hfdir.compress(hfdir.change(t.data.tobytes(), s[2][n].data.tobytes(), "xor"))
             for n, t in s[1].items()}
    trainer.delta(3, wrong=again)
    trainer.delta(4)
    with Mount(bucket, args=["--verify", "eager"]) as m:
        shows(m, 2, s[2])
        m.wait_problem("weight_v000003/model-00000-of-00001.safetensors", "checksum")
        stays(m, 2, s[2])
        trainer.full(5)
        shows(m, 5, s[5])
        assert 3 not in m.versions() and 4 not in m.versions()


def readme_table():
    """{situation: the rest of the row} of the table."""
    text = (mounted.TOP / "README.md").read_text(encoding="utf-8")
    section = text.split("\n## What is current\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M)
    return {a: b for a, b in rows if not a.startswith("-") and a != "what happens"}


def test_readme():
    """The README has these rows, with these sentences."""
    table = readme_table()
    assert list(table) == [row.situation for row in ROWS]
    for row in ROWS:
        for sentence in row.says:
            assert json.dumps(sentence) in table[row.situation], sentence
