"""--verify: what is not as its writer recorded never becomes visible, or is taken out again."""

import os
import shutil
import subprocess

import pytest

from lib import hfdir, models, mounted, publishing
from lib import safetensors_py as st
from lib.mounted import Mount

pytestmark = pytest.mark.usefixtures("own_cache")

MODEL = "model.safetensors"


def raw(path):
    return {n: t.data.tobytes() for n, t in st.load_file(path)[0].items()}


def holds(top, state):
    assert raw(top / MODEL) == {n: t.data.tobytes() for n, t in state.items()}


def verified(m, want):
    mounted.wait_until(lambda: m.status()["verified"] == want, m.status)


def bad_delta(t, version):
    """A delta whose bytes are another state's, with the sums of the right one."""
    real = t.states[version]
    changed = {n: real[n] for n in real}
    name = next(n for n, x in real.items() if x.data.size > 10)
    bits = real[name].data.copy()
    bits.view("u1").reshape(-1)[5] ^= 1
    changed[name] = st.Tensor(real[name].dtype, real[name].shape, bits)
    old, new = t.bytes_of(version - 1), {n: x.data.tobytes() for n, x in changed.items()}
    t.delta(version, wrong={name: hfdir.compress(hfdir.change(old[name], new[name], t.encoding))})
    return name


@pytest.mark.parametrize("mode", ["lazy", "eager"])
@pytest.mark.parametrize("sums, encoding", [("xxh3-128", "xor"), ("adler32", "overwrite")])
def test_right(mode, sums, encoding, bucket, scratch):
    """A run that is as it should be is verified, each version that comes, also where a tensor has
    not been changed for long."""
    states = models.states(81, 5, models.TINY)
    still = next(iter(states[0]))
    for state in states[2:]:
        state[still] = states[1][still]
    base = models.write_base(scratch / "base", states[0])
    t = hfdir.Trainer(bucket, states, encoding, sums=sums)
    t.delta(1)
    with Mount(bucket, base=base, args=["--verify", mode]) as m:
        for version in (1, 2, 3, 4):
            if version > 1:
                t.delta(version)
            m.wait_version(version)
            verified(m, "yes")
            holds(m.at, states[version])
        m.wait_well()
        assert f"verified: yes (--verify {mode})" in mounted.run("status", m.at).stdout


def test_wrong_base_eager(bucket, scratch):
    """XOR over another base than the trainer's: no version of it is ever visible."""
    states = models.states(82, 5, models.TINY)
    other = models.states(83, 1, models.TINY)[0]
    base = models.write_base(scratch / "base", other)
    t = hfdir.Trainer(bucket, states)
    for version in (1, 2, 3):
        t.delta(version)
    with Mount(bucket, base=base, args=["--verify", "eager"]) as m:
        sentence = m.wait_problem("weight_v000001/model-00000-of-00002.safetensors")
        assert "has the checksum" in sentence and "--base is not the checkpoint" in sentence
        assert m.version() == 0 and m.versions() == [0]
        holds(m.at, other)
        # A whole checkpoint needs no base: the run goes on from there.
        t.full(4)
        m.wait_version(4)
        holds(m.at, states[4])
    with Mount(bucket, base=models.write_base(scratch / "right", states[0]),
               args=["--verify", "eager"]) as m:
        m.wait_version(4)
        mounted.wait_until(lambda: m.versions() == [0, 1, 2, 3, 4], m.status)


