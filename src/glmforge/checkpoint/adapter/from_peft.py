"""Adapters that PEFT has written, for a run to begin with or as a checkpoint; see `to_peft` for how they differ.

What PEFT has and this program does not (biases, other kinds of adapters, ranks that differ between modules) is refused
by name. The files come from outside: their headers are checked before a tensor is read, and tensors are read one by
one.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights
from glmforge.checkpoint.adapter.layout import agree
from glmforge.checkpoint.adapter.peft_config import (
    PAIR,
    WEIGHTS_FILE,
    packed_maps,
    packed_name,
    peft_name,
    saved_whole,
    shortest,
)
from glmforge.checkpoint.adapter.peft_settings import PeftSettings, check_patterns, read_settings
from glmforge.checkpoint.adapter.to_peft import blocks
from glmforge.checkpoint.adapter.write import AdapterInfo, write_rank
from glmforge.checkpoint.convert import hf_model_config
from glmforge.checkpoint.format.manifest import write_manifest
from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.format.safetensors_header import read_header
from glmforge.checkpoint.format.safetensors_read import TensorFile
from glmforge.checkpoint.format.sharded_adapter import (
    PARAMETER_PREFIX,
    PEFT_PREFIX,
    is_sharded_adapter,
)
from glmforge.checkpoint.format.store import checkpoint_path, new_directory
from glmforge.config.adapters import (
    PACKED,
    LinearMap,
    WrongTargetError,
    adapted_maps,
    adapter_parts,
    linear_maps,
    table_with,
)
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Shape
from glmforge.errors import CheckpointError
from glmforge.files import shown

_PICKLED_FILE = "adapter_model.bin"


class PeftTensors(Mapping[str, Tensor]):
    """The tensors of `adapter_model.safetensors` by PEFT's names, each read when it is requested.

    Raises `CheckpointError` if the file is missing, damaged, or not of PEFT's.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / WEIGHTS_FILE
        if not self.path.exists() and (directory / _PICKLED_FILE).exists():
            raise CheckpointError(
                f"{directory}: has only {_PICKLED_FILE}, and loading a pickle can run code; save the adapter as "
                "safetensors"
            )
        self._stored = read_header(self.path)
        for name in self._stored:
            if not name.startswith(PEFT_PREFIX):
                raise CheckpointError(
                    f"{self.path}: {shown(name)} is not a PEFT tensor name; is the adapter for a causal LM?"
                )
        self._file = TensorFile(self.path)

    def __getitem__(self, name: str) -> Tensor:
        stored = self._stored[name]
        tensor = self._file.read(stored, [slice(0, size) for size in stored.shape])
        if not tensor.isfinite().all():
            raise CheckpointError(f"{self.path}: {shown(name)} contains non-finite values")
        return tensor

    def shape(self, name: str) -> Shape:
        """Shape of a tensor, without reading it."""
        return self._stored[name].shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def read_peft(directory: Path, model: ModelConfig, lora: LoraConfig) -> Iterator[tuple[str, Tensor]]:
    """By our names, one after the other, the tensors of the adapter in `directory`, which must be one of `lora`.

    Raises `CheckpointError`, for settings at once, for names and contents while they are read.
    """
    _check_settings(directory, model, lora)
    return from_peft(PeftTensors(directory), model, lora)


def check_peft(directory: Path, model: ModelConfig, lora: LoraConfig) -> None:
    """Raise `CheckpointError` if `read_peft` would, by settings, names or shapes; no tensor is read."""
    _check_settings(directory, model, lora)
    tensors = PeftTensors(directory)
    without_data = {name: torch.empty(tensors.shape(name), device="meta") for name in tensors}
    for _ in from_peft(without_data, model, lora):
        pass


