"""`weightfs publish` into S3: the strict server, its gateway mode, and servers by others."""

import json
import os
import signal
import subprocess
import threading

import numpy as np
import pytest

from lib import driven, models, mounted, publishing, s3_servers
from lib.places import S3Place
from lib import safetensors_py as st
from lib.strict_s3 import Refused

# Larger than what goes in one PUT.
LARGE = {"w": ("BF16", (9, 1 << 20)), "b": ("BF16", (100,))}


def objects_of(place):
    """The run as the server has it."""
    with place.s3.lock:
        return {k.removeprefix("run/"): o.data for k, o in place.s3.objects.items()
                if k.startswith("run/")}


def publisher_of(place, scratch, name="state", args=()):
    """A publisher into a place."""
    return publishing.Publisher(place.url, scratch / name, [*place.args, *args],
                                env=driven.environment(place.env))


@pytest.fixture(params=[False, True], ids=["s3", "gateway"])
def place(request):
    """Both kinds."""
    with S3Place(request.param) as one:
        yield one


@pytest.fixture(name="s3")
def plain_place():
    """The plain kind."""
    with S3Place() as one:
        yield one


def large_states(count):
    """States whose anchors are multipart uploads."""
    rng = np.random.default_rng(41)
    state = {n: st.make(d, s, rng.integers(0, 1 << 16, st.numel(s), dtype=np.uint16))
             for n, (d, s) in LARGE.items()}
    out = [state]
    while len(out) < count:
        state = models.step(rng, state, density=0.0005)
        out.append(state)
    return out


def test_against_itself(place, scratch):
    """Without a copy, against the bucket."""
    publisher = publisher_of(place, scratch, args=["--no-state"])
    states = models.states(15, 3, models.SMALL)
    publisher.publish(states[0])
    for state in states[1:]:
        assert publisher.publish(state, "--against", place.url)["kind"] == "delta"
    publishing.check(objects_of(place), dict(enumerate(states, 1)))


def test_versions(place, scratch):
    """Anchors, deltas, shards, companions; a second publisher is refused by the pointer."""
    publisher = publisher_of(place, scratch)
    states = models.states(42, 5, models.SMALL)
    for i, state in enumerate(states):
        path = publishing.write_checkpoint(scratch / f"c{i}", state, 2 if i == 3 else 1)
        publisher.publish(path, *(["--anchor"] if i == 3 else []))
    publishing.check(objects_of(place), dict(enumerate(states, 1)))
    assert "config.json" in objects_of(place)
    other = publisher_of(place, scratch, "other")
    assert "belongs to another publisher" in other.refused(states[0])


def test_multipart(s3, scratch):
    """A large anchor comes in parts."""
    publisher = publisher_of(s3, scratch)
    states = large_states(2)
    for state in states:
        publisher.publish(state)
    assert len(s3.s3.upload_parts) >= 2 and not s3.s3.uploads
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


def test_network_lost_amid_parts(s3, scratch):
    """Parts fail for good: a sentence, the upload is aborted, and the same command works later."""
    publisher = publisher_of(s3, scratch)
    states = large_states(2)
    s3.s3.patience = 0
    s3.api.fault("PUT .*partNumber=2", "status", times=1000, status=400)
    assert "anchors/step_000001" in publisher.refused(states[0])
    s3.api.faults.clear()
    assert not s3.s3.uploads and publishing.POINTER not in objects_of(s3)
    for state in states:
        publisher.publish(state)
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


def test_cut_connections(s3, scratch):
    """Every kind of request fails now and then; what is repeated is not done twice."""
    publisher = publisher_of(s3, scratch)
    states = models.states(43, 6, models.SMALL)
    for i, state in enumerate(states):
        s3.api.fault("(PUT|GET|HEAD) ", "reset" if i % 2 else "status", times=2, status=503)
        publisher.publish(state)
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


def test_lost_answer(s3, scratch, monkeypatch):
    """The pointer was written and the answer lost: found out, and nothing is published twice."""
    publisher = publisher_of(s3, scratch)
    states = models.states(44, 3, models.SMALL)
    publisher.publish(states[0])
    put, lost = s3.s3.serve_put, []

    def and_then_fail(request, key):
        answer = put(request, key)
        if key.endswith(publishing.POINTER):
            lost.append(key)
            raise Refused(503, "SlowDown")
        return answer

    monkeypatch.setattr(s3.s3, "serve_put", and_then_fail)
    publisher.publish(states[1])
    monkeypatch.setattr(s3.s3, "serve_put", put)
    assert lost
    publisher.publish(states[2])
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


