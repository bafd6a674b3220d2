"""The examples: run against stand-ins where they can run, checked by their own tools elsewhere."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys

import pytest
import yaml

from lib import mounted
from lib.engines import Sglang, Vllm
from lib.following import Rig
from lib.mounted import TOP, wait_until

TOOLS = TOP / "tools"
EXAMPLES = TOOLS / "examples"


def executable(path, text):
    """A script."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def prefix(scratch):
    """A place with bin/weightfs, as after an installation."""
    (scratch / "prefix" / "bin").mkdir(parents=True)
    (scratch / "prefix" / "bin" / "weightfs").symlink_to(mounted.BINARY)
    return scratch / "prefix"


def installed(name, prefix):
    """A file of tools as it is installed."""
    return (TOOLS / name).read_text().replace("@PREFIX@", str(prefix))


def check_command(words):
    """A weightfs command line in an example: its verb and options exist."""
    assert words[0] == "weightfs", words
    text = mounted.run(words[1], "--help").stdout
    for word in words[2:]:
        if word.startswith("--"):
            assert re.search(rf"^  (-\w, )?{word.split('=')[0]}\b", text, re.M), (words, word)


def shell_commands(text):
    """The weightfs commands in a piece of shell; bash must understand it."""
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for part in re.split(r"[;&|\n]+|\$\(|\bexec\b|\buntil\b", text.replace("\\\n", " ")):
        words = part.replace(")", " ").split()
        if words and words[0] == "weightfs":
            yield words


# ---- kubernetes ----


def check_volumes(spec):
    """Mounts name volumes; the propagation is one that Kubernetes knows and allows."""
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert all(one["hostPath"]["path"].startswith("/") for one in volumes.values())
    for container in spec["containers"]:
        for one in container["volumeMounts"]:
            assert set(one) <= {"name", "mountPath", "mountPropagation", "readOnly"}, one
            assert one["name"] in volumes and one["mountPath"].startswith("/")
            kind = one.get("mountPropagation", "None")
            assert kind in ("None", "HostToContainer", "Bidirectional")
            if kind == "Bidirectional":
                assert container["securityContext"]["privileged"] is True
        if "args" in container:
            assert container["command"] == ["/bin/sh", "-c"] and len(container["args"]) == 1
            for words in shell_commands(container["args"][0]):
                check_command(words)
    return volumes


def mounts_of(container):
    """{volume: mount} of a container."""
    return {one["name"]: one for one in container["volumeMounts"]}