def _check_settings(directory: Path, model: ModelConfig, lora: LoraConfig) -> None:
    settings = read_settings(directory)
    for field, given, own in (("use_rslora", settings.rslora, lora.rslora), ("use_dora", settings.dora, lora.dora)):
        if given != own:
            setting = field.removeprefix("use_")
            raise CheckpointError(f"{directory}: has {field}: {given}; set lora.{setting} to {str(given).lower()}")
    if (settings.rank, settings.alpha) != (lora.rank, lora.scaled_alpha):
        raise CheckpointError(
            f"{directory}: has rank {settings.rank} and alpha {settings.alpha:g}, the run {lora.rank} and "
            f"{lora.scaled_alpha:g}; set lora.rank and lora.alpha to the adapter's"
        )
    check_patterns(directory, settings, model, lora)


def from_peft(
    adapter: Mapping[str, Tensor], model: ModelConfig, lora: LoraConfig, *, strict: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """By our names, the adapters of `lora` from PEFT's. With `strict`, raises `CheckpointError` for tensors that are
    missing, left over, of another rank, or that `lora` has no place for."""
    maps, table = adapted_maps(model, lora), table_with(model, lora)
    rows = [part.row.name for one in maps if one.kind != "experts" for part in adapter_parts(one, lora)]
    plain = {name: peft_name(name) for name in [*rows, *saved_whole(model, lora)]}
    packed = [
        (members, [packed_name(owner, matrix, part, nested=len(groups) > 1) for part in PAIR])
        for owner, groups in packed_maps(maps).items()
        for matrix, members in groups.items()
    ]
    _check_names(adapter, [*plain.values(), *(name for _, pair in packed for name in pair)], strict=strict)
    for name, theirs in plain.items():
        yield name, _checked(name, adapter[theirs], table[name].shape, strict=strict)
    for members, (a, b) in packed:
        yield from _split(adapter[a], adapter[b], members, lora, strict=strict)


@torch.no_grad()
def import_peft(directory: Path, root: Path, *, base: Path) -> Path:
    """Write `<root>/step-00000000` of the adapter that PEFT has written to `directory`, and return it.

    `base` is the Hugging Face directory that it belongs to. Raises `CheckpointError`.
    """
    if is_sharded_adapter(directory):
        raise CheckpointError(f"{directory}: is already an adapter checkpoint")
    if not (base / "config.json").is_file():
        raise CheckpointError(f"{base}: is not a Hugging Face directory; pass the adapter's base model")
    model = hf_model_config(base)
    lora = lora_of(directory, model)
    tensors = {PARAMETER_PREFIX + name: tensor.float() for name, tensor in read_peft(directory, model, lora)}
    info = AdapterInfo(model, lora, "lite", base_weights(base), directory)
    meta = CheckpointMeta(
        step=0,
        phase="",
        tokens_consumed=0,
        samples_consumed={},
        config={"name": directory.name},
        data_fingerprint={},
        tokenizer_fingerprint="",
    )
    plan = agree(tensors, ("here",))
    with new_directory(checkpoint_path(root, 0)) as written:
        part = write_rank(written, plan, tensors, meta, info, save=plan.session, verify=True)
        write_manifest(written, part.files)
    return checkpoint_path(root, 0)


def lora_of(directory: Path, model: ModelConfig) -> LoraConfig:
    """The section `lora` that the adapter in `directory` would have been trained with. Raises `CheckpointError`."""
    settings, tensors = read_settings(directory), PeftTensors(directory)
    known = [one for one in linear_maps(model) if one.kind != "experts" and _is_adapted(one, tensors)]
    names = [one.name for one in known]
    for groups in packed_maps(linear_maps(model)).values():
        names += [one.name for one in _adapted_experts(groups, tensors, settings)]
    parameters = table_with(model, None)
    whole = [name for name in parameters if peft_name(name) in tensors]
    if not names:
        raise CheckpointError(
            f"{tensors.path}: has no adapter for any layer of the base model; was it trained on another model?"
        )
    lora = LoraConfig(
        rank=settings.rank,
        alpha=settings.alpha,
        rslora=settings.rslora,
        dora=settings.dora,
        targets=tuple(shortest(names, [one.name for one in linear_maps(model)])),
        modules_to_save=tuple(whole),
    )
    try:
        check_patterns(directory, settings, model, lora)
    except WrongTargetError as error:
        raise CheckpointError(f"{tensors.path}: {error}") from error
    return lora


def _is_adapted(one: LinearMap, tensors: Mapping[str, Tensor]) -> bool:
    return any(peft_name(part.row.name) in tensors for part in adapter_parts(one, LoraConfig(rank=1)))


def _adapted_experts(
    groups: Mapping[str, Sequence[LinearMap]], tensors: PeftTensors, settings: PeftSettings
) -> list[LinearMap]:
    """The maps of one layer's experts that the adapter has; gate and up apart where it has twice the rank for them."""
    owner = next(iter(groups.values()))[0].owner
    nested = packed_name(owner, PACKED, "lora_A", nested=True) in tensors
    found: list[LinearMap] = []
    for matrix, members in groups.items():
        num_experts, num_rows, num_columns = members[0].row.shape
        a, b = (packed_name(owner, matrix, part, nested=nested) for part in PAIR)
        if a not in tensors or b not in tensors:
            continue
        a_shape, b_shape = tensors.shape(a), tensors.shape(b)
        if len(a_shape) == len(b_shape) == 2 and (b_shape[0], a_shape[1]) == (num_rows, num_columns):
            is_apart = a_shape[0] == 2 * num_experts * settings.rank
            found += [one for one in members if len(members) == 1 or (one.key == PACKED) != is_apart]
    return found


def _check_names(adapter: Mapping[str, Tensor], wanted: Sequence[str], *, strict: bool) -> None:
    if missing := [name for name in wanted if name not in adapter]:
        raise CheckpointError(f"{missing[0]}: is not in the adapter; set lora.targets to the adapter's targets")
    # What modules_to_save hold besides is the wrapped weight itself.
    left = sorted(name for name in set(adapter) - set(wanted) if ".base_layer." not in name or ".lora_" in name)
    if strict and left:
        raise CheckpointError(f"{shown(left[0])}: not adapted by this run; add it to lora.targets or modules_to_save")


def _checked(name: str, tensor: Tensor, shape: Shape, *, strict: bool) -> Tensor:
    if strict and tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"{name}: has shape {list(tensor.shape)} in the adapter, the run needs {list(shape)}; set lora.rank to "
            "the adapter's, and use its base model"
        )
    return tensor


