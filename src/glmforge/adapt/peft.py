"""Adapters in the format of PEFT: `adapter_config.json` and `adapter_model.safetensors`, there and back.

Names and shapes are PEFT's own but for packed experts. PEFT adapts those as parameters (`target_parameters`): all
experts' factors lie in one matrix each, A [E r, J] by expert and B [O, r E] by rank, and where both packed matrices of
a layer are adapted, gate_up_proj's lie one `base_layer` deeper. It knows gate and up projection as one map only, so
adapters of each become one of twice the rank (`rank_pattern`), A one below the other and B in blocks.

In a model of this kind PEFT (0.21) takes a target module that is called gate_proj, up_proj or down_proj for the
experts'. So those of dense layers and shared experts are named as parameters too, `shared_experts.up_proj.weight`. PEFT
has no DoRA of parameters, so an adapter that has DoRA of these cannot be written for it.

Shapes: E experts, r rank, J inputs and O outputs of a map.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from glmforge.adapt.lora import MAGNITUDE
from glmforge.config.adapters import PACKED, LinearMap, adapted_maps, adapter_parts, is_adapter, linear_maps, table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.files import kind_of
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.placement import local_chunk

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


class PeftAdapter(NamedTuple):
    """The content of both files."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def to_peft(tensors: Mapping[str, Tensor], model: ModelConfig, lora: LoraConfig, base: str) -> PeftAdapter:
    """Adapters and what was trained whole beside them, from `tensors` by our names; `base` names the base model.

    Raises `CheckpointError` for what PEFT cannot read.
    """
    maps = adapted_maps(model, lora)
    if lora.dora and (named := [one.name for one in maps if _is_parameter(one)]):
        raise CheckpointError(
            f"{named[0]}: PEFT has no DoRA of this map of a model with experts; merge the adapters instead "
            "('glmforge export')"
        )
    found: dict[str, Tensor] = {}
    for one in maps:
        if one.kind != "experts":
            found |= {
                _PREFIX + _peft_name(row.name): tensors[row.name].contiguous() for _, row in adapter_parts(one, lora)
            }
    for owner, groups in _packed(maps).items():
        for name, members in groups.items():
            a, b = _fused(tensors, members, lora)
            place = _PREFIX + owner + (".base_layer" if name == PACKED and len(groups) > 1 else "")
            found[f"{place}.lora_A.weight"] = a.flatten(0, 1).contiguous()
            found[f"{place}.lora_B.weight"] = b.permute(1, 2, 0).flatten(1).contiguous()
    saved = _saved(model, lora)
    found |= {_PREFIX + name: tensors[name].contiguous() for name in saved}
    return PeftAdapter(_config(model, lora, maps, saved, base), found)


def from_peft(
    adapter: Mapping[str, Tensor], model: ModelConfig, lora: LoraConfig, *, strict: bool = True
) -> dict[str, Tensor]:
    """By our names, the adapters of `lora` from PEFT's. With `strict`, raises `CheckpointError` for tensors that are
    missing, left over, of another rank, or that `lora` has no place for."""
    maps, left = adapted_maps(model, lora), dict(adapter)
    found: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        if name not in left:
            raise CheckpointError(f"{name}: is not in the adapter; set lora.targets to those that it has")
        return left.pop(name)

    for one in maps:
        if one.kind != "experts":
            found |= {row.name: take(_PREFIX + _peft_name(row.name)) for _, row in adapter_parts(one, lora)}
    for owner, groups in _packed(maps).items():
        for name, members in groups.items():
            place = _PREFIX + owner + (".base_layer" if name == PACKED and len(groups) > 1 else "")
            factors = take(f"{place}.lora_A.weight"), take(f"{place}.lora_B.weight")
            found |= _split(*factors, members, model, lora, strict=strict)
    found |= {name: take(_PREFIX + name) for name in _saved(model, lora)}
    if strict:
        _check(found, left, model, lora)
    return found


