"""One rank's part of a checkpoint of adapters: its slices, and what its copy has once.

Nothing here communicates: all that other ranks have to do with it was agreed on beforehand (`layout`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.layout import WritePlan
from glmforge.checkpoint.adapter.peft_config import peft_config
from glmforge.checkpoint.convert.hf_directory import copy_tokenizer, write_shard
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.manifest import FileRecord, check_written, record_file
from glmforge.checkpoint.format.meta import META_FILE, CheckpointMeta, write_meta
from glmforge.checkpoint.format.safetensors_header import STATE_TYPES
from glmforge.checkpoint.format.sharded_adapter import (
    CONFIG_FILE,
    DESCRIPTION_FILE,
    BaseWeights,
    Mode,
    Shard,
    ShardedAdapter,
    Slice,
    TensorInfo,
    file_of,
    stored_name,
)
from glmforge.checkpoint.node_local.parts_of_ranks import Part, part_name, write_part
from glmforge.checkpoint.node_local.pending import begin, withdraw
from glmforge.checkpoint.source_files import write_files
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.parallel.placement import local_chunk
from glmforge.runtime.durable import write_durably
from glmforge.runtime.lease import LeaseLostError
from glmforge.runtime.os_errors import describe_os_error

_TYPE_NAMES = {dtype: name for name, dtype in STATE_TYPES.items()}


@dataclass(frozen=True)
class AdapterInfo:
    """What a checkpoint of adapters says beside its tensors; none of it changes during a run."""

    model: ModelConfig
    lora: LoraConfig
    mode: Mode
    base: BaseWeights
    tokenizer_dir: Path | None = None


def write_rank(
    directory: Path,
    plan: WritePlan,
    tensors: Mapping[str, Tensor],
    meta: CheckpointMeta,
    info: AdapterInfo,
    *,
    save: str,
    files: Mapping[str, bytes] = {},
    verify: bool = False,
) -> Part:
    """Write this rank's files of the save `save` into `directory`, which exists; what its part has to say.

    `tensors` are those that were agreed on, `files` this rank's further files. Raises `CheckpointError`, `OSError`;
    then some of the files may be there.
    """
    records = _write_rest(directory, plan, meta, info) if plan.is_first else {}
    records |= _write_slices(directory, plan, tensors) | write_files(directory, files)
    if verify:
        check_written(directory, records, part_name(plan.rank))
    return Part(
        step=meta.step,
        rank=plan.rank,
        world_size=plan.world_size,
        ephemeral=meta.ephemeral,
        save=save,
        sufficient=[list(ranks) for ranks in plan.copies],
        files=records,
    )


def save_rank(
    directory: Path,
    plan: WritePlan,
    tensors: Mapping[str, Tensor],
    meta: CheckpointMeta,
    info: AdapterInfo,
    *,
    save: str,
    files: Mapping[str, bytes] = {},
    verify: bool = False,
) -> None:
    """Write this rank's files into `directory`, which other ranks may be writing to as well, and last its part.

    Raises `CheckpointError`; nothing of this rank is then left there but a word for those that wait for it.
    """
    try:
        begin(directory, plan.rank)
        part = write_rank(directory, plan, tensors, meta, info, save=save, files=files, verify=verify)
        write_part(directory, part)
    except (CheckpointError, LeaseLostError, OSError) as error:
        message = describe_os_error(error, f"writing {directory}") if isinstance(error, OSError) else str(error)
        withdraw(directory, plan.rank, message)
        raise CheckpointError(f"step {meta.step} was not saved by rank {plan.rank}: {message}") from error


def describe(plan: WritePlan, step: int, info: AdapterInfo) -> ShardedAdapter:
    """The contents of `metadata.json`: the same whichever rank of a copy asks."""
    return ShardedAdapter(
        mode=info.mode,
        step=step,
        num_shards=len(plan.slices),
        model=info.model,
        lora=info.lora,
        base=info.base,
        tensors={
            name: TensorInfo(dtype=_TYPE_NAMES[plan.specs[name].dtype], shape=list(plan.specs[name].shape))
            for name in sorted({name for slices in plan.slices.values() for name in slices})
        },
        shards=[
            Shard(rank=r, slices={name: _slice(box) for name, box in sorted(slices.items())})
            for r, slices in sorted(plan.slices.items())
        ],
    )


def _slice(box: Box) -> Slice:
    return Slice(offsets=list(box.offsets), sizes=list(box.sizes))


def _write_slices(directory: Path, plan: WritePlan, tensors: Mapping[str, Tensor]) -> dict[str, FileRecord]:
    files: dict[str, dict[str, Tensor]] = {}
    for name, box in plan.own.items():
        local, offsets = local_chunk(tensors[name])
        assert (offsets, tuple(local.shape)) == (box.offsets, box.sizes), f"{name} has an unexpected layout"
        # A copy, for safetensors refuses tensors that share memory: tied ones, states that are views of one buffer.
        part = local.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        files.setdefault(file_of(name, plan.rank), {})[stored_name(name)] = part
    for file, held in files.items():
        write_shard(directory / file, held)
    return {file: record_file(directory / file) for file in files}


def _write_rest(directory: Path, plan: WritePlan, meta: CheckpointMeta, info: AdapterInfo) -> dict[str, FileRecord]:
    config = peft_config(info.model, info.lora, info.base.source)
    write_durably(directory / DESCRIPTION_FILE, describe(plan, meta.step, info).model_dump_json())
    write_meta(directory, meta)
    write_durably(directory / CONFIG_FILE, json.dumps(config, indent=2))
    names = [DESCRIPTION_FILE, META_FILE, CONFIG_FILE]
    if info.tokenizer_dir is not None:
        names += copy_tokenizer(info.tokenizer_dir, directory)
    return {name: record_file(directory / name) for name in names}
