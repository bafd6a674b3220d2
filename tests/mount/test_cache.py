"""The verb cache, on what reading a web server has left, and the block cache from the outside."""

import hashlib
import json
import os

import pytest

from lib import fake_server, models, mounted, trl
from lib.mounted import Mount, wait_until

MODEL = {"a.weight": ("BF16", (1500, 1000)), "b.weight": ("BF16", (700, 600))}


@pytest.fixture
def web(bucket):
    """A run of three versions behind a static web server with ranges and an index."""
    models.write_companions(bucket)
    models.publish(trl.Run(bucket, "v3"), models.states(7, 3, MODEL))
    files = {str(p.relative_to(bucket)): p for p in sorted(bucket.rglob("*")) if p.is_file()}
    index = {"objects": [{"key": key, "size": p.stat().st_size, "mtime": p.stat().st_mtime}
                         for key, p in files.items()]}

    def handle(request):
        key = request.path.lstrip("/")
        if key == "index.json":
            return fake_server.ranged(request, json.dumps(index).encode())
        if key not in files:
            return fake_server.Answer(404)
        data = files[key].read_bytes()
        return fake_server.ranged(request, data,
                                  (("ETag", f'"{hashlib.md5(data).hexdigest()}"'),))

    server = fake_server.FakeServer(handle, "web")
    yield server
    server.stop()


def export(web, target):
    """Exports the newest version; the bytes of its model, and how many objects were asked for."""
    since = web.mark()
    mounted.run("export", "-q", "-o", str(target), web.origin)
    return (target / "model.safetensors").read_bytes(), web.count(r"^GET .*safetensors", since)


def shown():
    """What `cache show` says, by name."""
    objects = json.loads(mounted.run("cache", "--json").stdout)["objects"]
    return {one["name"]: one for one in objects}


def blocks(cache, name):
    """The files of an object."""
    identity = shown()[name]["identity"]
    return cache / "blocks" / f"{identity}.data", cache / "blocks" / f"{identity}.index"


def test_show_and_warm(web, own_cache, scratch):
    """What was read is listed, and read again without a single object fetched."""
    assert "0 objects" in mounted.run("cache").stdout
    first, fetches = export(web, scratch / "one")
    assert fetches > 0
    objects = shown()
    anchor = next(name for name in objects if name.startswith("anchors/"))
    assert objects[anchor]["present"] == objects[anchor]["size"] > 0
    assert all(one["damaged"] == 0 for one in objects.values())
    text = mounted.run("cache", "show").stdout
    assert anchor in text and f"{len(objects)} objects" in text and "100 %" in text
    second, fetches = export(web, scratch / "two")
    assert (second, fetches) == (first, 0)


def test_verify(web, own_cache, scratch):
    """A flipped bit is found, dropped, and fetched again alone."""
    first, _ = export(web, scratch / "one")
    assert "objects hashed: " in mounted.run("cache", "verify").stderr
    anchor = next(name for name in shown() if name.startswith("anchors/"))
    data, _ = blocks(own_cache, anchor)
    with data.open("r+b") as f:
        f.seek(300000)
        byte = f.read(1)[0]
        f.seek(300000)
        f.write(bytes([byte ^ 4]))
    done = mounted.run("cache", "verify", "--json", check=False)
    assert done.returncode == 1 and "1 damaged: dropped" in done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["objects"]}
    assert found[anchor]["damaged"] == 1
    assert found[anchor]["present"] == found[anchor]["size"] - (128 << 10)
    assert mounted.run("cache", "verify").returncode == 0
    second, fetches = export(web, scratch / "two")
    assert second == first and fetches == 1
    data.with_suffix(".index").write_bytes(b"something else")
    done = mounted.run("cache", "verify", check=False)
    assert done.returncode == 1 and "damaged" in done.stdout
    third, fetches = export(web, scratch / "three")
    assert third == first and fetches > 0


def test_prune(web, own_cache, scratch):
    """Objects not used for longest go first, the last of them in part."""
    first, _ = export(web, scratch / "one")
    anchor = next(name for name in shown() if name.startswith("anchors/"))
    for name in blocks(own_cache, anchor):
        os.utime(name, (1000, 1000))
    for path in (own_cache / "blocks").iterdir():  # what they take changes as they get to the disk
        with path.open("rb") as f:
            os.fsync(f.fileno())
    before = sum(one["allocated"] for one in shown().values())
    mounted.run("cache", "prune", "--to", str(before))
    assert sum(one["allocated"] for one in shown().values()) == before
    assert "removed" in mounted.run("cache", "prune", "--to", str(before - (1 << 20))).stdout
    after = shown()
    assert after[anchor]["present"] < after[anchor]["size"]
    assert before - (3 << 20) < sum(one["allocated"] for one in after.values()) < before
    second, fetches = export(web, scratch / "two")
    assert second == first and fetches > 0
    mounted.run("cache", "prune", "--to", "0")
    assert not shown()


def test_clear(web, own_cache, scratch):
    """Everything goes, what is not ours stays, and the next read is as the first."""
    first, _ = export(web, scratch / "one")
    (own_cache / "blocks" / "README").write_text("a person's")
    assert "removed" in mounted.run("cache", "clear").stdout
    left = {p.name for p in own_cache.rglob("*") if p.is_file()}
    assert left == {"README", "lock"}
    second, fetches = export(web, scratch / "two")
    assert second == first and fetches > 0


def test_beside_a_mount(web, own_cache):
    """A mount owns its cache: others look, but take nothing away; and two mounts get along."""
    with Mount(web.origin, args=("--cache-dir", own_cache)) as one:
        want = (one.at / "model.safetensors").read_bytes()
        wait_until(lambda: one.status()["blocks"]["stored_bytes"] ==
                   one.status()["blocks"]["fetched_bytes"], one.status)
        assert shown()
        assert mounted.run("cache", "verify").returncode == 0
        for words in (("clear",), ("prune", "--to", "0")):
            done = mounted.run("cache", *words, check=False)
            assert done.returncode == 1
            assert f"({one.at})" in done.stderr and "unmount it first" in done.stderr
        since = web.mark()
        with Mount(web.origin, args=("--cache-dir", own_cache)) as two:
            assert (two.at / "model.safetensors").read_bytes() == want
            assert f"({one.at})" in two.log_text()
        assert web.count("^GET .*anchors/", since) == 0


@pytest.mark.parametrize("words,part", [
    (["frob"], '"frob"'), (["prune"], "--to"), (["show", "--to", "5"], "--to"),
    (["prune", "--to", "x"], '"x"'), (["--keep", "3"], "--keep"), (["show", "show"], '"show"'),
])
def test_usage(words, part):
    """A wrong command line: exit code 2 and a line that names the word."""
    done = mounted.run("cache", *words, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and part in done.stderr
