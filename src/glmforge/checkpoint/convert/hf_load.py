"""Read a Hugging Face checkpoint straight into a model that is spread over ranks, regardless of its layout.

Every rank reads from the safetensors files the slices that it keeps and nothing else: of an expert's matrix the rows
of its shard, of a pipeline's layers its own. It reads them in blocks of a few mebibytes straight into its tensors, in
their type and on their device; a few threads read the next blocks while one is converted. So beside its tensors a rank
needs memory for a few blocks, regardless of the size of the model.

Rank 0 looks into the headers of all shards beforehand, so what `import_hf` refuses is refused here too, on all ranks
and before a tensor is changed. The one exception is a repeated embedding or head that is not the main one (GLM-4.5
repeats them): that is seen while reading.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import Tensor

from glmforge.checkpoint.collective import rank, run_each
from glmforge.checkpoint.convert.hf_files import HfFiles, Shards, check_types, different_duplicate, open_hf
from glmforge.checkpoint.convert.hf_names import Piece, duplicates, mtp_prefixes
from glmforge.checkpoint.fit import TensorSpec, specs_of_all_ranks
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.safetensors_read import BLOCK_BYTES, cut
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.quantised import QuantisedWeight, with_weights
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import HEAD, Shape, parameter_table
from glmforge.errors import CheckpointError
from glmforge.observe.units import format_bytes
from glmforge.observe.work_progress import Show, work_progress
from glmforge.parallel.placement import local_chunk
from glmforge.runtime.waiting import map_in_threads

logger = logging.getLogger(__name__)

NUM_READERS = 4
"""Threads of a rank that read at the same time."""

_FIRST_LINE = 10**9  # bytes of this rank, before which no line of progress is written


def load_hf_into(
    directory: Path, tensors: Mapping[str, Tensor], config: ModelConfig, *, keep_absent_mtp: bool = False
) -> ModelConfig:
    """Fill `tensors`, this rank's part of the model of `config`, from `directory`; the configuration of what was read.

    All ranks call this together. Names are those of the table of parameters, router biases among them; tensors are
    plain or DTensors, with its global shapes, and keep their types: stored values are converted, those of quantised
    weights to codes and scales. The ranks together must hold all of the model. MTP layers and heads that the model does
    not have are not read. MTP layers that it has and the files do not are refused, or with `keep_absent_mtp` left as
    they are, and the returned configuration then counts them not.

    Raises `CheckpointError` on all ranks if one of them cannot read, or the files do not fit `config.json` or the
    model; `ConfigError` for `config.json`.
    """
    weights = with_weights(tensors)
    specs = specs_of_all_ranks(weights)
    files = run_each(lambda: _open(directory, specs, config, keep_absent_mtp))
    run_each(lambda: _read(directory, files, weights))
    return files.config


def _open(directory: Path, specs: Mapping[str, TensorSpec], model: ModelConfig, keep_absent_mtp: bool) -> HfFiles:
    mtp_layers = mtp_prefixes(model)
    files = open_hf(directory, thorough=rank() == 0)
    if rank() == 0:
        for pieces in files.plan.values():
            check_types(files.shards, pieces)
    config = files.config if mtp_layers else files.config.model_copy(update={"num_nextn_predict_layers": 0})
    absent = tuple(sorted(set(mtp_layers) - set(mtp_prefixes(config))))
    wanted = {name: spec for name, spec in specs.items() if not (absent and name.startswith(absent))}
    not_read = {f"{head}.weight" for head in config.heads if head not in model.heads}
    if not model.lm_head:
        not_read.add(HEAD)
    promised = {name: shape for name, shape in parameter_table(config).shapes().items() if name not in not_read}
    _check_model(directory, promised, wanted)
    if absent and not keep_absent_mtp:
        raise CheckpointError(
            f"{directory}: lacks MTP layer {list_some(absent)}; set model.num_nextn_predict_layers to 0, or keep "
            "these layers' initial weights (keep_absent_mtp)"
        )
    if absent and rank() == 0:
        logger.warning("%s: lacks MTP layer %s; its initial weights are kept", directory, list_some(absent))
    return HfFiles(config, files.shards, files.plan)


def _check_model(directory: Path, promised: Mapping[str, Shape], wanted: Mapping[str, TensorSpec]) -> None:
    if lacking := [name for name in promised if name not in wanted]:
        raise CheckpointError(f"{directory}: has {list_some(lacking)}, which this run lacks; is it another model?")
    if unknown := [name for name in wanted if name not in promised]:
        raise CheckpointError(f"{directory}: lacks {list_some(unknown)}, which this run has; is it another model?")
    for name, shape in promised.items():
        if wanted[name].shape != shape:
            raise CheckpointError(
                f"{directory}: {name} is {list(shape)} there and {list(wanted[name].shape)} in this run; the model "
                "configurations differ"
            )


@dataclass(frozen=True)
class _Block:
    """What is read at once: `box` of a tensor of the model, from the tensor on disk of `piece`.

    Attributes:
        weight: the tensor of the model; this rank has `own` of it.
        copies: tensors on disk that must be equal to that of `piece`.
    """

    name: str
    weight: Tensor | QuantisedWeight
    own: Box
    piece: Piece
    box: Box
    copies: Sequence[str]


def _read(directory: Path, files: HfFiles, tensors: Mapping[str, Tensor | QuantisedWeight]) -> None:
    blocks = list(_blocks(files, tensors))
    total = sum(_num_bytes(files.shards, block) for block in blocks)
    done, started = 0, time.monotonic()
    buffers: SimpleQueue[Tensor] = SimpleQueue()  # memory allocated anew for each block is not given back at once
    for _ in range(NUM_READERS):
        buffers.put(torch.empty(BLOCK_BYTES, dtype=torch.uint8))
    with closing(files.shards) as shards, _progress(directory) as show:
        read = map_in_threads(lambda block: _read_block(shards, block, buffers), blocks, NUM_READERS)
        for block, _ in zip(blocks, read, strict=True):
            done += _num_bytes(shards, block)
            speed = done / max(time.monotonic() - started, 1e-9)
            show(done, f"{format_bytes(done)} of {format_bytes(total)} for this rank, {format_bytes(speed)}/s")


def _progress(directory: Path) -> AbstractContextManager[Show]:
    """Shown by rank 0, whose part is as large as that of others, more or less."""
    return work_progress(f"reading {directory}", _FIRST_LINE) if rank() == 0 else nullcontext(lambda done, text: None)


def _blocks(files: HfFiles, tensors: Mapping[str, Tensor | QuantisedWeight]) -> Iterator[_Block]:
    copies_of = duplicates(files.config)
    for name in (name for name in files.plan if name in tensors):
        copies = [copy for copy, original in copies_of.items() if original == name and copy in files.shards.names()]
        weight = tensors[name]
        own = _own_part(weight)
        for piece in files.plan[name]:
            common = own.overlap(piece.box)
            if common is not None:
                for box in cut(common, piece.box, files.shards.dtype(piece.disk_name).itemsize):
                    yield _Block(name, weight, own, piece, box, copies)


def _own_part(weight: Tensor | QuantisedWeight) -> Box:
    if isinstance(weight, QuantisedWeight):
        return Box(*weight.part())
    local, offsets = local_chunk(weight)
    return Box(offsets, tuple(local.shape))


def _num_bytes(shards: Shards, block: _Block) -> int:
    return block.box.num_elements * shards.dtype(block.piece.disk_name).itemsize


@torch.no_grad()
def _read_block(shards: Shards, block: _Block, buffers: "SimpleQueue[Tensor]") -> None:
    stored, buffer = block.piece.part(block.box), buffers.get()
    try:
        part = shards.read_part(block.piece.disk_name, stored, buffer)
        for copy in block.copies:
            if not torch.equal(shards.read_part(copy, stored), part):
                raise different_duplicate(shards, copy, block.name)
        index, weight = block.box.within(block.own), block.weight
        # On a GPU it is converted there: fewer bytes go over, and its own type is the narrower one.
        if isinstance(weight, QuantisedWeight):
            weight.write(index, part.to(weight.codes.device).reshape(block.box.sizes))
        else:
            local, _ = local_chunk(weight)
            local[index] = part.to(local.device).reshape(block.box.sizes)
    finally:
        buffers.put(buffer)
