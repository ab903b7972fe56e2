"""An adapter as PEFT reads it: `adapter_model.safetensors`, `adapter_config.json` and the tokenizer.

Linear maps have the same tensors in both. Of packed experts PEFT keeps all experts' factors in one matrix each, A
[E r, J] by expert and B [O, r E] by rank; adapters of gate and up projection become one of twice the rank, A one below
the other and B in blocks (`peft_config`). Tensors are made one at a time, in fp32; no tensor of the model is needed.

Shapes: E experts, r rank, J inputs and O outputs of a map.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.peft_config import (
    PAIR,
    WEIGHTS_FILE,
    no_place_in_peft,
    packed_maps,
    packed_name,
    peft_config,
    peft_name,
    saved_whole,
    without_dora_in_peft,
)
from glmforge.checkpoint.convert.hf_directory import copy_tokenizer
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.safetensors_stream import Spec, write_safetensors
from glmforge.checkpoint.format.sharded_adapter import CONFIG_FILE, PARAMETER_PREFIX, read_adapter
from glmforge.checkpoint.format.store import new_directory
from glmforge.checkpoint.merged import first_row
from glmforge.config.adapters import LinearMap, adapted_maps, adapter_parts, table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Shape
from glmforge.errors import CheckpointError
from glmforge.runtime.durable import write_durably


class PeftTensor(NamedTuple):
    """A tensor of PEFT's file, made when it is requested."""

    shape: Shape
    make: Callable[[], Tensor]


def export_peft(checkpoint: Path, out_dir: Path, *, base: str | None = None) -> None:
    """Write what `peft.PeftModel.from_pretrained` loads of a checkpoint of adapters.

    `base` is what PEFT is to load the model from; None: where it lay in training. Raises `CheckpointError` if the
    checkpoint is incomplete or not one of adapters, for those that PEFT cannot read, or if `out_dir` exists.
    """
    description = read_adapter(checkpoint)
    tensors = peft_tensors(StoredTensors(checkpoint, PARAMETER_PREFIX), description.model, description.lora)
    specs: dict[str, Spec] = {name: (torch.float32, tensor.shape) for name, tensor in tensors.items()}
    config = peft_config(description.model, description.lora, base or description.base.source)
    with new_directory(out_dir) as directory:
        write_safetensors(directory / WEIGHTS_FILE, specs, lambda name: tensors[name].make())
        write_durably(directory / CONFIG_FILE, json.dumps(config, indent=2))
        copy_tokenizer(checkpoint, directory)


def peft_tensors(tensors: Mapping[str, Tensor], model: ModelConfig, lora: LoraConfig) -> dict[str, PeftTensor]:
    """By PEFT's names, adapters and what was trained whole beside them, from `tensors` by our names.

    Raises `CheckpointError` for what PEFT cannot read.
    """
    maps = adapted_maps(model, lora)
    if lora.dora and (one := without_dora_in_peft(maps)):
        raise CheckpointError(
            f"{one.name}: PEFT does not support DoRA on this layer of a model with experts; merge the adapters into "
            "the weights instead ('glmforge adapter merge --full')"
        )
    if reason := no_place_in_peft(model, lora):
        instead = (
            "load the run itself with glmforge" if model.heads else "'glmforge adapter merge --full' writes the weights"
        )
        raise CheckpointError(f"{reason}; or {instead}")
    found: dict[str, PeftTensor] = {}
    rows = [part.row for one in maps if one.kind != "experts" for part in adapter_parts(one, lora)]
    table = table_with(model, lora)
    for name in [*(row.name for row in rows), *saved_whole(model, lora)]:
        found[peft_name(name)] = PeftTensor(table[name].shape, partial(_plain, tensors, name))
    for owner, groups in packed_maps(maps).items():
        for matrix, members in groups.items():
            num_experts, num_rows, num_columns = members[0].row.shape
            rank = num_experts * lora.rank * len(members)
            a, b = (packed_name(owner, matrix, part, nested=len(groups) > 1) for part in PAIR)
            found[a] = PeftTensor((rank, num_columns), partial(_packed_a, tensors, members, lora))
            found[b] = PeftTensor((num_rows, rank), partial(_packed_b, tensors, members, lora))
    return found


def blocks(members: Sequence[LinearMap], rank: int) -> list[tuple[LinearMap, slice, slice]]:
    """The maps of a packed matrix that are adapted, each with its rows there and its part of the rank."""
    return [
        (one, slice(first_row(one), first_row(one) + one.num_outputs), slice(number * rank, (number + 1) * rank))
        for number, one in enumerate(members)
    ]


def _plain(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    return tensors[name].float().contiguous()


def _packed_a(tensors: Mapping[str, Tensor], members: Sequence[LinearMap], lora: LoraConfig) -> Tensor:
    own = [tensors[adapter_parts(one, lora)[0].row.name].float() for one in members]
    return torch.cat(own, dim=1).flatten(0, 1)


def _packed_b(tensors: Mapping[str, Tensor], members: Sequence[LinearMap], lora: LoraConfig) -> Tensor:
    num_experts, num_rows, _ = members[0].row.shape
    b_EOr = torch.zeros(num_experts, num_rows, lora.rank * len(members))
    for one, rows, columns in blocks(members, lora.rank):
        b_EOr[:, rows, columns] = tensors[adapter_parts(one, lora)[1].row.name].float()
    return b_EOr.permute(1, 2, 0).flatten(1).contiguous()
