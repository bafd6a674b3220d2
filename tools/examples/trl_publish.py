# SPDX-License-Identifier: Apache-2.0
"""A trainer that publishes its policy: a callback for TRL's trainers (and any of transformers).

    trainer = GRPOTrainer(..., callbacks=[Publish("hf://buckets/my-team/policy", every=1)])

The first version is an anchor with the files beside it (config, tokenizer); later ones are what
changed since.  Anyone who mounts the place has the new weights a moment later:

    weightfs mount hf://buckets/my-team/policy /mnt/policy

As a program it shows itself on a small random model: trl_publish.py DEST [STEPS].
"""

import shutil
import sys
import tempfile

import torch
from transformers import TrainerCallback

import weightfs


def gather(model):
    """The policy's state: whole tensors on the CPU, without what wrappers put into the names.

    Tensors that share storage (tied embeddings) are there once, as save_pretrained() has them.
    Under FSDP2 or tensor parallelism every rank must take part; rank 0 has the result."""
    state, seen = {}, set()
    for name, tensor in model.state_dict().items():
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
        elif tensor.data_ptr() in seen and tensor.numel() > 0:
            continue
        seen.add(tensor.data_ptr())
        state[name.removeprefix("module.").replace("_orig_mod.", "")] = tensor.detach().cpu()
    return state


class Publish(TrainerCallback):
    """Publishes every `every` optimizer steps, in bfloat16 as TRL's own weight sync does."""

    def __init__(self, dest, every=1, **options):
        self.dest, self.every, self.options = dest, every, options
        self.published = []

    def on_train_begin(self, args, state, control, model=None, processing_class=None, **kwargs):
        """The first version: a checkpoint with everything a reader needs beside the weights."""
        if not state.is_world_process_zero:
            return
        folder = tempfile.mkdtemp()
        try:
            model.config.save_pretrained(folder)
            if getattr(model, "generation_config", None):
                model.generation_config.save_pretrained(folder)
            if processing_class is not None:
                processing_class.save_pretrained(folder)
            self._publish(model, beside=folder)
        finally:
            shutil.rmtree(folder)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """What has changed since the last time."""
        if state.global_step % self.every == 0:
            self._publish(model, write=state.is_world_process_zero)

    def _publish(self, model, write=True, beside=None):
        policy = gather(model)
        if not write:
            return
        policy = {name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
                  for name, tensor in policy.items()}
        if beside:
            with open(f"{beside}/model.safetensors", "wb") as out:
                weightfs.stream(policy, out.write)
            done = weightfs.publish(beside, self.dest, **self.options)
        else:
            done = weightfs.publish(policy, self.dest, **self.options)
        self.published.append(done)
        print(f"version {done.version}: {done.kind}, {done.bytes} bytes", flush=True)


def main(dest, steps=3):
    """Without a trainer: a random model, some steps of AdamW, the callback as a trainer calls it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, TrainerControl, TrainerState

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    callback, state, control = Publish(dest), TrainerState(), TrainerControl()
    state.is_world_process_zero = True
    callback.on_train_begin(None, state, control, model=model)
    for _ in range(steps):
        tokens = torch.randint(0, 256, (4, 32))
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.global_step += 1
        callback.on_step_end(None, state, control, model=model)
    return model, callback


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
