"""`weightfs follow`: the order of calls, their fields, and what an engine has in the end."""

import os
import time

import pytest

from lib import mounted
from lib.engines import Mlx, Sglang, Vllm
from lib.following import Follow, Rig, once
from lib.mounted import wait_until
from lib.nginx import certificate

RPC = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version",
       "/is_paused", "/weight_info", "/resume"]
TRANSFER = ["/pause", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
            "/finish_weight_update", "/reset_prefix_cache", "/is_paused", "/weight_info",
            "/resume"]
ASK = ["/is_paused", "/weight_info"]


def test_vllm_rpc(rig):
    """Exact calls in order; the engine has the bytes of the version; nothing is left paused."""
    vllm = rig.server(Vllm)
    line, _ = once(rig, "--engine", "vllm", "--url", vllm.url)
    assert vllm.calls == ASK + RPC
    assert vllm.bodies[2][1] == {"mode": "wait", "clear_cache": "true"}
    assert vllm.sent("/collective_rpc") == [{
        "method": "reload_weights",
        "kwargs": {"weights_path": rig.path(1), "is_checkpoint_format": True}, "timeout": 1800}]
    assert vllm.loaded == rig.digest(1)
    assert (vllm.version, vllm.paused, vllm.prefix_cache) == ("1", False, "fresh")
    assert vllm.paused_at_load == [True]
    assert line["result"] == "ok" and line["path"] == rig.path(1)
    replica = line["replicas"][0]
    assert (replica["state"], replica["version"], replica["verified"]) == ("serving", 1, True)
    assert set(replica["seconds"]) == {"pause", "reload", "verify", "resume", "paused"}
    assert line["warm_bytes"] > 0


def test_vllm_transfer(rig):
    """The protocol of sessions; it is initialised once."""
    vllm = rig.server(Vllm)
    with Follow(rig.mount, "--engine", "vllm", "--url", vllm.url, "--route", "transfer",
                "--pause-mode", "keep") as follow:
        assert follow.update(0)["result"] == "ok"
        assert vllm.calls == ASK + TRANSFER
        rig.publish()
        assert follow.update(1)["version"] == 2
        assert vllm.calls[len(ASK + TRANSFER):] == [
            c for c in TRANSFER if c != "/init_weight_transfer_engine"]
    assert vllm.sent("/update_weights")[1] == {"update_info": {"path": rig.path(2)}}
    assert vllm.sent("/finish_weight_update")[1] == {"weight_version": "2"}
    assert vllm.loaded == rig.digest(2) and vllm.version == "2"


def test_sglang(rig):
    """Pause with a body, reload with its fields, continue."""
    sglang = rig.server(Sglang)
    line, _ = once(rig, "--engine", "sglang", "--url", sglang.url)
    assert sglang.calls == ["/model_info", "/get_weight_version", "/pause_generation",
                            "/update_weights_from_disk", "/model_info", "/get_weight_version",
                            "/continue_generation"]
    assert sglang.sent("/pause_generation") == [{"mode": "retract"}]
    assert sglang.sent("/update_weights_from_disk") == [{
        "model_path": rig.path(1), "weight_version": "1", "abort_all_requests": False,
        "flush_cache": True}]
    assert sglang.loaded == rig.digest(1) and sglang.paused is False
    assert line["replicas"][0]["verified"]


def test_sglang_in_place_does_not_flush(rig):
    """With requests frozen in place the server cannot flush, so it is not asked to."""
    sglang = rig.server(Sglang, without=["/model_info"])
    line, _ = once(rig, "--engine", "sglang", "--url", sglang.url, "--pause-mode", "in_place")
    assert line["result"] == "ok"
    assert sglang.sent("/update_weights_from_disk")[0]["flush_cache"] is False


def test_mlx(rig):
    """One request that names the version's path; there is nothing to pause."""
    mlx = rig.server(Mlx)
    with Follow(rig.mount, "--engine", "mlx", "--url", mlx.url) as follow:
        assert follow.update(0)["result"] == "ok"
        rig.publish()
        assert follow.update(1)["result"] == "ok"
        assert mlx.loaded == rig.digest(2)
        mlx.broken = 99
        rig.publish()
        line = follow.update(2)
        assert line["replicas"][0]["state"] == "serving-mixed"
        assert "cannot load" in line["replicas"][0]["error"]
        follow.expect = 1
    assert [b["model"] for b in mlx.sent("/v1/completions")[:2]] == [rig.path(1), rig.path(2)]


def test_old_servers_without_questions(rig):
    """A server that cannot say which version it has is updated, and said to be unverified."""
    vllm = rig.server(Vllm, without=["/weight_info", "/update_weight_version", "/is_paused"])
    line, _ = once(rig, "--engine", "vllm", "--url", vllm.url)
    assert line["result"] == "ok" and line["replicas"][0]["verified"] is False
    assert vllm.loaded == rig.digest(1) and not vllm.paused


