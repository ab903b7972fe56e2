"""Which parameter is trained how, told from its name and shape alone.

The GLM-4.5 report trains everything with Muon but the word embedding, biases and RMSNorm weights. The router's weight
is a matrix like any other and goes to Muon; so, read literally, does `lm_head`, which other code bases give to AdamW:
`optim.lm_head` decides. LAMB takes the embedding too. Vectors are always AdamW's. Weight decay acts on matrices and on
the embedding, never on biases and norms. `optim.rules` make exceptions of all this, but for AdamW's vectors.

What Muon orthogonalises, and LAMB scales, is one linear map at a time. A packed expert tensor holds many, and
`gate_up_proj` two per expert, gate rows first: `num_fused` tells how many equal blocks of rows a matrix consists of.

Layer-wise decay of the learning rate is that of Howard and Ruder (2018, arXiv 1801.06146), in the form in which ELECTRA
and BEiT use it: norm, head and MTP layers are trained at the full rate, the last layer of the trunk at `layer_lr_decay`
times it, each layer below at so much less, and the embedding as a layer below the first.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from glmforge.config.optim import OptimConfig, ParameterRule
from glmforge.files import shown

Method = Literal["muon", "adamw", "lamb"]

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Treatment:
    """How one parameter is trained.

    `num_fused`: independent matrices stacked along the second-last dim, each one linear map. `lr_scale`: times the
    learning rate; 0 freezes.
    """

    method: Method
    weight_decay: float
    num_fused: int = 1
    lr_scale: float = 1.0

    @property
    def is_frozen(self) -> bool:
        return self.lr_scale == 0


def treatment(name: str, shape: Sequence[int], config: OptimConfig, num_layers: int | None = None) -> Treatment:
    """The treatment of the parameter `name` of (global) `shape`.

    `num_layers` is that of the trunk; only `layer_lr_decay` asks for it, and raises `ValueError` if it is missing.
    """
    index = _rule_of(name, config.rules)
    rule = ParameterRule(match="*") if index is None else config.rules[index]
    is_matrix = len(shape) > 1
    decay = rule.weight_decay if rule.weight_decay is not None else config.weight_decay * is_matrix
    scale = rule.lr_scale if rule.lr_scale is not None else 1.0
    return Treatment(
        method=rule.optimizer or (_matrix_method(name, config) if is_matrix else "adamw"),
        weight_decay=decay,
        num_fused=2 if name.endswith("experts.gate_up_proj") else 1,
        lr_scale=scale * _layer_scale(name, config.layer_lr_decay, num_layers),
    )


def wrong_rule(config: OptimConfig, shapes: Mapping[str, Sequence[int]]) -> tuple[str, str] | None:
    """The field of the first rule that cannot be meant, and why; None if all are well.

    `shapes` are those of all parameters of the model, whatever part of it a rank holds.
    """
    for index, rule in enumerate(config.rules):
        matched = [name for name in shapes if fnmatchcase(name, rule.match)]
        taken = [name for name in matched if _rule_of(name, config.rules) == index]
        vectors = [name for name in taken if len(shapes[name]) < 2]
        if not matched:
            near = difflib.get_close_matches(rule.match, _kinds(shapes), n=3, cutoff=0.5)
            nearest = ", ".join(f"'{name}'" for name in near or _kinds(shapes)[:3])
            return (
                f"rules.{index}.match",
                f"{shown(repr(rule.match))} matches no parameter of the model; nearest: {nearest}",
            )
        if not taken:
            return (
                f"rules.{index}.match",
                f"'{rule.match}' is never reached: rules before it take all it matches, such as '{matched[0]}'; "
                "put it first",
            )
        if rule.optimizer not in (None, "adamw") and vectors:
            return (
                f"rules.{index}.optimizer",
                f"'{rule.optimizer}' trains matrices, but '{rule.match}' also matches '{vectors[0]}', a vector; "
                "match less, such as '*proj.weight'",
            )
    return None


def _rule_of(name: str, rules: Sequence[ParameterRule]) -> int | None:
    return next((index for index, rule in enumerate(rules) if fnmatchcase(name, rule.match)), None)


def _matrix_method(name: str, config: OptimConfig) -> Method:
    is_for_adamw = (name == _HEAD and config.lm_head == "adamw") or (
        name == _EMBEDDING and config.matrix_optimizer == "muon"
    )
    return "adamw" if is_for_adamw else config.matrix_optimizer


def _layer_scale(name: str, decay: float, num_layers: int | None) -> float:
    if decay == 1:
        return 1.0
    if num_layers is None:
        raise ValueError("layer_lr_decay needs the number of layers of the model")
    layer = _LAYER.match(name)
    depth = min(int(layer[1]), num_layers) if layer else -1 if name == _EMBEDDING else num_layers
    return float(decay ** (num_layers - depth))


def _kinds(names: Iterable[str]) -> list[str]:
    """The names with `*` for the number of the layer, each once."""
    return list(dict.fromkeys(_LAYER.sub("model.layers.*.", name) for name in names))
