"""Mounts of runs in S3: a strict bucket, a gateway, keys that end while the run goes on."""

import os
import time

import pytest

from lib import checks, driven, hfdir, longrun, models, mounted, oracle, trl
from lib import safetensors_py as st
from lib.aws_fakes import AwsFakes
from lib.mounted import Mount
from lib.strict_s3 import StrictS3

STATES = models.states(5, 6, models.SMALL)


@pytest.fixture(params=["bucket", "gateway"])
def server(request):
    """Path style with If-Match, or links to a content network."""
    gateway = request.param == "gateway"
    with StrictS3(gateway=gateway, path="/namespace" if gateway else "") as one:
        yield one


def set_environment(monkeypatch, env):
    """For the mounts of this test: nothing of this machine's AWS settings."""
    for name in list(os.environ):
        if name.startswith("AWS_") or "proxy" in name.lower():
            monkeypatch.delenv(name)
    for key, value in driven.environment(env).items():
        monkeypatch.setenv(key, value)


def test_a_run_mounted(server, bucket, monkeypatch):
    """Every byte of every version, while the run goes on."""
    set_environment(monkeypatch, driven.keys())
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=3)
    models.publish(run, STATES[:2])
    server.put_tree(bucket, "run/")
    server.put("run_other/anchors/step_000099.safetensors", b"another run's")
    want = oracle.Oracle(bucket)
    with Mount("s3://bucket/run", args=["--endpoint-url", server.endpoint]) as m:
        m.wait_version(want.numbers()[-1])
        for state in STATES[2:]:
            run.sync(state)
            server.put_tree(bucket, "run/")
            number = want.numbers()[-1]
            m.wait_version(number)
            checks.assert_tree(m.at, want.files(number))
            checks.assert_ranges(m.tree(number) / "model.safetensors",
                                 want.files(number)["model.safetensors"], number)
        assert "credentials from the environment" in (m.dot / "status").read_text()


