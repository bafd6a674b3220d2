"""Runs that weightfs.json describes, as mounts and tools see them."""

import json
import shutil

import pytest

from lib import checks, models, mounted, published
from lib import safetensors_py as st


def start(bucket, count=5, seed=3, spec=models.SMALL, anchors=(), same=(), shards=1, **kwargs):
    """A run of `count` versions."""
    run = published.Published(bucket, shards=shards, **kwargs)
    return run.publish_all(models.states(seed, count, spec, same=same), anchors)


def assert_version(mount, run, number):
    """Current and right, to the last byte."""
    mount.wait_version(number)
    checks.assert_tree(mount.at, run.weights(number), f"version {number}")


@pytest.mark.parametrize("shards", [1, 3])
def test_followed_and_joined_late(shards, bucket):
    """Every version as it comes, and by a mount that comes late; anchors change nothing."""
    states = models.states(5, 12, models.MIXED, same=(4,))
    run = published.Published(bucket, shards=shards)
    run.publish_all(states[:2])
    with mounted.Mount(bucket) as mount:
        for state in states[2:]:
            number = run.publish(state, anchor=run.newest() + 1 in (6, 9))
            assert_version(mount, run, number)
        status = mount.status()
        assert status["lineage"] == run.lineage and status["anchor"] == 1
        assert not status["problems"]
        with mounted.Mount(bucket) as late:
            assert_version(late, run, run.newest())
            assert late.status()["anchor"] == 9
            numbers = list(range(1, run.newest() + 1))
            for one in (mount, late):
                mounted.wait_until(lambda m=one: m.versions() == numbers, one.versions)
                for number in numbers:
                    checks.assert_tree(one.tree(number), run.weights(number), f"late {number}")


def test_joined_at_every_version(bucket):
    """Wherever one begins to look."""
    states = models.states(6, 6, models.MINI)
    run = published.Published(bucket)
    for state in states:
        number = run.publish(state, anchor=run.newest() + 1 == 4)
        with mounted.Mount(bucket) as mount:
            assert_version(mount, run, number)


def test_strays_are_ignored(bucket):
    """What the pointer does not name is no part of the run, whatever it is called."""
    run = start(bucket, 3)
    orphan = bucket / "deltas/step_000004-deadbeef.safetensors"
    run.states[4] = models.states(9, 1, models.SMALL)[0]
    orphan.write_bytes(run.patch(3, 4))
    named = bucket / "deltas/step_000004.safetensors"
    shutil.copy(orphan, named)
    (bucket / "anchors/step_000009.safetensors").write_bytes(st.dump(run.states[4]))
    for path in (orphan, named, bucket / "anchors/step_000009.safetensors"):
        published.age(path, 60)
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 3)
        status = mount.status()
        assert not status["problems"]
        assert any("3 objects are not named by weightfs.json" in n for n in status["notes"])


def test_damaged_pointer(bucket):
    """The last good one stays; without one nothing is guessed."""
    run = start(bucket, 3)
    pointer = bucket / published.POINTER
    good = pointer.read_bytes()
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 3)
        for bad, words in ((b"{", "not JSON"), (good.replace(b'"version": 1', b'"version": 9', 1),
                                                "version 9")):
            run.put(published.POINTER, bad)
            mounted.wait_until(lambda w=words: w in (mount.problem(published.POINTER) or ""), bad)
            assert_version(mount, run, 3)
            with mounted.Mount(bucket) as fresh:
                assert words in fresh.wait_problem(published.POINTER)
                assert fresh.version() in (None, 0)
        pointer.unlink()
        mounted.wait_until(lambda: "gone" in (mount.problem(published.POINTER) or ""), "gone")
        run.publish(models.states(3, 4, models.SMALL)[3])
        assert_version(mount, run, 4)
        assert not mount.status()["problems"]


def test_missing_object(bucket):
    """The newest whole version wins, and the run goes on when the object comes."""
    run = start(bucket, 4)
    path = run.path(4)
    kept = path.read_bytes()
    path.unlink()
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 3)
        assert "is not there" in mount.wait_problem(run.entry(4)["objects"][0]["key"])
        path.write_bytes(kept)
        assert_version(mount, run, 4)
        assert not mount.status()["problems"]


@pytest.mark.parametrize("what", ["flip", "size", "lineage", "base_state", "state", "base_version",
                                  "model_version", "encoding", "none"])
