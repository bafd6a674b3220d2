"""`weightfs follow` when things go wrong: at each step, in each way; what is left, and is it said?
"""

import contextlib
import signal
import time
from pathlib import Path

import pytest

from lib import models, mounted, trl
from lib.engines import Engine, Sglang, Vllm
from lib.following import Follow, once
from lib.mounted import wait_until


def vllm_args(*servers):
    """The options that name these servers."""
    args = ["--engine", "vllm", "--retries", 1]
    for one in servers:
        args += ["--url", one.url]
    return args


def only(line):
    """The report of the one replica."""
    assert len(line["replicas"]) == 1
    return line["replicas"][0]


# What fails for good, with which status: how the replica is left, and is it paused then?
STEPS = [
    ("POST /pause", 500, "serving-old", False),
    ("POST /pause", 404, "serving-old", False),
    ("POST /pause", 401, "serving-old", False),
    ("POST /collective_rpc", 500, "paused-mixed", True),
    ("POST /collective_rpc", 400, "paused-mixed", True),
    ("POST /collective_rpc", 404, "serving-old", False),
    ("POST /reset_prefix_cache", 500, "paused-mixed", True),
    ("POST /reset_prefix_cache", 404, "paused-mixed", True),
    ("GET /weight_info", 500, "paused-mixed", True),
    ("POST /resume", 500, "paused", True),
    ("POST /resume", 404, "paused", True),
]


@pytest.mark.parametrize("route,status,state,paused", STEPS)
def test_each_step_of_vllm(rig, route, status, state, paused):
    """Whatever fails: an engine with mixed weights does not serve, and the end state is said."""
    vllm = rig.server(Vllm)
    vllm.server.fault(route, "status", times=99, status=status)
    line, done = once(rig, *vllm_args(vllm), check=False)
    assert done.returncode == 1
    assert (only(line)["state"], vllm.paused) == (state, paused)
    assert line["result"] == "failed" and str(status) in only(line)["error"]
    assert f"{vllm.url} is left {state}" in done.stderr


@pytest.mark.parametrize("route", ["/init_weight_transfer_engine", "/start_weight_update",
                                   "/update_weights", "/finish_weight_update"])
def test_each_step_of_a_session(rig, route):
    """One failure in a session: begun anew, and then right."""
    vllm = rig.server(Vllm)
    vllm.server.fault(f"POST {route}$", "status", status=500)
    line, _ = once(rig, *vllm_args(vllm), "--route", "transfer")
    assert line["result"] == "ok" and only(line)["attempts"] == 2
    assert vllm.loaded == rig.digest(1) and not vllm.paused


@pytest.mark.parametrize("route,kind", [
    ("POST /collective_rpc", "reset"), ("GET /weight_info", "reset"), ("POST /resume", "reset"),
])
def test_lost_answers_are_asked_again(rig, route, kind):
    """An answer that never comes: the step is repeated, with the same path."""
    vllm = rig.server(Vllm)
    with Follow(rig.mount, *vllm_args(vllm), "--start-version", 1) as follow:
        vllm.server.fault(route, kind)
        rig.publish()
        line = follow.update(0)
        assert line["result"] == "ok", line
        assert vllm.loaded == rig.digest(2) and not vllm.paused


def test_sglang_rolls_back_to_the_new_path(rig):
    """A failing reload reads the new path twice and leaves mixed weights under it: it stays
    paused, the path stays there, and the next version heals it."""
    sglang = rig.server(Sglang)
    args = ["--engine", "sglang", "--url", sglang.url, "--retries", 0]
    with Follow(rig.mount, *args) as follow:
        follow.update(0)
        sglang.broken = 2
        rig.publish()
        line = follow.update(1)
        replica = only(line)
        assert (replica["state"], replica["path_version"]) == ("paused-mixed", 2)
        assert replica["version"] is None and "Rolling back" in replica["error"]
        assert sglang.paused and sglang.path == rig.path(2)
        assert rig.pinned() == [1, 2]
        rig.publish()
        line = follow.update(2)
        assert line["result"] == "ok" and not sglang.paused and sglang.loaded == rig.digest(3)


