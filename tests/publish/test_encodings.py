"""What `publish` writes for the receivers of others, by their rules and by ours.

TRL: the objects are those that its trainer would have written (lib/trl.py), and a mount shows them
bit for bit, with weightfs.json and without.  slime and SGLang: lib/hfdir.py pulls every version
from every start.
"""

import json
import shutil

import numpy as np
import pytest

from lib import hfdir, models, mounted, publishing, trl
from lib import safetensors_py as st

BASE = "model.safetensors"


def shown(mount, version):
    """A version's tensors, as a mount has them."""
    return st.load_file(mount.dot / "versions" / str(version) / BASE)[0]


def published(bucket, scratch, encoding, states, *args, mount=None):
    """Publishes the states; the reports.  A mount follows, and shows each."""
    out = publishing.Publisher(bucket, scratch / "state", ["--encoding", encoding, *args])
    reports = []
    for state in states:
        reports.append(out.publish(state))
        if mount:
            mount.wait_version(reports[-1]["version"])
            assert publishing.same_state(shown(mount, reports[-1]["version"]), state)
    return reports


def pairs(name, metadata):
    """What of an object's metadata must agree, names in any order."""
    one = dict(metadata)
    if "changed_params" in one:
        one["changed_params"] = sorted(json.loads(one["changed_params"]))
    return name, one


@pytest.mark.parametrize("encoding, generation", [("trl-v1", "v1.3"), ("trl-v3", "v3")])
def test_trl_is_what_trl_writes(bucket, scratch, encoding, generation):
    """The same tensors, dtypes, order and metadata in every delta and anchor; far gaps too."""
    spec = {**models.TINY, "model.far": ("BF16", (1 << 17,))}
    states = models.states(11, 6, spec, density=0.004)
    for i, state in enumerate(states):  # one change a step, far into it: gaps beyond 16 bits
        data = states[0]["model.far"].data.copy()
        data[(1 << 17) - 1] = i
        state["model.far"] = st.Tensor("BF16", (1 << 17,), data)
    published(bucket, scratch, encoding, states, "--anchor-every", 4)
    theirs = trl.Run(scratch / "theirs", generation, interval=5)
    for i, state in enumerate(states):
        theirs.sync(state)
        for folder in ("anchors", "deltas"):
            name = f"{folder}/step_{i + 1:06d}.safetensors"
            if (scratch / "theirs" / name).exists() and (bucket / name).exists():
                ours, want = ((root / name).read_bytes() for root in
                              (bucket, scratch / "theirs"))
                got, had = st.load(ours), st.load(want)
                # v1.3 has a full file as its second delta, and anchors only of what changed.
                if generation == "v1.3" and i in (1, 4):
                    continue
                assert pairs(name, got[1]) == pairs(name, had[1])
                assert publishing.same_state(got[0], had[0])
                assert [k for k in st.split(ours)[1] if k != "__metadata__"] == \
                    [k for k in st.split(want)[1] if k != "__metadata__"]


@pytest.mark.parametrize("encoding", ["trl-v1", "trl-v3"])
def test_trl_mounted(bucket, scratch, encoding):
    """Every dtype that trainers have, steps without a change, anchors; then the same objects as
    TRL would have left them, without weightfs.json."""
    states = models.states(12, 9, models.MIXED, density=0.003, same=(3, 7))
    with mounted.Mount(bucket) as mount:
        reports = published(bucket, scratch, encoding, states, "--anchor-every", 5, mount=mount)
    assert [r["kind"] for r in reports] == [
        "anchor" if i in (0, 5) else "unchanged" if i in (3, 7) else "delta" for i in range(9)]
    numbers = {p.stem for p in (bucket / "deltas").iterdir()}
    assert ("step_000004" in numbers) == (encoding == "trl-v1")
    bare = scratch / "bare"
    shutil.copytree(bucket, bare)
    (bare / "weightfs.json").unlink()
    for version in (9, 6, 3):
        for path in bare.glob("*/step_*.safetensors"):
            if int(path.stem[5:]) > version:
                path.unlink()
        with mounted.Mount(bare) as mount:
            mount.wait_version(version)
            assert publishing.same_state(shown(mount, version), states[version - 1])


def test_trl_refuses(bucket, scratch):
    """What the format cannot say, with the remedy; nothing is published then."""
    half, other = (st.Tensor("F4", (64, 64), np.full(2048, n, np.uint8)) for n in (1, 1))
    other.data[77] = 3
    out = publishing.Publisher(bucket, scratch / "state", ["--encoding", "trl-v3"])
    out.publish({"half": half})
    text = out.refused({"half": other})
    assert '"half" is F4' in text and "--encoding wfp1" in text
    assert publishing.pointer(bucket)["newest"] == 1
    assert out.publish({"half": other}, "--anchor")["version"] == 2