def test_kubernetes():
    """Both files parse, hold Kubernetes' rules, and fit each other."""
    daemon = yaml.safe_load((EXAMPLES / "kubernetes-mount.yaml").read_text())
    assert (daemon["apiVersion"], daemon["kind"]) == ("apps/v1", "DaemonSet")
    template = daemon["spec"]["template"]
    labels = daemon["spec"]["selector"]["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    shared = check_volumes(template["spec"])["mounts"]["hostPath"]["path"]
    mount = template["spec"]["containers"][0]
    assert mounts_of(mount)["mounts"]["mountPropagation"] == "Bidirectional"
    for probe in ("readinessProbe", "livenessProbe"):
        check_command(mount[probe]["exec"]["command"])
    check_command(mount["lifecycle"]["preStop"]["exec"]["command"])

    pod = yaml.safe_load((EXAMPLES / "kubernetes-serve.yaml").read_text())
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    assert check_volumes(pod["spec"])["mounts"]["hostPath"]["path"] == shared
    places = set()
    for container in pod["spec"]["containers"]:
        one = mounts_of(container)["mounts"]
        assert one["mountPropagation"] == "HostToContainer"
        places.add(one["mountPath"])
        # The mount point lies below what is bound, or a new mount would not be seen.
        assert f"{one['mountPath']}/policy" in container["args"][0]
    assert len(places) == 1, "engine and follower must see the same paths"
    writers = [c["name"] for c in pod["spec"]["containers"]
               if not mounts_of(c)["mounts"].get("readOnly")]
    assert writers == ["follow"]
    names = {e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"]}
    assert names["VLLM_SERVER_DEV_MODE"] == "1"


def test_kubernetes_waits_for_the_first_version(bucket, scratch):
    """The pod's way to the first version, with nothing but a shell."""
    pod = yaml.safe_load((EXAMPLES / "kubernetes-serve.yaml").read_text())
    text = pod["spec"]["containers"][0]["args"][0]
    rig = Rig(bucket)
    (scratch / "bin").mkdir()
    executable(scratch / "bin" / "vllm", '#!/bin/sh\necho "$@"\n')
    with rig.mount:
        rig.mount.wait_version(1)
        text = text.replace("/mnt/weightfs/policy", str(rig.mount.at))
        done = subprocess.run(
            ["/bin/sh", "-c", text], capture_output=True, text=True, timeout=mounted.WAIT,
            check=True, env={**os.environ, "PATH": f"{scratch / 'bin'}:{os.environ['PATH']}"})
        assert done.stdout.startswith(f"serve {rig.mount.at}/.weightfs/versions/1 ")


# ---- systemd, fstab ----


def test_units(prefix, scratch):
    """systemd finds nothing to say against the units, with the settings of the example."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for name in ("weightfs@.service", "weightfs-follow@.service"):
        (scratch / name).write_text(installed(name, prefix))
    paths = [scratch / "weightfs@policy.service", scratch / "weightfs-follow@policy.service"]
    for path in paths:
        path.symlink_to(scratch / path.name.replace("policy", ""))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, paths)],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "SYSTEMD_UNIT_PATH": f"{scratch}:"})
    ours = [line for line in done.stderr.splitlines() if "weightfs" in line]
    assert done.returncode == 0 and not ours, done.stderr


def settings(name):
    """A file of settings as systemd reads it."""
    lines = (EXAMPLES / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_settings():
    """The variables that the units use, with options that exist."""
    used = set()
    for name in ("weightfs@.service", "weightfs-follow@.service"):
        service = (TOOLS / name).read_text().split("[Service]")[1]
        used |= set(re.findall(r"\$\{?([A-Z]+)\}?", service))
    have = settings("policy.conf")
    assert set(have) == used - {"CACHE"}
    check_command(["weightfs", "mount", *have["OPTIONS"].split()])
    check_command(["weightfs", "follow", *have["FOLLOW"].split()])
    assert list(settings("policy.keys")) == ["VLLM_API_KEY"]


def test_fstab(bucket, prefix, scratch):
    """mount(8) itself, from an fstab with the example's line, in a namespace of its own."""
    line = next(one for one in (EXAMPLES / "fstab").read_text().splitlines()
                if one and not one.startswith("#"))
    source, target, kind, options, *rest = line.split()
    assert (kind, rest) == ("fuse.weightfs", ["0", "0"]) and source.startswith("s3://")
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespace of one's own here")
    Rig(bucket)
    point = scratch / "mnt"
    point.mkdir()
    (scratch / "fstab").write_text(
        line.replace(source, str(bucket)).replace(target, str(point))
        .replace(options, f"{options},cache_dir={scratch / 'cache'}") + "\n")
    executable(scratch / "helper", installed("mount.fuse.weightfs", prefix))
    script = f"""set -e
        {mounted.ALONE}
        sbin=$(realpath /sbin)
        mount -t tmpfs none "$sbin"
        cp {scratch / "helper"} "$sbin/mount.fuse.weightfs"
        mount -T {scratch / "fstab"} {point}
        {mounted.BINARY} wait --timeout {mounted.WAIT} {point}
        {mounted.BINARY} status --line {point}
        umount {point}
    """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True,
                          timeout=mounted.WAIT, check=False)
    assert done.returncode == 0 and done.stdout.startswith("1\n"), done


# ---- hosts ----


@pytest.mark.parametrize("script", sorted(p.name for p in EXAMPLES.glob("*.sh")))
def test_scripts_name_what_exists(script):
    """Bash understands them, and the options of weightfs in them exist."""
    commands = list(shell_commands((EXAMPLES / script).read_text()))
    assert commands
    for words in commands:
        check_command(words)


class Host:
    """A host script with a stand-in for the server's program; the server itself is in the test."""

    def __init__(self, script, program, scratch, *args, port):
        self.argv = scratch / "argv"
        self.gone = scratch / "gone"
        stub = scratch / "bin"
        stub.mkdir()
        (stub / "weightfs").symlink_to(mounted.BINARY)
        executable(stub / program, f"""#!/bin/bash
            echo "$VLLM_SERVER_DEV_MODE $*" >{self.argv}
            [ {program} != docker ] || exit 0
            trap 'touch {self.gone}; exit' TERM
            sleep 1000 & wait $!
            """)
        self.log = open(scratch / "log", "wb")
        self.process = subprocess.Popen(
            [EXAMPLES / script, *map(str, args)], stdout=self.log, stderr=self.log,
            env={**os.environ, "PATH": f"{stub}:{os.environ['PATH']}", "PORT": str(port),
                 "WEIGHTFS_CACHE_DIR": str(scratch / "cache")}, start_new_session=True)
        self.scratch = scratch

    def end(self):
        """Tells it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(mounted.WAIT)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the stand-in slept in
                os.killpg(self.process.pid, signal.SIGKILL)
            self.log.close()
            print((self.scratch / "log").read_text())


@pytest.mark.parametrize("script,program,kind,first", [
    ("vllm-host.sh", "vllm", Vllm, "1 serve {}"),
    ("sglang-host.sh", "python3", Sglang, " -m sglang.launch_server --model-path {}"),
])
def test_hosts(script, program, kind, first, bucket, scratch):
    """Server started with the newest version, told of the next one, and all of it taken down."""
    rig = Rig(bucket)
    server, point = kind(), scratch / "mnt"
    host = Host(script, program, scratch, bucket, point, "--extra", port=server.server.port)
    try:
        wait_until(lambda: host.argv.exists() and host.argv.read_text(), "no server was started")
        said = host.argv.read_text()
        assert said.startswith(first.format(f"{point}/.weightfs/versions/1")), said
        assert "--extra" in said and f"--port {server.server.port}" in said
        wait_until(lambda: server.calls, "the follower does not ask")
        number = rig.grow()
        wait_until(lambda: server.version == str(number) and not server.paused,
                   lambda: f"{server.calls}")
        assert server.path == f"{point}/.weightfs/versions/{number}"
    finally:
        code = host.end()
        server.close()
        if mounted.is_mounted(point):
            mounted.unmount(point)
            assert not "taken down"
    assert code == 143 and host.gone.exists()


def test_docker(rig, scratch):
    """The container gets the mount's parent with propagation; the follower speaks to its port."""
    vllm = rig.server(Vllm)
    host = Host("docker-vllm.sh", "docker", scratch, rig.mount.at, port=vllm.server.port)
    try:
        wait_until(lambda: vllm.version == "1", lambda: f"{vllm.calls}")
    finally:
        code = host.end()
    said = host.argv.read_text()
    parent = rig.mount.at.parent
    assert f"source={parent},target={parent},bind-propagation=rslave" in said
    assert "--env VLLM_SERVER_DEV_MODE=1" in said
    assert f"--model {rig.mount.at}/.weightfs/versions/1" in said and code == 0


# ---- the trainer ----

TRAINER = """
import sys
sys.path[:0] = sys.argv[1:3]
import torch, trl_publish
from transformers import AutoModelForCausalLM
model, callback = trl_publish.main(sys.argv[3], 2)
kinds = [one.kind for one in callback.published]
assert kinds == ["anchor", "delta", "delta"], kinds
print("published", flush=True)
shown = AutoModelForCausalLM.from_pretrained(sys.stdin.readline().strip(), dtype=torch.bfloat16)
have, want = shown.state_dict(), model.state_dict()
assert have.keys() == want.keys()
for name, tensor in want.items():
    assert torch.equal(have[name], tensor.to(torch.bfloat16)), name
print("the same weights")
"""


def test_trainer(bucket, scratch):
    """The callback publishes what a mount then shows: bit for bit the model that was trained."""
    child = subprocess.Popen(
        [sys.executable, "-c", TRAINER, TOOLS, EXAMPLES, bucket], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "WEIGHTFS": str(mounted.BINARY), "XDG_STATE_HOME": str(scratch),
             "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    try:
        assert "published\n" in iter(child.stdout.readline, "")
        with mounted.Mount(bucket) as m:
            m.wait_version(3)
            said, _ = child.communicate(f"{m.tree(3)}\n", timeout=mounted.WAIT * 3)
        assert child.returncode == 0 and said.endswith("the same weights\n")
    finally:
        child.kill()
        child.wait()


def test_every_example_is_described():
    """The list in the examples' README is the directory."""
    named = set(re.findall(r"`([a-z_.-]+)`", (EXAMPLES / "README.md").read_text()))
    for path in EXAMPLES.iterdir():
        assert path.name in named or path.name == "README.md", path.name