@pytest.mark.parametrize("kind", ["reset", "status", "stop"])
def test_mixed_weights_stay_paused(kind, rig):
    """The next version does not get as far as its reload: nothing has made the weights whole
    meanwhile, so nothing lets traffic in."""
    vllm = rig.server(Vllm)
    with Follow(rig.mount, *vllm_args(vllm), expect=kind == "stop") as follow:
        follow.update(0)
        vllm.broken = 2
        rig.publish()
        assert only(follow.update(1))["state"] == "paused-mixed"
        if kind == "stop":
            vllm.gate("/pause")
            rig.publish()
            assert vllm.arrived["/pause"].wait(mounted.WAIT)
            follow.term()
            follow.wait()
        else:
            vllm.server.fault("POST /pause", kind)
            rig.publish()
        replica = only(follow.update(2))
        assert (replica["state"], replica["version"], vllm.paused) == ("paused-mixed", None, True)
        assert "/resume" not in vllm.calls[vllm.calls.index("/resume") + 1:]
        if kind != "stop":
            rig.publish()
            assert only(follow.update(3))["state"] == "serving" and not vllm.paused


def test_found_paused_is_not_resumed(rig):
    """A server that is paused when follow begins may have half of a version: what cannot be paused
    and loaded anew stays as it is."""
    vllm = rig.server(Vllm)
    vllm.paused = True
    vllm.server.fault("POST /pause", "status", times=99, status=500)
    for args in ((), ("--start-version", 1)):
        line, done = once(rig, *vllm_args(vllm), *args, check=False)
        assert done.returncode == 1 and vllm.paused and "/resume" not in vllm.calls
        assert (only(line)["state"], only(line)["version"]) == ("paused-mixed", None)


def test_refused_after_a_failure_is_not_untouched(rig):
    """A clear no to a second attempt does not mean that the first one did nothing."""
    vllm = rig.server(Vllm)
    vllm.server.fault("POST /collective_rpc", "status", status=500)
    vllm.server.fault("POST /collective_rpc", "status", times=99, status=404)
    line, _ = once(rig, *vllm_args(vllm), check=False)
    assert only(line)["state"] == "paused-mixed" and vllm.paused


def test_on_failure_previous(rig):
    """The version before is loaded again, whole, and served; the failed one is tried again by and
    by."""
    vllm = rig.server(Vllm)

    def serves_the_first():
        return vllm.loaded == rig.digest(1) and vllm.version == "1" and not vllm.paused

    with Follow(rig.mount, *vllm_args(vllm), "--on-failure", "previous") as follow:
        follow.update(0)
        vllm.fails = lambda path: path != rig.path(1)
        rig.publish()
        line = follow.reported(2, "failed")
        assert (only(line)["state"], only(line)["version"]) == ("serving-old", 1)
        wait_until(serves_the_first, "the first is not served")
        # When that fails, too, it stays paused; and a version later it still is the one to go to.
        vllm.fails = lambda path: True
        rig.publish()
        assert only(follow.reported(3, "failed"))["state"] == "paused-mixed" and vllm.paused
        vllm.fails = lambda path: path != rig.path(1)
        rig.publish()
        assert only(follow.reported(4, "failed"))["version"] == 1
        wait_until(serves_the_first, "the first is not served")


def test_on_failure_resume(rig):
    """It serves what it has, and that is said everywhere."""
    vllm = rig.server(Vllm)
    vllm.broken = 99
    metrics = rig.mount.work / "m"
    line, done = once(rig, *vllm_args(vllm), "--on-failure", "resume", "--metrics", metrics,
                      check=False)
    assert done.returncode == 1 and not vllm.paused
    assert only(line)["state"] == "serving-mixed" and "stays serving-mixed" in done.stderr
    assert 'state="serving-mixed"} 1' in metrics.read_text()


def test_no_server_there(rig):
    """Connection refused: said, and tried again until it is there."""
    vllm = rig.server(Vllm)
    vllm.server.stop()
    line, done = once(rig, *vllm_args(vllm), check=False)
    assert done.returncode == 1 and only(line)["state"] == "away"
    with Follow(rig.mount, *vllm_args(vllm)) as follow:
        assert only(follow.update(0))["state"] == "away"
        vllm.server.start()
        follow.reported(1)
        assert vllm.loaded == rig.digest(1)


def test_one_replica_down(rig):
    """The others are updated together; the one that was down follows when it is back."""
    up, down = rig.server(Vllm), rig.server(Vllm)
    down.server.stop()
    with Follow(rig.mount, *vllm_args(up, down)) as follow:
        line = follow.update(0)
        assert line["result"] == "partial"
        assert [r["state"] for r in line["replicas"]] == ["serving", "away"]
        down.server.start()
        follow.reported(1)
    assert up.loaded == down.loaded == rig.digest(1)
    assert up.calls.count("/collective_rpc") == 1


