"""Run by two processes (torchrun, gloo): shards a model as verl's FSDP engine does and has verl save it as a checkpoint.

`save_checkpoint.py MODEL FOLDER` writes FOLDER/plain and FOLDER/lora. The mesh, the sharding and the checkpoint manager are those
of a real run, but on CPUs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.trainer.config import CheckpointConfig
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

LORA_RANK = 4


def with_adapter(model: Any) -> Any:
    """An adapter that has learned something: its second half is not zero."""
    config = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(0)
    wrapped = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.2)
    return wrapped


def save(model: Any, layers: Any, mesh: Any, tokenizer: Any, target: Path) -> None:
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    manager = FSDPCheckpointManager(
        model,
        optimizer=None,
        processing_class=tokenizer,
        checkpoint_config=CheckpointConfig(save_contents=["model"], load_contents=["model"]),
    )
    manager.save_checkpoint(str(target / "global_step_4" / "actor"), global_step=4)


def main(folder: Path, out: Path) -> None:
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("fsdp",))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    save(plain, plain.model.layers, mesh, tokenizer, out / "plain")
    tuned = with_adapter(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    save(tuned, tuned.base_model.model.model.layers, mesh, tokenizer, out / "lora")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