def test_skips_to_the_newest(rig):
    """Behind by several versions: only the newest is brought.  One that comes while an update is
    under way does not disturb it: it is reported, and follows."""
    vllm = rig.server(Vllm)
    gate = vllm.gate("/pause")
    with Follow(rig.mount, "--engine", "vllm", "--url", vllm.url) as follow:
        assert vllm.arrived["/pause"].wait(mounted.WAIT)
        rig.publish()
        rig.publish()
        gate.set()
        first, second = follow.update(0), follow.update(1)
    assert (first["version"], first["superseded_by"]) == (1, 3)
    assert (second["version"], second["superseded_by"]) == (3, None)
    assert [b["kwargs"]["weights_path"] for b in vllm.sent("/collective_rpc")] == [
        rig.path(1), rig.path(3)]
    assert vllm.loaded == rig.digest(3)


def test_what_an_engine_has_is_asked(rig):
    """A server that says it has the newest version is left alone; one that was left paused is
    not."""
    good, held = rig.server(Vllm), rig.server(Vllm)
    good.version = held.version = "1"
    held.paused = True
    once(rig, "--engine", "vllm", "--url", good.url)
    assert good.calls == ASK
    line, _ = once(rig, "--engine", "vllm", "--url", held.url)
    assert line["result"] == "ok" and not held.paused and held.loaded == rig.digest(1)


def test_start_version(rig):
    """What the engines were started with is not brought again."""
    vllm = rig.server(Vllm, without=["/weight_info"])
    with Follow(rig.mount, "--engine", "vllm", "--url", vllm.url,
                "--start-version", 1) as follow:
        rig.publish()
        assert follow.update(0)["version"] == 2
    assert len(vllm.sent("/collective_rpc")) == 1


def test_leases(bucket):
    """The version that an engine has or points to stays pinned, also when follow has ended; the
    one before is let go.  Another program's unpin does not take it away meanwhile."""
    rig = Rig(bucket, keep=1)
    with rig.mount:
        rig.mount.wait_version(1)
        vllm = rig.server(Vllm)
        with Follow(rig.mount, "--engine", "vllm", "--url", vllm.url) as follow:
            follow.update(0)
            wait_until(lambda: rig.pinned() == [1], rig.pinned)
            vllm.broken = 99
            rig.publish()
            assert follow.update(1)["result"] == "failed"
            wait_until(lambda: rig.pinned() == [1, 2], rig.pinned)
            rig.mount.control("unpin")
            vllm.broken = 0
            rig.publish()
            assert follow.update(2)["result"] == "ok"
            rig.publish()
            follow.update(3)
            for _ in range(3):
                rig.publish()
        last = int(vllm.version)
        assert rig.pinned() == [last] and vllm.loaded == rig.digest(last)
        for server in rig.servers:
            server.close()


def test_nothing_is_left_pinned_for_nobody(rig):
    """A version that no engine has come to have is let go at the end; so are those of a command."""
    vllm = rig.server(Vllm)
    vllm.server.stop()
    once(rig, "--engine", "vllm", "--url", vllm.url, "--retries", 0, check=False)
    once(rig, "--exec", "true")
    assert rig.pinned() == []


def test_killed_half_way(rig):
    """What a follow that was killed has left behind: the engine paused, the version pinned.  The
    next one heals it."""
    vllm = rig.server(Vllm)
    gate = vllm.gate("/collective_rpc")
    follow = Follow(rig.mount, "--engine", "vllm", "--url", vllm.url)
    assert vllm.arrived["/collective_rpc"].wait(mounted.WAIT)
    follow.process.kill()
    follow.process.wait()
    gate.set()
    wait_until(lambda: vllm.loaded, "not loaded")
    assert vllm.paused
    line, _ = once(rig, "--engine", "vllm", "--url", vllm.url)
    assert line["result"] == "ok" and not vllm.paused and vllm.loaded == rig.digest(1)


def test_tls(rig, scratch):
    """An authority of one's own by --ca-file; without it nothing is sent."""
    vllm = rig.server(Vllm, key="sk-MARKED-tls")
    pair = certificate(scratch)
    vllm.server.secure(*pair)
    env = {**os.environ, "VLLM_API_KEY": "sk-MARKED-tls"}
    args = ["--engine", "vllm", "--url", vllm.url]
    line, _ = once(rig, *args, check=False, env=env)
    assert line["replicas"][0]["state"] == "away" and vllm.calls == []
    assert "certificate" in line["replicas"][0]["error"]
    once(rig, *args, "--ca-file", pair[0], env=env)
    assert vllm.loaded == rig.digest(1)


def test_engine_path(rig):
    """Engines in containers see the mount elsewhere."""
    place = rig.mount.work / "seen"
    os.symlink(rig.mount.at, place)
    vllm = rig.server(Vllm)
    once(rig, "--engine", "vllm", "--url", vllm.url, "--engine-path", place)
    assert vllm.path == f"{place}/.weightfs/versions/1" and vllm.loaded == rig.digest(1)