def test_together_no_reload_before_all_are_paused(rig):
    """Two replicas never serve different versions."""
    quick, slow = rig.server(Vllm), rig.server(Vllm)
    gate = slow.gate("/pause")
    with Follow(rig.mount, *vllm_args(quick, slow)) as follow:
        assert slow.arrived["/pause"].wait(mounted.WAIT)
        wait_until(lambda: quick.paused, "not paused")
        time.sleep(0.2)
        assert "/collective_rpc" not in quick.calls
        gate.set()
        assert follow.update(0)["result"] == "ok"
    assert not quick.paused and not slow.paused


def test_rolling(rig):
    """One after another; the next ones are spared when one is left with mixed weights."""
    order = []
    servers = [rig.server(Vllm) for _ in range(3)]
    for i, one in enumerate(servers):
        def note(request, i=i, handle=one.server.handle):
            order.append((i, request.path))
            return handle(request)
        one.server.handle = note
    with Follow(rig.mount, *vllm_args(*servers), "--rolling") as follow:
        assert follow.update(0)["result"] == "ok"
        updates = [i for i, path in order if path not in ("/is_paused", "/weight_info")]
        assert updates == sorted(updates)
        servers[1].broken = 99
        rig.publish()
        line = follow.update(1)
        assert [r["state"] for r in line["replicas"]] == ["serving", "paused-mixed", "serving"]
        assert [r["version"] for r in line["replicas"]] == [2, None, 1]
        servers[1].broken = 0
        rig.publish()
        assert follow.update(2)["result"] == "ok"
    assert all(one.loaded == rig.digest(3) for one in servers)


def test_restarted_between_reload_and_verify(rig):
    """The engine is another one than was reloaded: not resumed as if it had the version."""
    vllm = rig.server(Vllm)

    def forget(query, data):
        Vllm.reset(vllm, query, data)
        vllm.paused, vllm.version, vllm.loaded = False, "default", None
        vllm.reset = Vllm.reset.__get__(vllm)

    vllm.reset = forget
    vllm.without = {"/update_weight_version"}
    gone = vllm.routes

    def routes():
        table = gone()
        if vllm.calls.count("/collective_rpc") > 1:
            vllm.version = "1"
        return table

    vllm.routes = routes
    line, _ = once(rig, *vllm_args(vllm))
    assert line["result"] == "ok" and only(line)["attempts"] == 2
    assert vllm.loaded == rig.digest(1)


@pytest.mark.parametrize("kind", [Vllm, Sglang])
def test_restarted_later(rig, kind):
    """A server that comes back with what it starts with is noticed, without a new version."""
    engine, other = rig.server(kind), rig.server(kind)
    with Follow(rig.mount, "--engine", kind.name, "--url", engine.url, "--url", other.url,
                "--check", "0.1") as follow:
        follow.update(0)
        engine.server.stop()
        engine.version, engine.path, engine.loaded = "default", None, None
        engine.server.start()
        assert follow.update(1)["result"] == "ok"
        assert engine.loaded == rig.digest(1) and engine.version == "1" and not engine.paused
        time.sleep(0.3)
    assert len(follow.lines) == 2 and any("no longer has version 1" in x for x in follow.errors)
    assert len([c for c in other.calls if "pause" in c and c != "/is_paused"]) == 1


def test_slow_answers_time_out(rig):
    """A reload that takes longer than --timeout (which is of nothing else) is a failure, and said
    to be one."""
    vllm = rig.server(Vllm)
    gate = vllm.gate("/collective_rpc")
    line, done = once(rig, "--engine", "vllm", "--url", vllm.url, "--retries", 0, "--timeout", 1,
                      check=False)
    gate.set()
    assert done.returncode == 1 and only(line)["state"] == "paused-mixed"
    assert "reload_weights" in only(line)["error"]


def test_term_while_pausing(rig):
    """The pause is taken back."""
    vllm = rig.server(Vllm)
    gate = vllm.gate("/pause")
    with Follow(rig.mount, *vllm_args(vllm)) as follow:
        assert vllm.arrived["/pause"].wait(mounted.WAIT)
        follow.term()
        wait_until(lambda: "/resume" in vllm.calls, "not resumed")
        gate.set()
        assert follow.wait() == 0
    assert follow.lines[0]["stopped"] and only(follow.lines[0])["state"] == "serving-old"
    assert "/collective_rpc" not in vllm.calls


def test_term_while_reloading(rig):
    """The reload is waited for, and the engine serves the version."""
    vllm = rig.server(Vllm)
    gate = vllm.gate("/collective_rpc")
    with Follow(rig.mount, *vllm_args(vllm)) as follow:
        assert vllm.arrived["/collective_rpc"].wait(mounted.WAIT)
        mounted.deliver(follow.process, signal.SIGTERM)
        gate.set()
        assert follow.wait() == 0
    assert follow.lines[0]["result"] == "ok" and follow.lines[0]["stopped"]
    assert not vllm.paused and vllm.loaded == rig.digest(1)


