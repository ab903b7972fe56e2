"""Read a Hugging Face checkpoint straight into a model that is spread over ranks, whatever its layout.

Every rank reads from the safetensors files the slices that it keeps and nothing else: of an expert's matrix the rows
of its shard, of a pipeline's layers its own. Rank 0 looks into the headers of all shards beforehand, so what
`import_hf` refuses is refused here too, on all ranks and before a tensor is changed. The one exception is a repeated
embedding or head that is not the main one (GLM-4.5 repeats them): that is seen while reading.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.collective import rank, run_each
from glmforge.checkpoint.convert.hf_files import HfFiles, check_types, different_duplicate, open_hf
from glmforge.checkpoint.convert.hf_names import duplicates, mtp_prefixes
from glmforge.checkpoint.fit import TensorSpec, specs_of_all_ranks
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.wording import list_some
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Shape, parameter_table
from glmforge.errors import CheckpointError
from glmforge.parallel.placement import local_chunk

logger = logging.getLogger(__name__)


def load_hf_into(
    directory: Path, tensors: Mapping[str, Tensor], config: ModelConfig, *, keep_absent_mtp: bool = False
) -> ModelConfig:
    """Fill `tensors`, this rank's part of the model of `config`, from `directory`; the configuration of what was read.

    All ranks call this together. Names are those of the table of parameters, router biases among them; tensors are
    plain or DTensors, with its global shapes, and keep their types: stored values are converted. The ranks together
    must hold all of the model. MTP layers that the model does not have are not read. Those that it has and
    the files do not are refused, or with `keep_absent_mtp` left as they are, and the returned configuration then
    counts them not.

    Raises `CheckpointError` on all ranks if one of them cannot read, or the files do not fit `config.json` or the
    model; `ConfigError` for `config.json`.
    """
    specs = specs_of_all_ranks(tensors)
    files = run_each(lambda: _open(directory, specs, mtp_prefixes(config), keep_absent_mtp))
    run_each(lambda: _read(files, tensors))
    return files.config


def _open(
    directory: Path, specs: Mapping[str, TensorSpec], mtp_layers: Sequence[str], keep_absent_mtp: bool
) -> HfFiles:
    files = open_hf(directory, thorough=rank() == 0)
    if rank() == 0:
        for pieces in files.plan.values():
            check_types(files.shards, pieces)
    config = files.config if mtp_layers else files.config.model_copy(update={"num_nextn_predict_layers": 0})
    absent = tuple(sorted(set(mtp_layers) - set(mtp_prefixes(config))))
    wanted = {name: spec for name, spec in specs.items() if not (absent and name.startswith(absent))}
    _check_model(directory, parameter_table(config).shapes(), wanted)
    if absent and not keep_absent_mtp:
        raise CheckpointError(
            f"{directory}: holds no MTP layer {list_some(absent)}, which the model has; set "
            "model.num_nextn_predict_layers to 0, or keep the initial weights of these layers (keep_absent_mtp)"
        )
    if absent and rank() == 0:
        logger.warning("%s: holds no MTP layer %s: its weights stay as they are", directory, list_some(absent))
    return HfFiles(config, files.shards, files.plan)


def _check_model(directory: Path, promised: Mapping[str, Shape], wanted: Mapping[str, TensorSpec]) -> None:
    if lacking := [name for name in promised if name not in wanted]:
        raise CheckpointError(f"{directory}: this run has no place for {list_some(lacking)}; is it of another model?")
    if unknown := [name for name in wanted if name not in promised]:
        raise CheckpointError(f"{directory}: lacks {list_some(unknown)}, which this run has; is it of another model?")
    for name, shape in promised.items():
        if wanted[name].shape != shape:
            raise CheckpointError(
                f"{directory}: {name} is {list(shape)} there and {list(wanted[name].shape)} in this run; the "
                "configurations of the model differ"
            )


@torch.no_grad()
def _read(files: HfFiles, tensors: Mapping[str, Tensor]) -> None:
    copies_of = duplicates(files.config)
    for name in (name for name in files.plan if name in tensors):
        copies = [copy for copy, original in copies_of.items() if original == name and copy in files.shards.names()]
        _read_tensor(files, name, tensors[name], copies)


def _read_tensor(files: HfFiles, name: str, tensor: Tensor, copies: Iterable[str]) -> None:
    local, offsets = local_chunk(tensor)
    own = Box(offsets, tuple(local.shape))
    for piece in files.plan[name]:
        common = own.overlap(piece.box)
        if common is None:
            continue
        part = files.shards.read_part(piece.disk_name, piece.part(common))
        for copy in copies:
            if not torch.equal(files.shards.read_part(copy, piece.part(common)), part):
                raise different_duplicate(files.shards, copy, name)
        local[common.within(own)] = part.view(common.sizes)