def test_xor_zstd(bucket, scratch):
    """Every version pulled from every start; anchors reset the chain; steps without a change."""
    states = models.states(13, 8, models.MIXED, density=0.01, same=(2,))
    reports = published(bucket, scratch, "xor-zstd", states, "--anchor-every", 4)
    assert [r["kind"] for r in reports] == ["anchor", "delta", "unchanged", "delta", "anchor",
                                            "delta", "delta", "delta"]
    for version, state in enumerate(states, 1):
        got = hfdir.pull(bucket, None, version)
        assert got == {name: t.data.tobytes() for name, t in state.items()}
    assert hfdir.index_of(bucket, 3)["weight_map"] == {}
    full = hfdir.directory(bucket, 5)  # what a receiver copies: companions and all
    assert {p.name for p in full.iterdir()} >= {"config.json", BASE, hfdir.INDEX}
    tensors, metadata = hfdir.read(full / BASE)[1], hfdir.index_of(bucket, 5)["metadata"]
    assert "delta_encoding" not in metadata
    assert metadata["total_size"] == sum(len(data) for _, _, data in tensors.values())
    assert mounted.run("verify", bucket, check=False).stdout == ""
    with pytest.raises(hfdir.Refused, match="out of order"):
        hfdir.apply_delta(hfdir.whole(full), hfdir.directory(bucket, 7),
                          hfdir.index_of(bucket, 7), 5)


def test_xor_zstd_any_bits_and_shards(bucket, scratch):
    """Random bits in every dtype, a sharded checkpoint, and shards of a delta by thread."""
    rng = np.random.default_rng(14)
    spec = {f"t.{dtype.lower()}": (dtype, (64, 1024)) for dtype in ("BF16", "F32", "F8_E4M3")}
    spec.update({f"w.{i}": ("BF16", (512, 1024)) for i in range(4)}, tiny=("F4", (2, 2)))
    raw = {name: rng.integers(0, 256, st.numel(shape) * st.DTYPES[dtype] // 8, dtype=np.uint8)
           for name, (dtype, shape) in spec.items()}
    states = []
    for _ in range(3):
        states.append({name: st.Tensor(dtype, shape, raw[name].view(st.carrier(dtype)))
                       for name, (dtype, shape) in spec.items()})
        raw = {name: np.where(rng.random(data.size) < 0.03,
                              rng.integers(0, 256, data.size, dtype=np.uint8), data)
               for name, data in raw.items()}
    out = publishing.Publisher(bucket, scratch / "state",
                               ["--encoding", "xor-zstd", "--jobs", "3"])
    for i, state in enumerate(states):
        out.publish(publishing.write_checkpoint(scratch / f"sharded-{i}", state, shards=3))
    for version, state in enumerate(states, 1):
        assert hfdir.pull(bucket, None, version) == {n: t.data.tobytes()
                                                     for n, t in state.items()}
    assert [e["kind"] for e in publishing.pointer(bucket)["steps"]] == ["anchor", "delta", "delta"]
    files = sorted(p.name for p in hfdir.directory(bucket, 2).glob("*.safetensors"))
    assert files == [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    assert len(files) == 3


@pytest.mark.parametrize("encoding", ["wfp1", "wfp1x", "xor-zstd"])
@pytest.mark.parametrize("meta", [{"format": "pt"}, {"format": "weightfs-patch"},
                                  {"format": "weightfs-packed"}, {"delta_encoding": "xor"}])
def test_checkpoints_that_look_like_deltas(encoding, meta, bucket, scratch):
    """A checkpoint is one, whatever its keys and its metadata remind of."""
    states = models.states(15, 2, models.PAIRED)
    out = publishing.Publisher(bucket, scratch / "state", ["--encoding", encoding, "--anchor"])
    for state in states:
        path = scratch / "model.safetensors"
        path.write_bytes(st.dump(state, meta))
        out.publish(path)
        mounted.run("export", "-q", "--force", "-o", scratch / "out", bucket)
        assert (scratch / "out" / BASE).read_bytes() == path.read_bytes()


def test_xor_zstd_numbers(bucket, scratch):
    """A receiver steps from number to number, so a jump is a whole checkpoint."""
    states = models.states(15, 3, models.SMALL)
    out = publishing.Publisher(bucket, scratch / "state", ["--encoding", "xor-zstd"])
    assert out.publish(states[0], "--version", 100)["kind"] == "anchor"
    report = out.publish(states[1], "--version", 200)
    assert report["kind"] == "anchor" and "more than one number" in report["reason"]
    assert out.publish(states[2], "--version", 201)["kind"] == "delta"
    want = {name: t.data.tobytes() for name, t in states[2].items()}
    assert hfdir.pull(bucket, None, 201) == want