def test_foreign_and_damaged_deltas(what, bucket):
    """A delta that is damaged, or made for another base, is never applied."""
    run = start(bucket, 3)
    path = run.path(3)
    body = path.read_bytes()
    if what == "flip":
        at = len(body) // 2
        path.write_bytes(body[:at] + bytes([body[at] ^ 1]) + body[at + 1:])
    elif what == "size":
        path.write_bytes(body + b"\0" * 8)
    elif what == "none":
        other = st.dump({"model.x": st.make("I64", (3,), [1, 2, 3])})
        path.write_bytes(other)
        run.entry(3)["objects"][0]["size"] = len(other)
    else:
        value = {"encoding": "wfp9", "lineage": "00000000"}.get(what, "7" * 32)
        body = run.patch(2, 3, **{what: value})
        path.write_bytes(body)
        run.entry(3)["objects"][0]["size"] = len(body)
    run.pointer()
    words = {"flip": "", "size": "bytes, and weightfs.json says", "encoding": "wfp9",
             "none": "encoding"}.get(what, f"has the {what} ")
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 2)
        assert words in mount.wait_problem(run.entry(3)["objects"][0]["key"])


def test_unknown_encoding(bucket):
    """Refused by name, without a look at the object."""
    run = start(bucket, 3)
    run.entry(3)["encoding"] = "wfp9"
    run.pointer()
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 2)
        assert '"wfp9"' in mount.wait_problem(run.entry(3)["objects"][0]["key"])


def test_restart_and_rewind(bucket):
    """A new lineage, and a pointer that was set back, are followed."""
    run = start(bucket, 5)
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 5)
        kept = list(run.steps)
        run.steps = kept[:3]
        run.pointer()
        assert_version(mount, run, 3)
        number = run.publish(models.states(77, 1, models.SMALL)[0])
        assert_version(mount, run, number)
        again = published.Published(bucket, lineage="00c0ffee")
        again.names = 100
        again.publish_all(models.states(78, 2, models.SMALL))
        assert_version(mount, again, 2)
        assert mount.status()["lineage"] == "00c0ffee"


def test_spans(bucket):
    """Who joins late takes the largest that fit; the deltas they stand for need not exist."""
    run = start(bucket, 14, spec=models.MINI)
    run.span(1, 5)
    run.span(1, 9)
    run.span(9, 13)
    for version in range(2, 14):
        run.path(version).unlink()
    with mounted.Mount(bucket, keep=1) as mount:
        assert_version(mount, run, 14)
        assert not mount.status()["problems"]
        assert [s["state"] for s in mount.status()["spans"]] == ["unread", "ok", "ok"]
        # Also when nothing has happened for so long that rounds are cut short.
        mounted.wait_until(lambda: mount.status()["counters"]["scans_alike"], "no quiet round")
        run.publish(models.states(3, 15, models.MINI)[14])
        assert_version(mount, run, 15)


def test_spans_that_come_later(bucket):
    """Who has a shorter way already does not fetch a longer span."""
    run = start(bucket, 6, spec=models.MINI)
    run.span(1, 5)
    with mounted.Mount(bucket, keep=1) as mount:
        assert_version(mount, run, 6)
        run.span(1, 6)
        for state in models.states(3, 9, models.MINI)[6:]:
            assert_version(mount, run, run.publish(state))
        run.span(1, 9)
        assert_version(mount, run, run.publish(models.states(3, 10, models.MINI)[9]))
        states = {(s["base"], s["version"]): s["state"] for s in mount.status()["spans"]}
        assert states == {(1, 5): "ok", (1, 6): "unread", (1, 9): "unread"}


def test_span_that_is_damaged(bucket):
    """Then the deltas are used, as without it."""
    run = start(bucket, 6, spec=models.MINI)
    path = run.span(1, 5)
    body = bytearray(path.read_bytes())
    body[-20] ^= 1
    path.write_bytes(body)
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 6)
        assert mount.wait_problem(str(path.relative_to(bucket)))


