"""`weightfs publish hf://buckets/...` with nothing but the Hub's token: through `hf`, its command
line, whose own parser takes our words."""

import json
import os

import pytest

from lib import leaks, models, mounted, publishing
from lib.fake_hf import Uploads
from lib.fake_hub import VALID, FakeHub

DEST = "hf://buckets/org/run/here"


@pytest.fixture
def hub():
    """A Hub with a private bucket."""
    with FakeHub() as one:
        one.bucket("org/run", private=True)
        yield one


@pytest.fixture
def uploads(hub):
    """What `hf` uploads into it."""
    with Uploads(hub) as one:
        yield one


def environment(hub, path, **extra):
    """A token, no key of S3."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_", "HUGGING"))}
    return {**env, "PATH": path, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": VALID,
            "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1", **extra}


def objects(hub):
    """{key: bytes} of the run."""
    with hub.lock:
        return {path.removeprefix("here/"): one.data
                for path, one in hub.buckets["org/run"].files.items()}


def test_the_real_parser(hub, uploads, scratch):
    """The words are such as the real client takes; the token is in none of them."""
    env = environment(hub, uploads.install(scratch, real=True))
    publisher = publishing.Publisher(DEST, scratch / "state", env=env)
    state = models.states(51, 1, models.MINI)[0]
    checkpoint = publishing.write_checkpoint(scratch / "one", state, companions=False)
    assert publisher.publish(checkpoint)["kind"] == "anchor"
    publishing.check(objects(hub), {1: state})
    assert len(uploads.words) >= 3 and VALID not in json.dumps(uploads.words)
    assert uploads.words[-1][-1] == DEST + "/weightfs.json"


def test_versions(hub, uploads, scratch, monkeypatch):
    """Deltas and companions; weights are given by the names of their files, the pointer is last;
    a mount follows."""
    (scratch / "tmp").mkdir()
    env = environment(hub, uploads.install(scratch), TMPDIR=str(scratch / "tmp"))
    publisher = publishing.Publisher(DEST, scratch / "state", env=env)
    states = models.states(52, 3, models.SMALL)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    publisher.publish(states[0])
    with mounted.Mount(DEST) as mount:
        for version, state in enumerate(states, 1):
            if version > 1:
                assert publisher.publish(state)["kind"] == "delta"
            mount.wait_version(version)
    publishing.check(objects(hub), dict(enumerate(states, 1)))
    anchor = next(w for w in uploads.words if "/anchors/" in w[-1])
    assert anchor[-2].startswith(str(scratch)) and anchor[-2].endswith(".safetensors")
    assert "config.json" in objects(hub)
    assert not os.listdir(scratch / "tmp")


def test_upkeep(hub, uploads, scratch):
    """compact and prune go the same way."""
    env = environment(hub, uploads.install(scratch))
    publisher = publishing.Publisher(DEST, scratch / "state", env=env)
    states = models.states(57, 5, models.SMALL)
    for state in states[:4]:
        publisher.publish(state)
    publisher.publish(states[4], "--anchor")
    mounted.run("compact", "--from", 1, "--to", 4, DEST, env=env)
    spans = publishing.pointer(objects(hub))["spans"]
    assert [(s["base"], s["version"]) for s in spans] == [(1, 4)]
    uploads.install(scratch, real=True)  # whose parser takes the words of rm, too
    hub.put("org/run", {"here/deltas/step_000009-00000000.safetensors": b"left over"})
    done = mounted.run("prune", "--orphans-after", 0, DEST, env=env)
    assert "step_000009" in done.stdout
    assert not any("step_000009" in key for key in objects(hub))
    assert any(words[:4] == ["buckets", "rm", "--yes", "--quiet"] for words in uploads.words)
    publishing.check(objects(hub), dict(enumerate(states, 1)))


def test_token_file(hub, uploads, scratch):
    """The file's token goes into the environment."""
    leaks.put(scratch / "token", VALID + "\n")
    env = environment(hub, uploads.install(scratch))
    del env["HF_TOKEN"]
    publisher = publishing.Publisher(DEST, scratch / "state",
                                     ["--token-file", scratch / "token"], env=env)
    publisher.publish(models.states(53, 1, models.MINI)[0])
    assert publishing.pointer(objects(hub))["newest"] == 1


def test_refused(hub, uploads, scratch):
    """What `hf` says is in the sentence; the run stays as it was and goes on."""
    env = environment(hub, uploads.install(scratch))
    publisher = publishing.Publisher(DEST, scratch / "state", env=env)
    states = models.states(54, 2, models.MINI)
    publisher.publish(states[0])
    uploads.refuse["here/weightfs.json"] = "403 Forbidden: this token may only read"
    text = publisher.refused(states[1])
    assert "hf buckets cp: Error: 403 Forbidden: this token may only read" in text
    assert "\033" not in text and "Hint" not in text
    publishing.check(objects(hub), {1: states[0]})
    uploads.refuse.clear()
    publisher.publish(states[1])
    publishing.check(objects(hub), dict(enumerate(states, 1)))


def test_another_publisher(hub, uploads, scratch):
    """There is no compare-and-swap, but a pointer that has changed meanwhile is seen."""
    env = environment(hub, uploads.install(scratch))
    one = publishing.Publisher(DEST, scratch / "one", env=env)
    states = models.states(55, 2, models.MINI)
    one.publish(states[0])

    def other(path):
        if "step_000002" in path:
            known = json.loads(objects(hub)["weightfs.json"])
            known["publisher"].update(id="f" * 32, host="another")
            hub.put("org/run", {"here/weightfs.json": json.dumps(known).encode()})

    uploads.before = other
    text = one.refused(states[1])
    assert "another" in text or "changed" in text, text
    assert publishing.pointer(objects(hub))["newest"] == 1


def test_which_way(hub, uploads, scratch):
    """--uploader; and what is missing is said."""
    path = uploads.install(scratch)
    state = models.states(56, 1, models.MINI)[0]
    keys = {"AWS_ACCESS_KEY_ID": "HFAKMARKED", "AWS_SECRET_ACCESS_KEY": "SECRETMARKED"}
    both = publishing.Publisher(DEST, scratch / "both", ["--uploader", "hf"],
                                env=environment(hub, path, **keys))
    both.publish(state)
    env = environment(hub, "/nonexistent")
    text = publishing.Publisher(DEST, scratch / "none", env=env).refused(state)
    assert "hf, the Hub's command line, is not in PATH" in text and "--uploader s3" in text
    text = publishing.Publisher("hf://org/model", scratch / "repo",
                                env=environment(hub, path)).refused(state)
    assert "only buckets" in text