def save_peft(adapter: PeftAdapter, directory: Path) -> None:
    """Write both files into a new directory, or one that is empty. Raises `CheckpointError` for another."""
    if kind_of(directory, error=CheckpointError) is not None and any(directory.iterdir()):
        raise CheckpointError(f"{directory}: is not empty; choose another directory for the adapter")
    directory.mkdir(parents=True, exist_ok=True)
    save_file(adapter.tensors, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / CONFIG).write_text(json.dumps(adapter.config, indent=2) + "\n")


def load_peft(directory: Path) -> PeftAdapter:
    """Read both files. Raises `CheckpointError` if they are not there."""
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).is_file():
            raise CheckpointError(f"{directory}: has no {name}; give the directory of a PEFT adapter")
    with safe_open(directory / WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return PeftAdapter(json.loads((directory / CONFIG).read_text()), tensors)


@torch.no_grad()
def begin_from(directory: Path, model: ParallelModel, lora: LoraConfig) -> None:
    """Give the adapters of a run the values of a PEFT adapter; each rank reads the file and keeps its parts.

    Raises `CheckpointError` for an adapter that is not of `lora`.
    """
    adapter = load_peft(directory)
    for field, own in (("use_rslora", lora.rslora), ("use_dora", lora.dora)):
        if bool(adapter.config.get(field)) != own:
            setting = field.removeprefix("use_")
            raise CheckpointError(f"{directory}: has {field}: {not own}; set lora.{setting} to {str(not own).lower()}")
    rank, alpha = adapter.config["r"], adapter.config["lora_alpha"]
    if (rank, alpha) != (lora.rank, lora.scaled_alpha):
        raise CheckpointError(
            f"{directory}: has rank {rank} and alpha {alpha:g}, the run {lora.rank} and {lora.scaled_alpha:g}; set "
            "lora.rank and lora.alpha to the adapter's"
        )
    found = from_peft(adapter.tensors, model.config, lora)
    for name, tensor in model.state_dict().items():
        if name in found:
            here, offsets = local_chunk(tensor)
            here.copy_(found[name][tuple(slice(o, o + n) for o, n in zip(offsets, here.shape, strict=True))])


def _peft_name(name: str) -> str:
    """In PEFT's files these have no `.weight`."""
    bare = any(f".{part}." in name for part in (MAGNITUDE, "lora_embedding_A", "lora_embedding_B"))
    return name.removesuffix(".weight") if bare else name


def _packed(maps: Iterable[LinearMap]) -> dict[str, dict[str, list[LinearMap]]]:
    """Of each layer's experts, by packed matrix, the maps that are adapted of it."""
    found: dict[str, dict[str, list[LinearMap]]] = {}
    for one in maps:
        if one.kind == "experts":
            name = one.row.name.rpartition(".")[2]
            found.setdefault(one.owner, {}).setdefault(name, []).append(one)
    return found


def _blocks(members: list[LinearMap]) -> Iterator[tuple[LinearMap, int]]:
    """Each map of a packed matrix, and its first row there."""
    for one in members:
        parts = [part.removesuffix(".weight") for part in one.row.expert_parts]
        yield one, parts.index(one.key) * one.num_outputs if one.key in parts else 0


def _fused(tensors: Mapping[str, Tensor], members: list[LinearMap], lora: LoraConfig) -> tuple[Tensor, Tensor]:
    """A [E, r, J] and B [E, O, r] of the packed matrix, r being that of all members together."""
    row, rank = members[0].row, lora.rank
    num_experts, num_rows, _ = row.shape
    a_of, b_of = ([tensors[adapter_parts(one, lora)[part].row.name] for one in members] for part in (0, 1))
    b = b_of[0].new_zeros(num_experts, num_rows, rank * len(members))
    for number, ((one, first), own) in enumerate(zip(_blocks(members), b_of, strict=True)):
        b[:, first : first + one.num_outputs, number * rank : (number + 1) * rank] = own
    return torch.cat(a_of, dim=1), b


def _split(
    a: Tensor, b: Tensor, members: list[LinearMap], model: ModelConfig, lora: LoraConfig, *, strict: bool
) -> dict[str, Tensor]:
    """The inverse of `_fused`, from PEFT's matrices."""
    num_experts, rank = model.n_routed_experts, lora.rank
    if len(a) != num_experts * rank * len(members):
        raise CheckpointError(
            f"{members[0].owner}: the adapter has rank {len(a) // num_experts}, the run's would have "
            f"{rank * len(members)}; set lora.rank, or name experts.{PACKED} in lora.targets"
        )
    a_ErJ = a.unflatten(0, (num_experts, -1))
    b_EOr = b.unflatten(1, (-1, num_experts)).permute(2, 0, 1)
    found: dict[str, Tensor] = {}
    rest = b_EOr.clone()
    for number, (one, first) in enumerate(_blocks(members)):
        (_, row_a), (_, row_b) = adapter_parts(one, lora)
        columns, rows = slice(number * rank, (number + 1) * rank), slice(first, first + one.num_outputs)
        found |= {row_a.name: a_ErJ[:, columns], row_b.name: b_EOr[:, rows, columns]}
        rest[:, rows, columns] = 0
    if strict and rest.any():
        raise CheckpointError(
            f"{members[0].owner}: the adapter mixes gate and up projection; name experts.{PACKED} in lora.targets"
        )
    return found


def _check(found: Mapping[str, Tensor], left: Mapping[str, Tensor], model: ModelConfig, lora: LoraConfig) -> None:
    table = table_with(model, lora)
    for name, tensor in found.items():
        if tuple(tensor.shape) != table[name].shape:
            raise CheckpointError(
                f"{name}: has shape {list(tensor.shape)} in the adapter, the run needs {list(table[name].shape)}; set "
                "lora.rank to the adapter's"
            )
    if others := sorted(name for name in left if ".base_layer." not in name or ".lora_" in name):
        raise CheckpointError(f"{others[0]}: the run has no such adapter; add it to lora.targets or modules_to_save")


def _is_parameter(one: LinearMap) -> bool:
    """Whether PEFT has to be told the name of the parameter, not of its module."""
    return one.kind in ("experts", "router") or one.name.endswith(("gate_proj", "up_proj", "down_proj"))


def _modules(maps: Iterable[LinearMap]) -> list[str]:
    return [one.name for one in maps if not _is_parameter(one)]


def _parameters(maps: Iterable[LinearMap]) -> list[str]:
    return [one.row.name for one in maps if _is_parameter(one)]


def _saved(model: ModelConfig, lora: LoraConfig) -> list[str]:
    table = table_with(model, lora)
    return [row.name for row in table.trained().values() if row.lr_scale and not is_adapter(row)]


def _config(model: ModelConfig, lora: LoraConfig, maps: list[LinearMap], saved: list[str], base: str) -> dict[str, Any]:
    alpha = lora.scaled_alpha
    known = list(linear_maps(model))
    widths = {
        f"mlp.experts.{name}": len(members)
        for groups in _packed(maps).values()
        for name, members in groups.items()
        if len(members) > 1
    }
    grow = math.sqrt if lora.rslora else float
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rslora,
        "use_dora": lora.dora,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": _shortest(_modules(maps), _modules(known)),
        "target_parameters": _shortest(_parameters(maps), _parameters(known), num_parts=3) or None,
        "rank_pattern": {name: lora.rank * width for name, width in widths.items()},
        "alpha_pattern": {name: alpha * grow(width) for name, width in widths.items()},
        "modules_to_save": sorted(name.removesuffix(".weight") for name in saved) or None,
    }


def _shortest(names: Sequence[str], known: Sequence[str], *, num_parts: int = 1) -> list[str]:
    """The last parts of names where they mean the same of all that are known, else whole names."""
    chosen, found = set(names), dict.fromkeys(names)
    short = {name: ".".join(name.split(".")[-num_parts:]) for name in {*known, *names}}
    partly = {short[name] for name in known if name not in chosen}
    return list(dict.fromkeys(name if short[name] in partly else short[name] for name in found))
