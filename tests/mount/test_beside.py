"""What lies in a run and is not its model: adapters, a trainer's states, logs, tokenizers."""

import os

import pytest

from lib import driven, hfdir, models, mounted, oracle, reading, trl
from lib import safetensors_py as st
from lib.mounted import Mount
from lib.strict_s3 import StrictS3

MODEL = "model.safetensors"
STATE = {"optimizer.pt": b"o" * 300_000, "scheduler.pt": b"s" * 100, "rng_state_0.pth": b"r" * 100,
         "training_args.bin": b"a" * 100, "dcp/__0_0.distcp": b"d" * 300_000,
         "global_step1/mp_rank_00_optim_states.pt": b"g" * 300_000}
SHOWN = {"tokenizer.json": b"{}", "trainer_state.json": b"{}", "runs/events.out.tfevents.1": b"log",
         "train.log": b"loss 1\n", "vocab.txt": b"a\n"}
ADAPTER = {"adapter_config.json": b'{"peft_type": "LORA"}', "README.md": b"card",
           "adapter_model.safetensors": st.dump(models.states(90, 1, models.MINI)[0])}


def write(top, files):
    """All of them."""
    for name, blob in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(blob)


def below(name, files):
    """In a directory."""
    return {f"{name}/{file}": blob for file, blob in files.items()}


def shows(top, files):
    """Exactly these, beside the weights."""
    have = reading.tree(top)
    have.pop(MODEL, None)
    assert sorted(have) == sorted(files)
    for name, blob in files.items():
        assert reading.read_file(have[name]) == blob, name


def run_with_all(bucket):
    """A run, and the files that a mount shows of it beside the weights."""
    models.publish(trl.Run(bucket, "v3"), models.states(91, 3, models.MINI))
    inside = {**ADAPTER, "optimizer.pt": b"small", "embeddings.bin": b"more"}
    alone = below("lora-32", inside)
    write(bucket, {**STATE, **SHOWN, **ADAPTER, **alone, **below("logs", STATE),
                   "pytorch_model.bin": b"stale", "extra.safetensors": b"stale"})
    return {**SHOWN, **ADAPTER, **alone}


def test_run(bucket, scratch):
    """Adapters show as they are, states can be read as objects, and an export has what shows."""
    want = run_with_all(bucket)
    with Mount(bucket) as m:
        m.wait_version(3)
        shows(m.at, want)
        raw = m.dot / "bucket"
        for name, blob in {**STATE, **below("logs", STATE)}.items():
            assert (raw / name).read_bytes() == blob
        # One that comes later, and one that goes.
        write(bucket, below("lora-64", ADAPTER))
        (bucket / "lora-32" / "adapter_config.json").unlink()
        now = {n: b for n, b in {**want, **below("lora-64", ADAPTER)}.items()
               if n not in ("lora-32/adapter_config.json", "lora-32/adapter_model.safetensors",
                            "lora-32/optimizer.pt", "lora-32/embeddings.bin")}
        mounted.wait_until(lambda: (m.at / "lora-64" / "adapter_model.safetensors").exists() and
                           not (m.at / "lora-32" / "optimizer.pt").exists() and
                           os.stat(m.at / "lora-64" / "adapter_model.safetensors").st_size ==
                           len(ADAPTER["adapter_model.safetensors"]), "it does not change")
        shows(m.at, now)
        assert m.version() == 3
        m.wait_well()
    mounted.run("export", bucket, "-o", scratch / "out", "-q", "--cache-dir", scratch / "cache")
    shows(scratch / "out", now)


def test_checkpoints(bucket):
    """Each version has its own; a directory that is called as a version's and is an adapter only
    is none."""
    states = models.states(92, 3, models.MINI)
    for n in (1, 2):
        hfdir.Trainer(bucket, states, name="checkpoint-{}").full(n)
        write(bucket / f"checkpoint-{n}", {**STATE, **below("lora", ADAPTER),
                                           "of.txt": str(n).encode()})
    write(bucket, below("checkpoint-3", {**ADAPTER, "optimizer.pt": b"small"}))
    config = {"config.json": b'{"model_type": "tiny"}'}
    with Mount(bucket) as m:
        m.wait_version(2)
        for n in (1, 2):
            shows(m.wait_tree(n), {**config, **below("lora", ADAPTER), "of.txt": str(n).encode(),
                              **below("checkpoint-3", {**ADAPTER, "optimizer.pt": b"small"})})
        assert m.status()["problems"] == [] and m.status()["notes"] == []


def test_adapters_only(bucket):
    """A folder of them has no versions, and is readable."""
    write(bucket, {**below("checkpoint-1", ADAPTER), **below("checkpoint-2", ADAPTER)})
    with Mount(bucket) as m:
        shows(m.at, {**below("checkpoint-1", ADAPTER), **below("checkpoint-2", ADAPTER)})
        assert m.version() is None and m.status()["notes"] == []


def test_nothing_is_fetched_unasked(bucket, monkeypatch, scratch):
    """Neither --prefetch all nor export touches a trainer's states."""
    want = run_with_all(bucket)
    for name in list(os.environ):
        if name.startswith("AWS_") or "proxy" in name.lower():
            monkeypatch.delenv(name)
    for key, value in driven.environment(driven.keys()).items():
        monkeypatch.setenv(key, value)
    with StrictS3() as server:
        server.put_tree(bucket, "run/")
        place = ["--endpoint-url", server.endpoint]
        with Mount("s3://bucket/run", args=[*place, "--prefetch", "all"]) as m:
            m.wait_version(3)
            m.control("prefetch")
            state = oracle.Oracle(bucket).files(3)[MODEL]
            assert (m.at / MODEL).read_bytes() == state
            shows(m.at, want)
            mounted.run("export", "s3://bucket/run", *place, "-o", scratch / "out", "-q",
                        "--cache-dir", scratch / "cache")
            shows(scratch / "out", want)
            for name in STATE:
                assert server.s3.count(f"GET .*run/{name}") == 0
            assert (m.dot / "bucket" / "optimizer.pt").read_bytes() == STATE["optimizer.pt"]
            assert server.s3.count("GET .*run/optimizer.pt") > 0


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_base(weights, bucket, scratch):
    """With --base its own are shown, those beside its model and those in directories."""
    states = models.states(93, 2, models.MINI)
    models.publish(trl.Run(bucket, "v3"), states)
    base = models.write_base(scratch / "base", states[0])
    files = {"adapter_config.json": b"{}", weights: b"weights"}
    write(base, {**files, **below("lora", files), "lora/notes.pt": b"own"})
    with Mount(bucket, base=base) as m:
        m.wait_version(2)
        have = reading.tree(m.at)
        for name in (*files, *below("lora", files), "lora/notes.pt"):
            assert reading.read_file(have[name]) == (base / name).read_bytes()
        assert "old.pt" not in have and "adapter.bin" not in have
