"""ModelExpress's own trainer side, run by test_peers.py in a process of its own.

    peer_modelexpress.py STATES OUT PLAN

STATES has 0.safetensors, 1.safetensors, ...; the first is the checkpoint that the run starts from.
PLAN is a JSON list, for each later one "delta" or "full".  What the package would put into a bucket
of S3 is put below OUT: vN/model.safetensors.index.json and its shards.  Its control service, which
only says what a version's URI and base are, is played here.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist
from modelexpress_rl import refit_pb2
from modelexpress_rl.train.methods.canonical_delta import CanonicalDeltaPublicationMethod
from modelexpress_rl.utils import make_tensor_reader
from modelexpress_rl.version import WeightVersionRef
from safetensors.torch import load_file

PREFIX = "s3://bucket/run"


class Folder:
    """In place of the package's S3 client: immutable objects, each appears at once."""

    def __init__(self, top):
        self.top = Path(top)

    def put(self, *, uri, data):
        """One object."""
        path = self.top / uri.removeprefix(PREFIX + "/")
        assert not path.exists(), path
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.with_name("." + path.name)
        tmp.write_bytes(data)
        os.rename(tmp, path)

    def close(self):
        """Nothing is open."""


class Service:
    """What the control plane knows of the versions."""

    def __init__(self, plan):
        self.plan = plan

    def GetWeightVersion(self, request, timeout):  # pylint: disable=invalid-name
        """Where a version goes, and what it applies to."""
        assert timeout > 0
        number = int(request.uid[1:])
        full = self.plan[number - 1] == "full"
        version = refit_pb2.WeightVersion(
            uid=request.uid, model_name="model",
            payload_format=refit_pb2.WEIGHT_PAYLOAD_FORMAT_FULL_HF_CHECKPOINT if full
            else refit_pb2.WEIGHT_PAYLOAD_FORMAT_XOR_DELTA)
        if not full:
            version.base_version_id = f"v{number - 1}"
        version.object_storage.storage_type = refit_pb2.OBJECT_STORAGE_TYPE_S3
        version.object_storage.uri = f"{PREFIX}/v{number}/model.safetensors.index.json"
        return refit_pb2.GetWeightVersionResponse(version=version)


def main(states, out, plan):
    """One trainer, rank 0 of 1."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    service = Service(plan)
    read, _ = make_tensor_reader(states / "0.safetensors")
    method = CanonicalDeltaPublicationMethod(
        config=SimpleNamespace(initial_base_version_id="v0", uri_prefix=PREFIX),
        model_name="model", service=lambda: service, rpc_timeout_seconds=1,
        process_group=dist.group.WORLD, read_seed_tensor=read, s3=Folder(out))
    method.prepare_base(hf_tensor_iter=[list(load_file(states / "0.safetensors").items())])
    for number in range(1, len(plan) + 1):
        tensors = list(load_file(states / f"{number}.safetensors").items())
        version = WeightVersionRef(f"v{number}")
        staged = method.stage(version=version, hf_tensor_iter=[tensors[::2], tensors[1::2]])
        method.publish(version=version, staged=staged)
    method.close()
    dist.destroy_process_group()


main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
