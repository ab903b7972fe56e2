"""What PEFT calls the parts of an adapter, and `adapter_config.json`, which tells it what to build.

Names and shapes are PEFT's own but for packed experts. PEFT adapts those as parameters (`target_parameters`): where
both packed matrices of a layer are adapted it nests one wrapper in the other, and gate_up_proj's adapter is called
`experts.base_layer.lora_A`. It knows gate and up projection as one map only, so adapters of each become one of twice
the rank (`rank_pattern`).

In a model of this kind PEFT (0.21) takes a target module that is called gate_proj, up_proj or down_proj for the
experts'. So those of dense layers and shared experts are named as parameters too, `shared_experts.up_proj.weight`, and
so is the router, which is no linear module. PEFT has no DoRA of parameters.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from glmforge.checkpoint.format.sharded_adapter import PEFT_PREFIX
from glmforge.config.adapters import PACKED, LinearMap, adapted_maps, is_adapter, linear_maps, table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig

WEIGHTS_FILE = "adapter_model.safetensors"
PAIR = ("lora_A", "lora_B")

_BARE = ("lora_magnitude_vector", "lora_embedding_A", "lora_embedding_B")
"""Parts of adapters that have no `.weight` in PEFT's files."""

PackedMaps = dict[str, dict[str, list[LinearMap]]]
"""Of each layer's experts, by packed matrix, the maps of it that are adapted."""


def peft_name(parameter: str) -> str:
    """PEFT's name of a parameter that is no part of packed experts' adapters."""
    bare = any(f".{part}." in parameter for part in _BARE)
    return PEFT_PREFIX + (parameter.removesuffix(".weight") if bare else parameter)


def packed_maps(maps: Iterable[LinearMap]) -> PackedMaps:
    """The maps among `maps` that are experts', as `PackedMaps`."""
    found: PackedMaps = {}
    for one in maps:
        if one.kind == "experts":
            name = one.row.name.rpartition(".")[2]
            found.setdefault(one.owner, {}).setdefault(name, []).append(one)
    return found


def packed_name(owner: str, matrix: str, part: str, *, nested: bool) -> str:
    """PEFT's name of a part of a packed matrix's adapter; `nested` if the layer's other matrix is adapted too."""
    return f"{PEFT_PREFIX}{owner}{'.base_layer' if nested and matrix == PACKED else ''}.{part}.weight"


def saved_whole(model: ModelConfig, lora: LoraConfig) -> list[str]:
    """Parameters that are trained beside the adapters, but for those of MTP layers, which transformers' model lacks."""
    table = table_with(model, lora)
    return [row.name for row in table.trained().values() if row.lr_scale and not is_adapter(row) and not row.mtp]


def no_place_in_peft(model: ModelConfig, lora: LoraConfig) -> str | None:
    """Why PEFT could not load what is trained whole, None if it can: it takes whole modules of a causal LM."""
    table, saved = table_with(model, lora), set(saved_whole(model, lora))
    for name in sorted(saved):
        module = name.rpartition(".")[0]
        if module in model.heads:
            return f"PEFT loads into a causal LM, which has no head '{module}' (model.heads)"
        beside = [row for row in table.values() if row.name.rpartition(".")[0] == module and not is_adapter(row)]
        lacking = [row for row in beside if row.name not in saved]
        if lacking and lacking[0].trained:
            return (
                f"PEFT loads whole modules, but only part of {module} is trained; add '{lacking[0].name}' to "
                "modules_to_save"
            )
        if lacking:
            return (
                f"PEFT loads whole modules, but {lacking[0].name} is not in the adapter; adapt the router "
                "(lora.targets: gate) instead of training it whole (modules_to_save)"
            )
    return None


def without_dora_in_peft(maps: Iterable[LinearMap]) -> LinearMap | None:
    """A map that PEFT adapts by its parameter, of which it has no DoRA."""
    return next((one for one in maps if _is_parameter(one)), None)


def peft_config(model: ModelConfig, lora: LoraConfig, base: str | None) -> dict[str, Any]:
    """The contents of `adapter_config.json`; `base` is what PEFT is to load the base model from."""
    maps, known, alpha = adapted_maps(model, lora), list(linear_maps(model)), lora.scaled_alpha
    widths = {
        f"mlp.experts.{name}": len(members)
        for groups in packed_maps(maps).values()
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
        "target_modules": shortest(_modules(maps), _modules(known)),
        "target_parameters": shortest(_parameters(maps), _parameters(known), num_parts=3) or None,
        "rank_pattern": {name: lora.rank * width for name, width in widths.items()},
        "alpha_pattern": {name: alpha * grow(width) for name, width in widths.items()},
        "modules_to_save": sorted({name.rpartition(".")[0] for name in saved_whole(model, lora)}) or None,
    }


def shortest(names: Sequence[str], known: Sequence[str], *, num_parts: int = 1) -> list[str]:
    """The last parts of names where they mean the same of all that are known, else whole names."""
    chosen, found = set(names), dict.fromkeys(names)
    short = {name: ".".join(name.split(".")[-num_parts:]) for name in {*known, *names}}
    partly = {short[name] for name in known if name not in chosen}
    return list(dict.fromkeys(name if short[name] in partly else short[name] for name in found))


def _is_parameter(one: LinearMap) -> bool:
    """Whether PEFT needs the name of the parameter, not of its module."""
    return one.kind in ("experts", "router") or one.name.endswith(("gate_proj", "up_proj", "down_proj"))


def _modules(maps: Iterable[LinearMap]) -> list[str]:
    return [one.name for one in maps if not _is_parameter(one)]


def _parameters(maps: Iterable[LinearMap]) -> list[str]:
    return [one.row.name for one in maps if _is_parameter(one)]