def test_copied_without_pointer(bucket):
    """Single files with TRL's names work by their metadata."""
    run = start(bucket, 4)
    plain = bucket.parent / "plain"
    (plain / "deltas").mkdir(parents=True)
    (plain / "anchors").mkdir()
    shutil.copy(run.path(1, "anchor"), plain / "anchors/step_000001.safetensors")
    for version in (2, 3):
        shutil.copy(run.path(version), plain / f"deltas/step_{version:06d}.safetensors")
    with mounted.Mount(plain) as mount:
        assert_version(mount, run, 3)
        (plain / "deltas/step_000004.safetensors").write_bytes(
            run.patch(3, 4, base_state="0" * 32))
        assert "made for another version 3" in mount.wait_problem("")
        assert mount.version() == 3
    tagged = bucket.parent / "tagged" / "anchors"
    tagged.mkdir(parents=True)
    shutil.copy(run.path(1, "anchor"), tagged / "step_000001-0123abcd.safetensors")
    said = mounted.run("log", tagged.parent)
    assert "there is no weightfs.json yet, or none any more" in said.stderr


def test_with_base(bucket, scratch):
    """The base's files, with the run's tensors in them."""
    states = models.states(4, 3, models.SMALL)
    run = published.Published(bucket).publish_all(states)
    base = models.write_base(scratch / "base", states[0], shards=2)
    with mounted.Mount(bucket, base=base) as mount:
        mount.wait_version(3)
        for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            tensors, _ = st.load_file(mount.at / name)
            for tensor, value in tensors.items():
                assert value.data.tobytes() == states[2][tensor].data.tobytes()
    assert run.newest() == 3


def test_many_versions(bucket):
    """Stacks are folded; what is shown stays right."""
    states = models.states(8, 45, models.MINI)
    run = published.Published(bucket).publish_all(states)
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 45)
        for number in mount.versions():
            checks.assert_tree(mount.tree(number), run.weights(number), f"version {number}")


def test_log_and_inspect(bucket):
    """The tools name encodings and spans."""
    run = start(bucket, 3, anchors=(3,))
    run.span(1, 3)
    log = json.loads(mounted.run("log", "--json", bucket).stdout)
    assert {v["encoding"] for v in log} == {"safetensors", "wfp1"}
    assert "wfp1" in mounted.run("log", bucket).stdout
    assert "wfp1" in mounted.run("inspect", run.path(2)).stdout.splitlines()[0]
    with mounted.Mount(bucket) as mount:
        assert_version(mount, run, 3)
        assert mount.status()["pointer"]["host"] == "trainer-0"
        assert "versions 1 to 3 in one" in mounted.run("status", mount.at).stdout


def lie(run, version):
    """A delta that is in order in itself but does not lead to the state it names."""
    truth = run.states[version]
    wrong = dict(truth)
    wrong["b.weight"] = st.Tensor("BF16", truth["b.weight"].shape, truth["b.weight"].data + 1)
    run.states[version] = wrong
    body = run.patch(version - 1, version, state=published.state_hash(truth),
                     hashes="".join(published.tensor_hash(truth[n]).hex() for n in truth))
    run.states[version] = truth
    run.path(version).write_bytes(body)
    run.entry(version)["objects"][0]["size"] = len(body)
    run.pointer()


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("shards", [1, 2])
def test_verify_and_export(shards, bucket, scratch):
    """Hashes of states are compared; a tensor that is not as published is named."""
    run = start(bucket, 5, anchors=(4,), shards=shards, same=(2,))
    run.span(1, 5)
    result = json.loads(mounted.run("verify", "--json", "-q", bucket).stdout)
    assert result["ok"] and result["hashes"] == 5
    mounted.run("export", "-q", bucket, "-o", scratch / "out")
    checks.assert_tree(scratch / "out", run.weights(5))
    run.spans = []
    lie(run, 5)
    done = mounted.run("verify", "--json", "-q", bucket, check=False)
    problems = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and len(problems) == 1
    assert 'tensor "b.weight" is not as published' in problems[0]["error"]
    done = mounted.run("export", "-q", bucket, "-o", scratch / "bad", check=False)
    assert done.returncode == 1 and "was published" in done.stderr
    assert not (scratch / "bad").exists()


@pytest.mark.usefixtures("own_cache")
def test_export_over_spans(bucket, scratch):
    """The newest version is that of the pointer, although its delta was not looked into."""
    run = start(bucket, 6)
    run.span(1, 6)
    assert mounted.run("export", "-q", bucket, "-o", scratch / "out").stdout == "6\n"
    checks.assert_tree(scratch / "out", run.weights(6))
