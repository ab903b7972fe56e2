"""The trainer's weights to servers that read files: a directory in Hugging Face's format, or PEFT's for adapters.

Both are written by all ranks from their shards and renamed when they are whole, under a new name for each version.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.peft_config import WEIGHTS_FILE, peft_config, saved_whole
from glmforge.checkpoint.adapter.to_peft import peft_tensors
from glmforge.checkpoint.collective import run_on_rank_zero
from glmforge.checkpoint.convert.hf_export_sharded import exchange, export_hf_sharded
from glmforge.checkpoint.convert.hf_names import whole_piece
from glmforge.checkpoint.convert.parts import Parts
from glmforge.checkpoint.format.safetensors_stream import write_safetensors
from glmforge.checkpoint.format.sharded_adapter import CONFIG_FILE
from glmforge.checkpoint.format.store import new_directory
from glmforge.config.adapters import adapted_maps, adapter_parts, table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.runtime.durable import write_durably


def write_weights(
    directory: Path,
    tensors: Mapping[str, Tensor],
    config: ModelConfig,
    dtype: torch.dtype,
    tokenizer: Path,
    file_bytes: int,
) -> None:
    """The model of which `tensors` are this rank's part, without MTP layers, over an earlier one. Collective.

    A rank holds a file of at most `file_bytes`, or one tensor, besides its part. Raises `CheckpointError`, as
    `export_hf_sharded` does.
    """
    names = parameter_table(config).keys()
    export_hf_sharded(
        {name: tensor for name, tensor in tensors.items() if name in names},
        config,
        directory,
        dtype=dtype,
        with_mtp=False,
        tokenizer_dir=tokenizer,
        max_shard_bytes=file_bytes,
        overwrite=True,
    )


def write_adapter(
    directory: Path, tensors: Mapping[str, Tensor], config: ModelConfig, lora: LoraConfig, base: str
) -> None:
    """The adapters among `tensors`, which rank 0 holds for a moment, in fp32, over earlier ones. Collective.

    Raises `CheckpointError`.
    """
    maps, table = adapted_maps(config, lora), table_with(config, lora)
    names = [part.row.name for one in maps for part in adapter_parts(one, lora)] + list(saved_whole(config, lora))
    parts = Parts.gather(tensors, {name: table[name].shape for name in names})
    found = exchange([[whole_piece(table[name]) for name in names]], torch.float32, parts)

    def write() -> None:
        made = peft_tensors(found, config, lora)
        shutil.rmtree(directory, ignore_errors=True)
        with new_directory(directory) as partial:
            specs = {name: (torch.float32, tensor.shape) for name, tensor in made.items()}
            write_safetensors(partial / WEIGHTS_FILE, specs, lambda name: made[name].make())
            write_durably(partial / CONFIG_FILE, json.dumps(peft_config(config, lora, base), indent=2))

    run_on_rank_zero(write)
