"""What the adapters of a new run begin as: nothing, or those of another run or of PEFT's files.

By the table's initial values an adapter adds nothing at first. DoRA's magnitudes are the exception: they are the
lengths of the rows of the weights that were loaded.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from glmforge.adapt.lora import MAGNITUDE
from glmforge.backend.base import Backend
from glmforge.checkpoint.adapter.base import check_base
from glmforge.checkpoint.adapter.find import find_adapter
from glmforge.checkpoint.adapter.from_peft import check_peft, read_peft
from glmforge.checkpoint.adapter.peft_settings import is_peft
from glmforge.checkpoint.collective import run_each, run_on_rank_zero
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, BaseWeights, read_slice_metadata
from glmforge.checkpoint.load import load_checkpoint
from glmforge.config.adapters import table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import ParameterTable, Shape
from glmforge.errors import CheckpointError
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World

_MUST_AGREE = ("rank", "scaled_alpha", "rslora", "dora")


def begin_adapters(backend: Backend, model: ModelConfig, lora: LoraConfig, base: BaseWeights | None) -> None:
    """Set the adapters of the `backend`'s `model`, whose other weights are loaded and come from `base`. All ranks call
    this together.

    Raises `CheckpointError` on all ranks if `lora.init_from` holds no adapters, or others than those of `lora`.
    """
    weights = backend.weights()
    begin_magnitudes(weights, backend.table, backend.world)
    source = lora.init_from
    if source is None:
        return
    path = run_on_rank_zero(lambda: find_initial_adapters(model, lora, base))
    trained = _trained(model, lora)
    tensors = {name: tensor for name, tensor in weights.items() if name in trained}
    if run_on_rank_zero(lambda: is_peft(source)):
        run_each(lambda: _read_peft_into(source, tensors, model, lora))
    else:
        stored = {PARAMETER_PREFIX + name: tensor for name, tensor in tensors.items()}
        load_checkpoint(path, stored, prefix=PARAMETER_PREFIX)


def find_initial_adapters(model: ModelConfig, lora: LoraConfig, base: BaseWeights | None) -> Path:
    """The directory that `lora.init_from` means, by what it says of itself and by the headers of its files: adapters of
    these settings, with these names and shapes and, if `base` is known, of that base. Reads no tensors.

    Raises `CheckpointError` for what is missing, damaged or other adapters.
    """
    source = lora.init_from
    assert source is not None
    try:
        if is_peft(source):
            check_peft(source, model, lora)
            return source
        return _find(source, model, lora, base)
    except CheckpointError as error:
        raise CheckpointError(f"lora.init_from: {error}") from None


def _trained(model: ModelConfig, lora: LoraConfig) -> dict[str, Shape]:
    rows = table_with(model, lora).trained().values()
    return {row.name: row.shape for row in rows if row.lr_scale}


@torch.no_grad()
def begin_magnitudes(tensors: Mapping[str, Tensor], table: ParameterTable, world: World) -> None:
    """Set the magnitudes of DoRA to the lengths of the rows of the weights as they are, so that nothing changes at
    first. `tensors` are all of this rank, published name -> live tensor; call it once the weights are loaded. Nothing
    happens without magnitudes. Collective."""
    parts: dict[str, Tensor] = {}
    for name in tensors:
        if MAGNITUDE in name:
            weight, _ = local_chunk(tensors[name.replace(f".{MAGNITUDE}.", ".")])
            parts[name] = torch.linalg.vector_norm(weight, dim=-1, dtype=torch.float32).square()
    # Rows are cut alike, of weights and of magnitudes; where tp cuts inputs instead, ranks have parts of the sums.
    cut = [name for name in parts if table[name].tp_dim is None]
    if cut:
        flat = torch.cat([parts[name] for name in cut])
        world.sum(flat, "tp")
        parts |= zip(cut, flat.split([len(parts[name]) for name in cut]), strict=True)
    for name, squares in parts.items():
        local_chunk(tensors[name])[0].copy_(squares.sqrt())


@torch.no_grad()
def _read_peft_into(directory: Path, tensors: dict[str, Tensor], model: ModelConfig, lora: LoraConfig) -> None:
    """Each rank reads the file and keeps its parts."""
    for name, tensor in read_peft(directory, model, lora):
        if name in tensors:
            here, offsets = local_chunk(tensors[name])
            here.copy_(tensor[tuple(slice(o, o + n) for o, n in zip(offsets, here.shape, strict=True))])


def _find(source: Path, model: ModelConfig, lora: LoraConfig, base: BaseWeights | None) -> Path:
    """The checkpoint of adapters that `source` means, which must be of `base`, of these settings and parameters."""
    path, description = find_adapter(source)
    for field in _MUST_AGREE:
        there, here = getattr(description.lora, field), getattr(lora, field)
        if there != here:
            name = field.removeprefix("scaled_")
            raise CheckpointError(f"{path} has {name} {there}, the run {here}; set lora.{name} to {there}")
    stored = {
        name.removeprefix(PARAMETER_PREFIX): tuple(info.shape)
        for name, info in description.tensors.items()
        if name.startswith(PARAMETER_PREFIX)
    }
    trained = _trained(model, lora)
    if stored.keys() != trained.keys():
        targets, whole = (", ".join(names) for names in (description.lora.targets, description.lora.modules_to_save))
        raise CheckpointError(
            f"{path} trains other parameters: set lora.targets to [{targets}] and modules_to_save to [{whole}]"
        )
    if differing := [name for name in trained if stored[name] != trained[name]]:
        name = differing[0]
        raise CheckpointError(
            f"{path} has {name} of {list(stored[name])}, but the run's model needs {list(trained[name])}: it was "
            "trained on another model; use adapters of this one"
        )
    read_slice_metadata(path)
    if base is not None:
        check_base(path, description.base, base)
    return path