def test_keys_that_end(server, bucket, monkeypatch):
    """Temporary keys of two seconds, and links that end as fast: the mount does not notice."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=3)
    with AwsFakes(server, life=2) as fakes:
        set_environment(monkeypatch, {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": fakes.origin + "/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": fakes.container_token})
        models.publish(run, STATES[:1])
        server.put_tree(bucket)
        want = oracle.Oracle(bucket)
        with Mount("s3://bucket", args=["--endpoint-url", server.endpoint]) as m:
            for state in STATES[1:]:
                run.sync(state)
                server.put_tree(bucket)
                number = want.numbers()[-1]
                m.wait_version(number)
                time.sleep(1.2)
                server.expire_links()
                checks.assert_tree(m.at, want.files(number))
            assert not m.status()["problems"]
        assert fakes.given >= 3
    assert not [line for line in server.s3.seen if line.status == 400]


def test_overwritten_anchor(bucket, monkeypatch):
    """An object that is replaced while it is mounted: an error or the old bytes, never a mix."""
    set_environment(monkeypatch, driven.keys())
    run = trl.Run(bucket, "v3", interval=100)
    models.publish(run, STATES[:2])
    with StrictS3() as server:
        server.put_tree(bucket)
        want = oracle.Oracle(bucket).files(2)["model.safetensors"]
        with Mount("s3://bucket", args=["--endpoint-url", server.endpoint]) as m:
            m.wait_version(2)
            fd = os.open(m.tree(2) / "model.safetensors", os.O_RDONLY)
            key = next(k for k in server.objects if k.startswith("anchors/"))
            data = server.objects[key].data
            server.put(key, data[:-50000] + bytes(50000))
            read = 0
            for at in range(0, len(want), 4096):
                try:
                    got = os.pread(fd, 4096, at)
                except OSError:
                    continue
                assert got == want[at:at + 4096], at
                read += 1
            os.close(fd)
            print(f"{read} pages came")


def test_probes_instead_of_listings(bucket, monkeypatch):
    """Of a long listing only the ends are asked for; what is new there is seen at once, what was
    rewritten or deleted when somebody asks, or when a read finds out."""
    set_environment(monkeypatch, driven.keys())
    run = trl.Run(bucket, "v3", interval=100)
    models.publish(run, STATES[:3])
    models.write_companions(bucket)
    with StrictS3() as server:
        server.page = 2
        server.put_tree(bucket, "run/")
        want = oracle.Oracle(bucket)
        with Mount("s3://bucket/run", args=["--endpoint-url", server.endpoint,
                                            "--times", "ignore"]) as m:
            m.wait_version(3)

            def listings(mark, pattern):
                return server.s3.count("list-type.*" + pattern, mark)

            def probed():
                mark = server.s3.mark()
                mounted.wait_until(lambda: listings(mark, "start-after=run%2Fdeltas%2F") >= 3,
                                   "no probes")
                return listings(mark, "continuation-token"), listings(mark, "prefix=run%2F($|&)")

            mounted.wait_until(lambda: probed() == (0, 0), "it goes on listing")
            for state in STATES[3:5]:
                run.sync(state)
                server.put_tree(bucket, "run/")
                number = want.numbers()[-1]
                m.wait_version(number)
                checks.assert_tree(m.at, want.files(number))
            # Everything is listed once a minute, which begins with the last time.
            m.control("refresh")
            mounted.wait_until(lambda: probed() == (0, 0), "it goes on listing")
            server.put("run/config.json", b'{"new": 1}')
            del server.objects["run/tokenizer.json"]
            assert probed() == (0, 0)
            assert (m.dot / "bucket" / "tokenizer.json").exists()
            m.control("refresh")
            mounted.wait_until(lambda: not (m.dot / "bucket" / "tokenizer.json").exists(),
                               "a deletion is not seen")
            assert (m.dot / "bucket" / "config.json").read_bytes() == b'{"new": 1}'
            # A read that meets another object than the one that was listed.
            mounted.wait_until(lambda: probed() == (0, 0), "it goes on listing")
            server.put("run/unread.bin", b"2" * 5000)
            m.control("refresh")
            mounted.wait_until((m.dot / "bucket" / "unread.bin").exists, "a new object is not seen")
            mounted.wait_until(lambda: probed() == (0, 0), "it goes on listing")
            server.put("run/unread.bin", b"3" * 6000)
            assert probed() == (0, 0)
            with pytest.raises(OSError):
                (m.dot / "bucket" / "unread.bin").read_bytes()
            mounted.wait_until(lambda: (m.dot / "bucket" / "unread.bin").stat().st_size == 6000,
                               "the rewrite is not seen")


@pytest.mark.parametrize("name", ["weight_v{:06d}", "checkpoint-{}"])
def test_probes_for_directories(name, bucket, monkeypatch):
    """New version directories are noticed without a listing of everything, also where the number
    gets longer; one that lacks a file yet is looked at until it is there."""
    set_environment(monkeypatch, driven.keys())
    writer = longrun.HfDir(bucket, interval=1, name=name)
    with StrictS3() as server:
        server.page = 3

        def publish(number, *beside):
            writer.version(number)
            for file in beside:
                longrun.write(bucket / name.format(number) / file, b"{}")
            server.put_tree(bucket, "run/")

        for number in (7, 8, 9):
            publish(number, "config.json", "a/b/c.pt", "rng_state.pth", "trainer_state.json")
        with Mount("s3://bucket/run", args=["--endpoint-url", server.endpoint]) as m:
            m.wait_version(9)

            def listings(mark, pattern):
                return server.s3.count("list-type.*" + pattern, mark)

            def quiet():
                mark = server.s3.mark()
                mounted.wait_until(lambda: listings(mark, "prefix=run%2Flatest") >= 3, "no probes")
                return listings(mark, "continuation-token"), listings(mark, "prefix=run%2F($|&)")

            mounted.wait_until(lambda: quiet() == (0, 0), "it goes on listing")

            def requests_of_three_rounds():
                mark = server.s3.mark()
                mounted.wait_until(lambda: listings(mark, "prefix=run%2Flatest") >= 4, "no probes")
                with server.s3.lock:
                    seen = [one.target for one in server.s3.seen[mark:]]
                seen = [target for target in seen if "list-type" in target]
                rounds = [i for i, target in enumerate(seen) if "prefix=run%2Flatest" in target]
                return rounds[3] - rounds[0]

            # More only where the listing of everything that is due once a minute falls into it.
            mounted.wait_until(lambda: requests_of_three_rounds() <= 3 * 6, "too many requests")
            for number in (10, 11, 101):
                publish(number)
                m.wait_version(number)
                assert longrun.data_of(m.at / "model.safetensors") == longrun.expected(number)
                mounted.wait_until(lambda: quiet() == (0, 0), "it goes on listing")
            # Something that comes late, into the newest directory.
            late = bucket / name.format(101) / "added.json"
            longrun.write(late, b"{}")
            server.put_tree(bucket, "run/")
            mounted.wait_until((m.at / "added.json").exists, "a companion is not seen")
            server.put("run/latest", name.format(9).encode())
            m.wait_version(9)


def test_many_shards(bucket, monkeypatch):
    """A version in dozens of files: every byte, and of what arrives each file is fetched once."""
    set_environment(monkeypatch, driven.keys())
    spec = {f"layer.{i:02d}": ("BF16", (300, 7)) for i in range(40)}
    states = [None, *models.states(94, 3, spec)]
    trainer = hfdir.Trainer(bucket, states, shards=40)
    trainer.full(1)
    with StrictS3() as server:
        server.put_tree(bucket, "run/")
        with Mount("s3://bucket/run", args=["--endpoint-url", server.endpoint]) as m:
            m.wait_version(1)
            for version in (2, 3):
                trainer.delta(version)
                mark = server.s3.mark()
                server.put_tree(bucket, "run/")
                m.wait_version(version)
                assert server.s3.count("GET .*weight_v0", mark) == 41
            for version in (1, 2, 3):
                have = st.load_file(m.tree(version) / "model.safetensors")[0]
                assert {n: t.data.tobytes() for n, t in have.items()} == \
                    {n: t.data.tobytes() for n, t in states[version].items()}


def test_offline(server, bucket, monkeypatch, scratch):
    """A warm cache, no bucket and no service for credentials: the last versions, and back again."""
    models.write_companions(bucket)
    run = trl.Run(bucket, "v3", interval=100)
    models.publish(run, STATES[:2])
    server.put_tree(bucket)
    want = oracle.Oracle(bucket)
    with AwsFakes(server) as fakes:
        set_environment(monkeypatch, {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": fakes.origin + "/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": fakes.container_token})
        args = ["--endpoint-url", server.endpoint]
        with Mount("s3://bucket", args=args, work=scratch) as m:
            m.wait_version(2)
            checks.assert_tree(m.at, want.files(2))
        server.s3.stop()
        server.cdn.stop()
        fakes.server.stop()
        with Mount("s3://bucket", args=args, work=scratch) as m:
            m.wait_version(2)
            checks.assert_tree(m.at, want.files(2))
            assert "offline" in (m.dot / "status").read_text()
            for one in (server.s3, server.cdn, fakes.server):
                one.start()
            run.sync(STATES[2])
            server.put_tree(bucket)
            m.wait_version(3)
            checks.assert_tree(m.at, want.files(3))


def test_wrong_keys_do_not_mount(bucket, monkeypatch, scratch):
    """One sentence, exit code 1, no mount."""
    with StrictS3() as server:
        set_environment(monkeypatch, driven.keys(secret="WRONGMARKED"))
        (scratch / "mnt").mkdir()
        done = mounted.run("mount", "--endpoint-url", server.endpoint, "--cache-dir",
                           scratch / "cache", "s3://bucket/run", scratch / "mnt", check=False)
        assert done.returncode == 1
        assert done.stderr == ("weightfs: s3://bucket/run: the secret key from the environment "
                               "does not belong to its access key\n")
        assert not mounted.is_mounted(scratch / "mnt")


def test_options_reach_the_store(bucket, monkeypatch):
    """--no-sign-request, --region, --profile, in an -o list, too."""
    set_environment(monkeypatch, {})
    run = trl.Run(bucket, "v3", interval=3)
    models.publish(run, STATES[:1])
    with StrictS3(region="eu-central-1") as server:
        server.put_tree(bucket)
        server.public = True
        with Mount("s3://bucket", args=["-o", f"endpoint_url={server.endpoint},no_sign_request,"
                                              "region=eu-central-1"]) as m:
            m.wait_version(1)
        assert not any("Authorization" in line.headers for line in server.s3.seen)
