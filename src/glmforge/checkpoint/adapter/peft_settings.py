"""What `adapter_config.json` of a PEFT adapter says of its arithmetic, and what of it there is no place for here.

PEFT has many settings. Those that decide what the tensors mean are read; what this program does not compute is refused
by name; the others tell how the adapter was made (dropout, what modules were meant) and are left alone, for
the tensors themselves show it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.checkpoint.adapter.peft_config import peft_config
from glmforge.checkpoint.format.sharded_adapter import CONFIG_FILE, is_sharded_adapter
from glmforge.config.lora import MAX_RANK, LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.files import read_json, shown

_OTHER_ARITHMETIC = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
)
"""Settings with which the same tensors would mean something else."""

_CHANGING_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")
"""Beginnings of `init_lora_weights` with which PEFT takes what A and B begin as from the base weights."""


class PeftSettings(NamedTuple):
    """What `adapter_config.json` says of an adapter's arithmetic."""

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    patterns: Mapping[str, Mapping[str, Any]]
    """`rank_pattern` and `alpha_pattern`: modules with a rank or an alpha of their own."""


def is_peft(directory: Path) -> bool:
    """Whether PEFT has written an adapter there. A checkpoint of adapters has an `adapter_config.json` too."""
    return (directory / CONFIG_FILE).is_file() and not is_sharded_adapter(directory)


def read_settings(directory: Path) -> PeftSettings:
    """Of a LoRA adapter's `adapter_config.json`. Raises `CheckpointError` for other adapters, and what is not one."""
    file = directory / CONFIG_FILE
    if not file.exists():
        raise CheckpointError(f"{directory}: not a PEFT adapter (no {CONFIG_FILE}); pass a PEFT adapter directory")
    config = read_json(file, dict, error=CheckpointError)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    rslora, dora = (config.get(field, False) for field in ("use_rslora", "use_dora"))
    patterns = {field: config.get(field) or {} for field in ("rank_pattern", "alpha_pattern")}
    if (
        config.get("peft_type") != "LORA"
        or not (type(rank) is int and 0 < rank <= MAX_RANK)
        or not (isinstance(alpha, int | float) and not isinstance(alpha, bool) and 0 < alpha < math.inf)
        or not (type(rslora) is type(dora) is bool)
        or not all(isinstance(pattern, dict) for pattern in patterns.values())
    ):
        raise CheckpointError(
            f"{file}: is not of a LoRA adapter (peft_type, r, lora_alpha, use_rslora, use_dora, their patterns)"
        )
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        raise CheckpointError(f"{file}: has trained biases, which are not supported")
    if other := next((field for field in _OTHER_ARITHMETIC if config.get(field)), None):
        raise CheckpointError(f"{file}: {other} is set, which is not supported")
    begun = config.get("init_lora_weights", True)
    if isinstance(begun, str) and begun.lower().startswith(_CHANGING_BASE):
        raise CheckpointError(
            f"{file}: init_lora_weights {shown(begun)} has changed the base weights: have PEFT convert the adapter "
            "when it saves it (path_initial_model_for_weight_conversion)"
        )
    return PeftSettings(rank, float(alpha), rslora, dora, patterns)


def check_patterns(directory: Path, settings: PeftSettings, model: ModelConfig, lora: LoraConfig) -> None:
    """Raise `CheckpointError` for modules with a rank or an alpha of their own, but for experts' packed matrices with
    those that `lora` gives them."""
    expected, usual = peft_config(model, lora, None), {"rank_pattern": settings.rank, "alpha_pattern": settings.alpha}
    for field, pattern in settings.patterns.items():
        if {key: value for key, value in pattern.items() if value != usual[field]} != expected[field]:
            raise CheckpointError(
                f"{directory / CONFIG_FILE}: {field} is {shown(dict(pattern))}, but only {expected[field]} is "
                f"supported: one rank and one alpha for all layers, and lora.targets must be the adapter's"
            )