def test_term_twice(rig):
    """The second one gives a reload up; the engine stays paused, and that is said."""
    vllm = rig.server(Vllm)
    gate = vllm.gate("/collective_rpc")
    with Follow(rig.mount, *vllm_args(vllm), expect=1) as follow:
        assert vllm.arrived["/collective_rpc"].wait(mounted.WAIT)
        while follow.process.poll() is None:    # two that come together count as one
            follow.term()
            time.sleep(0.05)
        assert follow.wait() == 1
        gate.set()
    assert vllm.paused and any("stays paused-mixed" in line for line in follow.errors)


def test_mount_is_detached(rig):
    """umount --lazy: follow ends, or it would keep the mount for itself alone and name paths to
    engines that are not there for them."""
    vllm = rig.server(Vllm)
    with Follow(rig.mount, *vllm_args(vllm), expect=1) as follow:
        follow.update(0)
        mounted.run("umount", "--lazy", rig.mount.at)
        assert follow.wait() == 1
    assert any("the mount has gone" in line for line in follow.errors)
    assert not vllm.paused and len(follow.lines) == 1


def test_mount_goes_away(rig):
    """Follow ends with a sentence, and no engine is left paused."""
    vllm = rig.server(Vllm)
    with Follow(rig.mount, *vllm_args(vllm), expect=1) as follow:
        follow.update(0)
        rig.mount.process.kill()
        assert follow.wait() == 1
    assert any("the mount has gone" in line for line in follow.errors)
    assert not vllm.paused
    rig.mount.expect_exit = -9


def test_two_followers(rig):
    """One lets go of a version that the other's engine still has: it is pinned all the same, also
    when that other one is killed."""
    fast, slow = rig.server(Vllm), rig.server(Vllm)
    with Follow(rig.mount, *vllm_args(fast)) as one:
        one.update(0)
        with Follow(rig.mount, *vllm_args(slow), "--min-interval", 600, "--check", 0.1,
                    expect=-9) as other:
            other.update(0)
            rig.publish()
            one.reported(2)
            wait_until(lambda: rig.pinned() == [1, 2], lambda: f"pinned: {rig.pinned()}")
            other.process.kill()
        assert rig.pinned() == [1, 2] and slow.path == rig.path(1)


@pytest.mark.parametrize("hook", [False, True])
def test_another_run_under_the_same_number(rig, hook):
    """A trainer that starts again gets to the number that an engine has while follow looks away:
    those are other weights, and the engine gets them."""
    vllm = rig.server(Vllm)
    rig.publish()
    args = ["--exec", "true"] if hook else vllm_args(vllm)
    with Follow(rig.mount, *args) as follow:
        follow.update(0)
        old = rig.digest(2)
        follow.process.send_signal(signal.SIGSTOP)
        again = trl.Run(rig.run.root, "v3", interval=4)
        for state in models.states(991, 2, models.MINI, density=0.2):
            again.sync(state)

        def is_new():
            with contextlib.suppress(OSError):  # while the one goes and the other comes
                return rig.mount.versions()[-1:] == [2] and rig.digest(2) != old
            return False

        wait_until(is_new, "no new run")
        follow.process.send_signal(signal.SIGCONT)
        line = follow.update(1)
        assert (line["version"], line["result"]) == (2, "ok")
        assert hook or vllm.loaded == rig.digest(2) != old
        assert rig.pinned() == [2]
        follow.said("version 2 is another run's now")


def is_running(pid):
    """Is it there, and no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_command_started_ends_with_it(rig):
    """Also what pays no attention to SIGTERM, when the shell itself does."""
    pid = rig.mount.work / "pid"
    deaf = f"sh -c 'trap \"\" TERM; echo $$ >{pid}; while :; do sleep 0.1; done' & wait"
    done = mounted.run("follow", rig.mount.at, "--once", "--exec", deaf, "--timeout", 8,
                       "--retries", 0, check=False)
    assert done.returncode == 1 and "did not end in time" in done.stderr
    wait_until(lambda: not is_running(int(pid.read_text())), "it goes on")


def test_stand_ins_can_fail():
    """The stand-ins notice a wrong order, or these tests would prove little."""
    vllm = Vllm()
    for step in (vllm.start, vllm.update, vllm.finish):
        with pytest.raises(Exception, match="4|5"):
            step({}, {"update_info": {"path": "/nowhere"}, "weight_version": "1"})
    assert isinstance(vllm, Engine)
    vllm.close()