def _split(
    a: Tensor, b: Tensor, members: Sequence[LinearMap], lora: LoraConfig, *, strict: bool
) -> Iterator[tuple[str, Tensor]]:
    """The adapters of a packed matrix's maps from PEFT's A [E r, J] and B [O, r E]."""
    num_experts, num_rows, num_columns = members[0].row.shape
    rank = num_experts * lora.rank * len(members)
    if (tuple(a.shape), tuple(b.shape)) != ((rank, num_columns), (num_rows, rank)):
        raise CheckpointError(
            f"{members[0].owner}: the adapter has A {list(a.shape)} and B {list(b.shape)}, the run's would be "
            f"{[rank, num_columns]} and {[num_rows, rank]}; set lora.rank, or name experts.{PACKED} in lora.targets"
        )
    a_ErJ = a.view(num_experts, -1, num_columns)
    b_EOr = b.view(num_rows, -1, num_experts).permute(2, 0, 1)
    rest = b_EOr.clone()
    for one, rows, columns in blocks(members, lora.rank):
        (_, row_a), (_, row_b) = adapter_parts(one, lora)
        yield row_a.name, a_ErJ[:, columns]
        yield row_b.name, b_EOr[:, rows, columns]
        rest[:, rows, columns] = 0
    if strict and not rest.is_meta and rest.any():
        raise CheckpointError(
            f"{members[0].owner}: the adapter mixes gate and up projection; name experts.{PACKED} in lora.targets"
        )
