"""The writers and the reference agree with each other, and with the safetensors package."""

import pytest

from lib import models, oracle, trl
from lib import safetensors_py as st


@pytest.mark.parametrize("generation", trl.GENERATIONS)
def test_reference_returns_what_was_published(generation, bucket):
    """Reading a run back gives the states that were fed to its writer."""
    spec = models.MIXED if generation == "v1.0" else models.TINY
    run = trl.Run(bucket, generation, interval=4)
    fed = {}
    for state in models.states(90, 9, spec, same=(3, 6), skip=("model.layers.9.bias",)):
        if run.sync(state):
            fed[run.number] = state
    got = oracle.Oracle(bucket).states()
    assert list(got) == list(fed)
    for number, state in fed.items():
        for name, tensor in state.items():
            assert got[number][name].data.tobytes() == tensor.data.tobytes(), (number, name)


def test_number_two_and_partial_anchors_of_v13(bucket):
    """v1.3's quirks are in what we write: a full file in deltas/, anchors that lack tensors."""
    run = trl.Run(bucket, "v1.3", interval=3)
    models.publish(run, models.states(91, 4, models.SMALL, skip=("b.weight",)))
    second = st.load_file(bucket / "deltas" / "step_000002.safetensors")
    assert set(second[0]) == set(models.SMALL) and second[1]["sparse"] == "False"
    third = st.load_file(bucket / "anchors" / "step_000003.safetensors")
    assert set(third[0]) == set(models.SMALL) - {"b.weight"}


def test_gap_width():
    """U16 up to a gap of 65535, U32 beyond; nothing at all is U16."""
    for positions, dtype in (([65535], "U16"), ([65536], "U32"), ([0, 65536], "U16"),
                             ([0, 65537], "U32"), ([], "U16")):
        index = trl.encode_positions(positions, "gap_delta")
        assert index.dtype == dtype
        assert list(oracle.decode_positions(index, "gap_delta")) == positions


def test_our_files_are_theirs(tmp_path):
    """The package writes the same bytes for the same tensors: order and padding are TRL's."""
    numpy = pytest.importorskip("safetensors.numpy")
    state = models.start(92, {n: s for n, s in models.MIXED.items() if s[0] != "BF16"})[1]
    arrays = {n: t.data.view({"I64": "<i8", "F32": "<f4", "F16": "<f2", "U8": "u1"}[t.dtype])
              .reshape(t.shape) for n, t in state.items()}
    numpy.save_file(arrays, tmp_path / "x", {"format": "pt"})
    assert (tmp_path / "x").read_bytes() == st.dump(state, {"format": "pt"})