def test_wrong_base_lazy(bucket, scratch):
    """The same, found afterwards: all that is built on version 1 goes; what is open stays."""
    states = models.states(84, 7, models.TINY)
    other = models.states(85, 1, models.TINY)[0]
    base = models.write_base(scratch / "base", other)
    t = hfdir.Trainer(bucket, states)
    for version in (1, 2, 3, 4, 5):
        t.delta(version)
    with Mount(bucket, base=base, args=["--verify", "off"]) as m:
        m.wait_version(5)
        mounted.wait_until(lambda: m.versions() == [0, 1, 2, 3, 4, 5], m.status)
        wrong = raw(m.at / MODEL)
        assert m.status()["verified"] == "no"
    with Mount(bucket, base=base) as m:
        m.wait_problem("weight_v000001/model-00000-of-00002.safetensors")
        mounted.wait_until(lambda: m.version() == 0 and m.versions() == [0], m.status)
        holds(m.at, other)
        assert raw(m.at / MODEL) != wrong
        t.delta(6)  # on what was taken out: not shown either
        mounted.wait_until(lambda: "weight_v000001" in m.status()["line"] or
                           m.status()["problems"], m.status)
        assert m.version() == 0


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_bad_in_the_middle(mode, bucket):
    """One delta of a chain is not as recorded: the version before stays, and the next whole
    checkpoint goes on.  The first version that is wrong is found below later ones."""
    states = models.states(86, 8, models.TINY)
    t = hfdir.Trainer(bucket, states)
    t.full(1)
    t.delta(2)
    t.delta(3)
    name = bad_delta(t, 4)
    t.delta(5)
    with Mount(bucket, args=["--verify", mode]) as m:
        mounted.wait_until(lambda: m.version() == 3, m.status)
        holds(m.at, states[3])
        mounted.wait_until(lambda: m.status()["problems"], m.status)
        key = next(p["object"] for p in m.status()["problems"])
        assert key.startswith("weight_v000004/")
        m.wait_problem(key, f'"{name}"')
        mounted.wait_until(lambda: m.versions() == [1, 2, 3], m.status)
        t.full(6)
        m.wait_version(6)
        t.delta(7)
        m.wait_version(7)
        verified(m, "yes")
        holds(m.at, states[7])
        # Written again, as it should be.
        shutil.rmtree(t.folder(4))
        shutil.rmtree(t.folder(5))
        assert m.version() == 7
    mounted.run("verify", "-q", bucket)


def test_open_stays(bucket):
    """Who has opened a version that is taken out reads on; a new open gets the one before."""
    states = models.states(87, 4, models.TINY)
    t = hfdir.Trainer(bucket, states)
    t.full(1)
    t.delta(2)
    with Mount(bucket, args=["--poll", "2"]) as m:
        m.wait_version(2)
        verified(m, "yes")
        bad_delta(t, 3)
        mounted.wait_until(lambda: m.version() == 3 or m.status()["problems"], m.status)
        # It is shown for one poll at least, since what is compared is taken at the next.
        with open(m.at / MODEL, "rb") as f:
            seen = m.version()
            first = f.read()
            m.wait_problem("weight_v000003/model-00000-of-00002.safetensors")
            mounted.wait_until(lambda: m.version() == 2, m.status)
            f.seek(0)
            assert f.read() == first
        assert seen in (2, 3)
        holds(m.at, states[2])
        holds(m.tree(2), states[2])
        mounted.wait_until(lambda: 3 not in m.versions(), m.status)


def test_export(bucket, scratch):
    """export compares as well, and writes all the same when it is told not to."""
    states = models.states(88, 4, models.TINY)
    t = hfdir.Trainer(bucket, states)
    t.full(1)
    t.delta(2)
    bad_delta(t, 3)
    done = mounted.run("export", bucket, "-o", scratch / "out", check=False)
    assert done.returncode == 1 and "--verify off" in done.stderr and "checksum" in done.stderr
    assert not os.path.exists(scratch / "out")
    mounted.run("export", bucket, "--verify", "off", "-o", scratch / "out")
    mounted.run("export", bucket, "--version", "2", "-o", scratch / "two")
    holds(scratch / "two", states[2])