def test_compacted_meanwhile(s3, scratch, monkeypatch):
    """The pointer is replaced between the look at it and the write, by upkeep: once more."""
    publisher = publisher_of(s3, scratch)
    states = models.states(50, 3, models.SMALL)
    publisher.publish(states[0])
    put, between = s3.s3.serve_put, []

    def upkeep_first(request, key):
        if key.endswith(publishing.POINTER) and len(between) < 3:
            between.append(key)
            s3.s3.put(key, s3.s3.objects[key].data + b"\n")
        return put(request, key)

    monkeypatch.setattr(s3.s3, "serve_put", upkeep_first)
    publisher.publish(states[1])
    assert len(between) == 3
    publisher.publish(states[2])
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


def test_no_network(s3, scratch):
    """Nobody answers: an error in a sentence, and later it goes on."""
    states = models.states(45, 2, models.SMALL)
    publisher = publisher_of(s3, scratch)
    publisher.publish(states[0])
    s3.api.fault(" ", "status", times=1000, status=403)
    assert "s3://bucket/run" in publisher.refused(states[1], "--timeout", 1)
    s3.api.faults.clear()
    publisher.publish(states[1])
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


@pytest.mark.parametrize("serving", [s3_servers.moto, s3_servers.rclone], ids=["moto", "rclone"])
def test_servers_by_others(serving, scratch):
    """moto, and rclone, which knows no conditions."""
    states = models.states(46, 4, models.SMALL)
    with serving(scratch) as endpoint:
        publisher = publishing.Publisher(
            f"s3://{s3_servers.BUCKET}/run", scratch / "state", ["--endpoint-url", endpoint],
            env=driven.environment(driven.keys()))
        for state in states:
            publisher.publish(state)
        client = s3_servers.client(endpoint)
        rows = client.list_objects_v2(Bucket=s3_servers.BUCKET, Prefix="run/")["Contents"]
        have = {r["Key"].removeprefix("run/"):
                client.get_object(Bucket=s3_servers.BUCKET, Key=r["Key"])["Body"].read()
                for r in rows}
    publishing.check(have, dict(enumerate(states, 1)))


def test_interrupted(s3, scratch, monkeypatch):
    """SIGTERM amid an upload: a sentence, soon, and nothing is lost."""
    publisher = publisher_of(s3, scratch)
    states = large_states(2)
    path = publishing.write_checkpoint(scratch / "c", states[0])
    put, come, go = s3.s3.serve_put, threading.Event(), threading.Event()

    def held(request, key):
        come.set()
        go.wait(mounted.WAIT)
        return put(request, key)

    monkeypatch.setattr(s3.s3, "serve_put", held)
    process = subprocess.Popen(publisher.command(path), env=publisher.env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert come.wait(mounted.WAIT), "no part was sent"
    mounted.deliver(process, signal.SIGTERM)
    go.set()
    _, text = process.communicate(timeout=mounted.WAIT)
    assert process.returncode == 1 and b"interrupted; nothing was published" in text, text
    for state in states:
        publisher.publish(state)
    publishing.check(objects_of(s3), dict(enumerate(states, 1)))


def test_hub_gateway(scratch):
    """hf://buckets by the Hub's S3 gateway, with keys that belong to it."""
    with S3Place(True) as place:
        place.s3.path = "/ns"
        env = {**driven.environment(place.env), "AWS_ACCESS_KEY_ID": "AKIDMARKED",
               "WEIGHTFS_HF_S3_ENDPOINT": place.s3.s3.origin}
        publisher = publishing.Publisher("hf://buckets/ns/bucket/run", scratch / "state", env=env)
        states = models.states(47, 2, models.SMALL)
        for state in states:
            publisher.publish(state)
        publishing.check(objects_of(place), dict(enumerate(states, 1)))


def test_mounted(place, scratch, monkeypatch):
    """Published, and mounted from there."""
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    publisher = publisher_of(place, scratch)
    states = models.states(48, 3, models.SMALL)
    publisher.publish(states[0])
    with mounted.Mount(place.url, args=place.args) as mount:
        for version, state in enumerate(states, 1):
            if version > 1:
                publisher.publish(state)
            mount.wait_version(version)
            blob = (mount.at / "model.safetensors").read_bytes()
            assert publishing.same_state(st.load(blob)[0], state)


def test_secrets_stay(s3, scratch):
    """The state and what is said hold no credentials (the suite searches for them, too)."""
    publisher = publisher_of(s3, scratch)
    report = publisher.publish(models.states(49, 1, models.MINI)[0])
    text = json.dumps(report) + "".join(
        p.read_bytes().decode("latin1") for p in publisher.state_dir.rglob("*") if p.is_file())
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text and "SECRETMARKED" not in text
