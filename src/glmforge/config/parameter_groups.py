"""Parameter groups: which parameters are trained by which optimizer, with which weight decay and learning rate.

The GLM-4.5 report trains everything with Muon but the word embedding, biases and RMSNorm weights. The router's weight
is a matrix like any other and goes to Muon; so, read literally, does `lm_head`, which other code bases give to AdamW:
`optim.lm_head` decides. LAMB takes the embedding too. Vectors are AdamW's. Weight decay acts on matrices and on the
embedding, never on biases and norms. `optim.rules` make exceptions of all this, but give vectors only to optimizers
that train them. What a parameter is (a matrix, a vector) stands in the table of parameters.

Layer-wise decay of the learning rate is that of Howard and Ruder (2018, arXiv 1801.06146), in the form in which ELECTRA
and BEiT use it: norm, head and MTP layers are trained at the full rate, the last layer of the trunk at `layer_lr_decay`
times it, each layer below at so much less, and the embedding as a layer below the first.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from glmforge.config.optim import OptimConfig, ParameterRule
from glmforge.config.optimizers import OPTIMIZERS, OptimizerDeclaration, StateDtype
from glmforge.config.parallel import PrecisionConfig
from glmforge.config.parameters import Parameter, ParameterTable, Shape
from glmforge.files import shown


@dataclass(frozen=True, eq=False)
class ParameterGroup:
    """Parameters that share optimizer, weight decay and learning rate.

    `lr_scale` is times the learning rate; 0 freezes. `parameters` are in the order of the table.
    """

    optimizer: OptimizerDeclaration
    weight_decay: float
    lr_scale: float
    parameters: tuple[Parameter, ...]

    @property
    def is_frozen(self) -> bool:
        return self.lr_scale == 0

    @property
    def num_elements(self) -> int:
        return sum(parameter.size for parameter in self.parameters)


def parameter_groups(table: ParameterTable, config: OptimConfig) -> list[ParameterGroup]:
    """Every parameter of the model, each in one group; buffers are in none."""
    num_layers = _num_trunk_layers(table)
    members: dict[tuple[str, float, float], list[Parameter]] = {}
    for parameter in table.trained().values():
        index = rule_of(parameter.name, config.rules)
        rule = ParameterRule(match="*") if index is None else config.rules[index]
        optimizer = rule.optimizer or _optimizer_without_rule(parameter, config)
        decay = config.weight_decay * (parameter.family != "vector")
        scale = rule.lr_scale if rule.lr_scale is not None else 1.0
        key = (
            optimizer,
            rule.weight_decay if rule.weight_decay is not None else decay,
            scale * parameter.lr_scale * _layer_scale(parameter, config.layer_lr_decay, num_layers),
        )
        members.setdefault(key, []).append(parameter)
    return [
        ParameterGroup(OPTIMIZERS[optimizer].in_dtype(config.state_dtype), decay, scale, tuple(parameters))
        for (optimizer, decay, scale), parameters in members.items()
    ]


def rule_of(name: str, rules: Sequence[ParameterRule]) -> int | None:
    """The number of the rule that applies to the parameter of this name: the first that matches; None if none does."""
    return next((index for index, rule in enumerate(rules) if fnmatchcase(name, rule.match)), None)


def is_frozen(name: str, config: OptimConfig) -> bool:
    """Whether a rule freezes the parameter of this name."""
    index = rule_of(name, config.rules)
    return index is not None and config.rules[index].lr_scale == 0


def held_in_bf16(table: ParameterTable, optim: OptimConfig, precision: PrecisionConfig) -> frozenset[str]:
    """The parameters that are held in bf16 between steps, unless quantised: frozen ones, if `precision` says so."""
    if precision.frozen_float != "bf16":
        return frozenset()
    frozen = (group for group in parameter_groups(table, optim) if group.is_frozen)
    return frozenset(parameter.name for group in frozen for parameter in group.parameters)


def optimizer_states(table: ParameterTable, config: OptimConfig) -> dict[str, tuple[Shape, StateDtype]]:
    """Name, global shape and type of every tensor of the optimizer's state; what is frozen has none."""
    return {
        state.key(parameter.name): (() if state.is_scalar else parameter.shape, state.dtype)
        for group in parameter_groups(table, config)
        if not group.is_frozen
        for parameter in group.parameters
        for state in group.optimizer.states
    }


def wrong_rule(config: OptimConfig, table: ParameterTable) -> tuple[str, str] | None:
    """The field of the first rule that cannot be meant, and why; None if all are well."""
    parameters = list(table.trained().values())
    for index, rule in enumerate(config.rules):
        matched = [parameter for parameter in parameters if fnmatchcase(parameter.name, rule.match)]
        taken = [parameter for parameter in matched if rule_of(parameter.name, config.rules) == index]
        vectors = [parameter.name for parameter in taken if parameter.family == "vector"]
        if not matched:
            names = _without_layers(parameters)
            near = difflib.get_close_matches(rule.match, names, n=3, cutoff=0.5)
            nearest = ", ".join(f"'{name}'" for name in near or names[:3])
            return (
                f"rules.{index}.match",
                f"{shown(repr(rule.match))} matches no parameter; nearest: {nearest}",
            )
        if not taken:
            return (
                f"rules.{index}.match",
                f"'{rule.match}' never applies: earlier rules match everything it matches, such as "
                f"'{matched[0].name}'; move it up",
            )
        if rule.optimizer is not None and vectors and not OPTIMIZERS[rule.optimizer].trains_vectors:
            return (
                f"rules.{index}.optimizer",
                f"'{rule.optimizer}' trains matrices, but '{rule.match}' also matches '{vectors[0]}', a vector; "
                "match less, such as '*proj.weight'",
            )
    return None


def _optimizer_without_rule(parameter: Parameter, config: OptimConfig) -> str:
    takes = {
        "matrix": True,
        "head": config.lm_head == "muon",
        "embedding": OPTIMIZERS[config.matrix_optimizer].takes_embedding,
        "vector": False,
    }
    return config.matrix_optimizer if takes[parameter.family] else "adamw"


def _num_trunk_layers(table: ParameterTable) -> int:
    layers = {row.layer for row in table.values()} - {None}
    return len(layers - {row.layer for row in table.values() if row.mtp})


def _layer_scale(parameter: Parameter, decay: float, num_layers: int) -> float:
    above = num_layers - parameter.layer if parameter.layer is not None else 0
    if parameter.family == "embedding":
        above = num_layers + 1
    return float(decay ** max(above, 0))


def _without_layers(parameters: Sequence[Parameter]) -> list[str]:
    """Their names with `*` for the number of the layer, each once."""
    return list(dict.fromkeys(p.name.replace(f"layers.{p.layer}.", "layers.*.", 1) for p in parameters))