@pytest.mark.parametrize("right, number", [(True, 1), (False, 1), (False, 0)])
def test_whole_checkpoints(right, number, bucket):
    """ModelExpress's sums in a whole checkpoint: one that is damaged is not shown at all."""
    states = models.states(91, 3, models.TINY)
    t = hfdir.Trainer(bucket, states, sums="adler32")
    sums = {f"mx.adler32:{n}": hfdir.CHECKSUMS["adler32"](x) for n, x in t.bytes_of(number).items()}
    if not right:
        sums[next(k for k in sums if k.endswith("weight"))] = "00000002"
    t.folder(number).mkdir(parents=True)
    t.put(number, MODEL, st.dump(states[number], {"format": "pt", **sums}))
    if right:
        t.delta(2)
    for mode in ("lazy", "eager"):
        with Mount(bucket, args=["--verify", mode]) as m:
            if right:
                m.wait_version(2)
                verified(m, "yes")
            else:
                mounted.wait_until(lambda: m.status()["state"] == "waiting" and
                                   m.status()["problems"], m.status)
                assert "checksum" in m.problem(f"weight_v{number:06}/{MODEL}")


def test_states(bucket, scratch):
    """eager compares the states of weightfs.json, too: a version that has another is not shown."""
    states = models.states(90, 2, models.TINY)
    for n, state in enumerate(states, 1):
        publishing.write_checkpoint(scratch / str(n), state)
        mounted.run("publish", scratch / str(n), bucket, "--state-dir", scratch / "state")
    with Mount(bucket, args=["--verify", "eager"]) as m:
        m.wait_version(2)
        verified(m, "yes")
        holds(m.at, states[1])
    anchor = next((bucket / "anchors").rglob("*.safetensors"))
    blob, times = bytearray(anchor.read_bytes()), anchor.stat()
    blob[-1] ^= 1
    anchor.write_bytes(blob)
    os.utime(anchor, ns=(times.st_atime_ns, times.st_mtime_ns))
    with Mount(bucket, args=["--verify", "eager"]) as m:
        mounted.wait_until(lambda: m.status()["problems"], m.status)
        assert "has the state" in m.status()["problems"][0]["error"]
        assert m.status()["state"] == "waiting"


def test_blake3(bucket):
    """Compared where its library is; without it nothing is, and nothing is called verified."""
    known = subprocess.run(["pkg-config", "--exists", "libblake3"], check=False).returncode == 0
    states = models.states(89, 4, models.TINY)
    t = hfdir.Trainer(bucket, states, sums="blake3")
    t.full(1)
    t.delta(2)
    with Mount(bucket, args=["--verify", "eager"]) as m:
        m.wait_version(2)
        verified(m, "yes" if known else "no")
        holds(m.at, states[2])
        if known:
            bad_delta(t, 3)
            m.wait_problem("weight_v000003/model-00000-of-00002.safetensors")
            assert m.version() == 2


def test_sums_that_are_none(bucket):
    """What stands where a checksum should be and is none, or of a kind that is not known, makes a
    version unusable: it cannot be told what its writer meant."""
    states = models.states(90, 5, models.SMALL)
    t = hfdir.Trainer(bucket, states)
    t.full(1)
    t.delta(2)
    with Mount(bucket, args=["--verify", "off"]) as m:
        m.wait_version(2)
        sums = dict(hfdir.CHECKSUMS)
        for wrong in (lambda data: "zz", lambda data: sums["xxh3-128"](data)[1:],
                      lambda data: "0x" + sums["adler32"](data)):
            t.sums = "wrong"
            try:
                hfdir.CHECKSUMS["wrong"] = wrong
                t.delta(3)
            finally:
                del hfdir.CHECKSUMS["wrong"]
            index = t.folder(3) / hfdir.INDEX
            mounted.wait_until(lambda: 'has the checksum_format "wrong"' in
                               (m.problem(f"weight_v000003/{hfdir.INDEX}") or ""), m.status)
            t.put(3, hfdir.INDEX, index.read_bytes().replace(b'"wrong"', b'"xxh3-128"'))
            m.wait_problem("weight_v000003/model-00000-of-00002.safetensors", "which is none")
            assert m.version() == 2
        t.sums = "xxh3-128"
        t.delta(3)
        m.wait_version(3)
        holds(m.at, states[3])
