"""`adapter_config.json`: what PEFT has to know of an adapter to build and load it.

PEFT has one rank and one alpha for all modules, and a `rank_pattern` for those that differ; for parameters that it
adapts by `target_parameters`, the packed experts, it heeds no pattern. So where gate and up projection of the experts
have adapters of their own, which become one of twice the rank on the packed parameter (`peft`), twice the rank is the
adapter's, and the modules that keep theirs are in the pattern.

Two more are named as parameters: the router, which is no linear module, and the projections of dense layers and shared
experts, for in a model with experts PEFT (0.21) takes a module called gate_proj, up_proj or down_proj for the experts'.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, AdapterSettings, BaseWeights

_PART = re.compile(
    r"(?P<owner>.+?)\.?(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)\.(?P<key>\w+)"
)
EXPERTS = "mlp.experts"
ROUTER = "mlp.gate"
HALVES = ("gate_proj", "up_proj")
PACKED = "gate_up_proj"
DOWN = "down_proj"


class AdapterName(NamedTuple):
    """The name of a parameter of an adapter, taken apart: "model.layers.3.mlp.experts", "lora_A", "up_proj"."""

    owner: str
    part: str
    key: str
    """"weight", of packed experts the map that is adapted."""

    @property
    def is_experts(self) -> bool:
        return self.owner.endswith(EXPERTS)

    @property
    def is_parameter(self) -> bool:
        """Whether it is a map that PEFT is to adapt by its parameter, of other modules than the experts."""
        return self.owner.endswith(ROUTER) or self.owner.rpartition(".")[2] in (*HALVES, DOWN)


def parse_name(parameter: str) -> AdapterName | None:
    """Of a parameter of an adapter; None for one that is trained whole."""
    match = _PART.fullmatch(parameter)
    return AdapterName(match["owner"], match["part"], match["key"]) if match else None


def doubles_rank(names: Mapping[str, AdapterName]) -> bool:
    """Whether halves of the packed parameter have adapters of their own."""
    return any(name.is_experts and name.key in HALVES for name in names.values())


def adapter_names(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, AdapterName]:
    """Parameter -> its name taken apart, of those among `shapes` ("model.<parameter>") that belong to adapters."""
    parameters = [name.removeprefix(PARAMETER_PREFIX) for name in shapes if name.startswith(PARAMETER_PREFIX)]
    return {parameter: name for parameter in parameters if (name := parse_name(parameter)) is not None}


def peft_config(
    shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings, base: BaseWeights | None
) -> dict[str, Any]:
    """The contents of `adapter_config.json` for the tensors ("model.<parameter>") in `shapes`."""
    names = adapter_names(shapes)
    modules = sorted({n.owner for n in names.values() if not n.is_experts and not n.is_parameter})
    parameters = sorted(
        {f"{EXPERTS}.{PACKED if n.key in HALVES else n.key}" for n in names.values() if n.is_experts}
        | {f"{n.owner.partition('.layers.')[2].partition('.')[2]}.weight" for n in names.values() if n.is_parameter}
    )
    rank, alpha = settings.rank, settings.alpha
    config: dict[str, Any] = {"rank_pattern": {}, "alpha_pattern": {}}
    if doubles_rank(names):
        short = sorted({module.rpartition(".")[2] for module in modules})
        config = {"rank_pattern": dict.fromkeys(short, rank), "alpha_pattern": dict.fromkeys(short, alpha)}
        rank, alpha = 2 * rank, alpha * (math.sqrt(2) if settings.rslora else 2)
    whole = [name for name in shapes if name.startswith(PARAMETER_PREFIX)]
    saved = sorted({n.removeprefix(PARAMETER_PREFIX) for n in whole} - names.keys())
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None if base is None else base.source,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        **config,
        "lora_dropout": 0.0,
        "use_rslora": settings.rslora,
        "use_dora": settings.dora,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": modules,
        "target_parameters": parameters or None,
        "modules_to_save": [name.removesuffix(".weight") for name in saved] or None,
    }