def test_keys(rig):
    """Keys come from the environment; a wrong one is explained, and none is ever shown."""
    secret = "sk-MARKED-4711"
    sglang = rig.server(Sglang, key=secret)
    line, _ = once(rig, "--engine", "sglang", "--url", sglang.url,
                   env={**os.environ, "SGLANG_ADMIN_API_KEY": secret})
    assert line["result"] == "ok"
    vllm = rig.server(Vllm, key="another")
    wrong = "sk-MARKED-0815"
    line, done = once(rig, "--engine", "vllm", "--url", vllm.url, check=False,
                      env={**os.environ, "VLLM_API_KEY": wrong})
    assert done.returncode == 1 and "does not accept the key" in done.stderr
    assert vllm.calls == [] and line["replicas"][0]["state"] == "serving-old"
    vllm.key_status = 500                      # whose body repeats what was sent
    _, failed = once(rig, "--engine", "vllm", "--url", vllm.url, check=False,
                     env={**os.environ, "VLLM_API_KEY": wrong})
    assert "not authorized: ****" in failed.stdout
    for text in (done.stdout, done.stderr, failed.stdout, failed.stderr):
        assert secret not in text and wrong not in text


def test_exec(rig):
    """The command gets version, path and result; its output goes to standard error."""
    out = rig.mount.work / "out"
    command = f'echo noise; echo "$WEIGHTFS_VERSION $WEIGHTFS_PATH $WEIGHTFS_RESULT" >>{out}'
    with Follow(rig.mount, "--exec", command) as follow:
        assert follow.update(0)["result"] == "ok"
        rig.publish()
        follow.update(1)
    assert out.read_text() == f"1 {rig.path(1)} ok\n2 {rig.path(2)} ok\n"
    assert "noise\n" in follow.errors


def test_exec_fails(rig):
    """It is tried again, then given up until the next version."""
    count = rig.mount.work / "count"
    with Follow(rig.mount, "--retries", 1, "--exec", f"echo x >>{count}; exit 3") as follow:
        line = follow.update(0)
        assert line["result"] == "failed" and "exit code 3" in line["error"]
        rig.publish()
        follow.update(1)
    assert count.read_text().count("x") == 4
    _, done = once(rig, "--retries", 0, "--exec", "exit 3", check=False)
    assert done.returncode == 1


def test_min_interval(rig):
    """Versions that come faster wait."""
    vllm = rig.server(Vllm)
    with Follow(rig.mount, "--engine", "vllm", "--url", vllm.url, "--min-interval", 1000,
                "--no-warm") as follow:
        assert follow.update(0)["warm_bytes"] == 0
        for _ in range(3):
            rig.publish()
        time.sleep(0.2)
    assert [b["new_version"] for b in vllm.sent("/update_weight_version")] == ["1"]


def test_metrics(rig):
    """A file in Prometheus's format, replaced as a whole."""
    file = rig.mount.work / "follow.prom"
    vllm = rig.server(Vllm)
    once(rig, "--engine", "vllm", "--url", vllm.url, "--metrics", file)
    lines = file.read_text().splitlines()
    assert 'weightfs_follow_updates_total{result="ok"} 1' in lines
    assert f'weightfs_follow_replica_version{{url="{vllm.url}"}} 1' in lines
    assert f'weightfs_follow_replica_state{{url="{vllm.url}",state="serving"}} 1' in lines
    for line in lines:
        name = line.split()[2] if line.startswith("#") else line.split("{")[0].split()[0]
        assert name.startswith("weightfs_follow_")


@pytest.mark.parametrize("args", [
    [], ["--engine", "vllm"], ["--engine", "tgi", "--url", "http://localhost"],
    ["--url", "http://localhost"], ["--engine", "vllm", "--url", "ftp://x"],
    ["--engine", "vllm", "--url", "http://user:pw@x"],
    ["--engine", "vllm", "--url", "http://x/?a=b"],
    ["--engine", "vllm", "--url", "http://x", "--url", "http://x/"],
    ["--engine", "vllm", "--url", "http://x", "--route", "disk"],
    ["--engine", "mlx", "--url", "http://x", "--pause-mode", "wait"],
    ["--engine", "sglang", "--url", "http://x", "--pause-mode", "wait"],
    ["--exec", "true", "--rolling"], ["--exec", "true", "--retries", "many"],
    ["--exec", "true", "--timeout", "0"], ["--exec", "true", "--engine-path", "here"],
    ["--exec", "true", "--start-version", "x"],
    ["--engine", "vllm", "--url", "http://x", "--on-failure", "panic"],
])
def test_wrong_command_lines(rig, args):
    """A sentence, and nothing is done."""
    done = mounted.run("follow", rig.mount.at, *args, check=False)
    assert done.returncode in (1, 2) and done.stderr.startswith("weightfs: ")
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
