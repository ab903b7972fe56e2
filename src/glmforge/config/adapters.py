"""Which parameters a run with adapters has, and which of them it trains: rows for the table of parameters.

A map W [out, in] gets A [rank, in] and B [out, rank] beside it and computes W x + scaling B A x. Every published linear
map is one of its own: gate and up projection, and those of every expert; experts' adapters are stacked as their weights
are. `experts.gate_up_proj` adapts the packed matrix as one map instead, as PEFT does when given the parameter's
name. Only layers of the trunk are adapted; a layer for multi-token prediction stays as it was trained.

Adapters are named as PEFT's files name them, `<map>.lora_A.weight`; those of packed experts, which PEFT keeps in another
form, `mlp.experts.lora_A.down_proj`.

How rows are cut, and which gradients are partial sums, follows from the map's own row:

| map | cut by tp | A | B |
|---|---|---|---|
| q, k, v, gate, up, head | its outputs | whole, each tp rank's gradient is of its own outputs: summed over tp | cut as the outputs |
| o, down, embedding | its inputs | cut as the inputs | whole, each tp rank's gradient is of its own inputs: summed over tp |
| router | not | as the router: each tp rank has tokens of its own, summed over tp | the same |
| routed experts | not; by ep | cut over ep with the experts: complete | the same |

DoRA's magnitude has the outputs of W: cut with them, or, where the inputs are cut, a partial sum over tp. Sums over the
data axes are FSDP's, as of every parameter.
"""  # noqa: E501

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import (
    COMPLETE,
    EMBEDDING,
    HEAD,
    OWN_SHARE,
    Axis,
    Parameter,
    ParameterTable,
    Shape,
    When,
    parameter_table,
)
from glmforge.config.quantised import quantised
from glmforge.errors import ConfigError
from glmforge.files import shown

ALL_LINEAR = "all-linear"
PACKED = "gate_up_proj"
"""Of the experts: gate and up projection as one map, which only its own name means."""

_BEFORE = re.compile(r"^model\.(layers\.[^.]+\.)?")

Kind = Literal["linear", "experts", "router", "embedding", "head"]
Part = Literal["lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"]


class WrongTargetError(ConfigError):
    """A name in the section `lora` that means nothing, or what cannot be. `field` is the section's."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"lora.{field}: {problem}")
        self.field, self.problem = field, problem


@dataclass(frozen=True)
class LinearMap:
    """A linear map of the model.

    Attributes:
        name: of the whole model, such as "model.layers.3.mlp.experts.up_proj".
        row: the parameter that holds it, of experts with other maps.
        kind: what module it belongs to.
        num_outputs: its own, of those that the parameter has.
    """

    name: str
    row: Parameter
    kind: Kind
    num_outputs: int

    @property
    def owner(self) -> str:
        """Name of the module that has the weight, and gets the adapter."""
        return self.row.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """What its adapter is called in that module: "weight", of packed experts the map's own name."""
        return self.name.rpartition(".")[2] if self.kind == "experts" else "weight"

    @property
    def num_inputs(self) -> int:
        """Of the embedding, the vocabulary."""
        return self.row.shape[-2] if self.kind == "embedding" else self.row.shape[-1]


class AdapterPart(NamedTuple):
    """A parameter of an adapter."""

    part: Part
    row: Parameter


def linear_maps(model: ModelConfig) -> Iterator[LinearMap]:
    """Of the whole model but its MTP layers, in the order of the table."""
    for row in parameter_table(model).values():
        if row.name in (EMBEDDING, HEAD):
            kind: Kind = "embedding" if row.name == EMBEDDING else "head"
            outputs = row.shape[-1] if kind == "embedding" else row.shape[0]
            yield LinearMap(row.name.removesuffix(".weight"), row, kind, outputs)
        elif row.family == "matrix" and not row.mtp and row.layer is not None:
            yield from _maps_of(row)


def _maps_of(row: Parameter) -> Iterator[LinearMap]:
    if not row.expert:
        name = row.name.removesuffix(".weight")
        yield LinearMap(name, row, "router" if name.endswith(".mlp.gate") else "linear", row.shape[0])
        return
    owner = row.name.rpartition(".")[0]
    for part in row.expert_parts:
        name = f"{owner}.{part.removesuffix('.weight')}"
        yield LinearMap(name, row, "experts", row.shape[-2] // row.num_fused)
    if row.num_fused > 1:
        yield LinearMap(row.name, row, "experts", row.shape[-2])


def adapted_maps(model: ModelConfig, lora: LoraConfig) -> list[LinearMap]:
    """Those that get adapters, in the order of the table.

    Raises `WrongTargetError` for a target that matches none, and for what cannot be adapted so.
    """
    maps = list(linear_maps(model))
    for target in lora.targets:
        if not any(is_meant(target, one.name, one.kind) for one in maps):
            raise WrongTargetError("targets", _no_match(target, _vocabulary(maps)))
    found = [one for one in maps if any(is_meant(target, one.name, one.kind) for target in lora.targets)]
    _check_maps(found, model, lora)
    return found


def is_meant(target: str, name: str, kind: Kind) -> bool:
    """Whether a target means the map of this name."""
    if kind == "experts" and name.endswith(f".{PACKED}") and PACKED not in target:
        return False
    if target == ALL_LINEAR:
        return kind in ("linear", "experts")
    if kind == "router" and target == "mlp":
        return False  # who chooses experts is no part of what they compute
    return _names(target, name) or _names(target, f"{name}.weight", whole=True)


def _names(word: str, name: str, *, whole: bool = False) -> bool:
    """Whether `word` is a name or a pattern of names of the model, or a part of the path below the layer."""
    if fnmatchcase(name, word):
        return True
    return not whole and f".{word}." in f".{_BEFORE.sub('', name)}."


def adapter_parts(one: LinearMap, lora: LoraConfig) -> list[AdapterPart]:
    """The parameters of a map's adapter."""
    stack, tp_dim = one.row.shape[:-2], one.row.tp_dim
    reads, makes = ("lora_embedding_A", "lora_embedding_B") if one.kind == "embedding" else ("lora_A", "lora_B")
    # Of the embedding [V, D] the first dim counts inputs, of all other maps outputs.
    cut = None if tp_dim is None else "inputs" if (tp_dim == 1) != (one.kind == "embedding") else "outputs"
    shapes: dict[str, Shape] = {reads: (*stack, lora.rank, one.num_inputs), makes: (*stack, one.num_outputs, lora.rank)}
    dims = {reads: 1 if cut == "inputs" else None, makes: 0 if cut == "outputs" else None}
    # What is zero at first: B, or of an embedding A, as in PEFT.
    zero = reads if one.kind == "embedding" else makes
    if lora.dora:
        shapes["lora_magnitude_vector"] = (one.num_outputs,)
        dims["lora_magnitude_vector"] = dims[makes]
    return [
        AdapterPart(
            part,  # type: ignore[arg-type]
            Parameter(
                name=f"{one.owner}.{part}.{one.key}",
                shape=shape,
                family="matrix" if len(shape) > 1 else "vector",
                initial="ones" if len(shape) == 1 else "zeros" if part == zero else "fan_in",
                tp_dim=dims[part],
                partial=_partial(one.row, is_cut=dims[part] is not None),
                expert=one.row.expert,
                lr_scale=lora.lr_ratio if part == makes else 1.0,
            ),
        )
        for part, shape in shapes.items()
    ]


def _partial(row: Parameter, *, is_cut: bool) -> Mapping[Axis, When]:
    """The sums of an adapter's gradient: those of its map where tp does not cut that."""
    if row.tp_dim is None:
        return row.partial
    return COMPLETE if is_cut else OWN_SHARE


def adapter_rows(model: ModelConfig, lora: LoraConfig) -> list[Parameter]:
    """All parameters of all adapters. Raises `WrongTargetError`."""
    return [part.row for one in adapted_maps(model, lora) for part in adapter_parts(one, lora)]


def is_adapter(row: Parameter) -> bool:
    """Whether the parameter is part of an adapter."""
    return ".lora_" in row.name


def table_with(model: ModelConfig, lora: LoraConfig | None, *, quantises: bool = False) -> ParameterTable:
    """The table of a model that is trained with these adapters, or whole; frozen matrices quantised if it
    `quantises`. Raises `WrongTargetError`."""
    table = parameter_table(model)
    if lora is not None:
        table = adapted(table, model, lora)
    return quantised(table) if quantises else table


def adapted(table: ParameterTable, model: ModelConfig, lora: LoraConfig) -> ParameterTable:
    """`table`, of (a part of) the model, with adapters: everything else is frozen but `modules_to_save` and the heads
    of `model.heads`, which no base model has. Raises `WrongTargetError`."""
    saved = _saved(table, model, lora)
    rows = [row if row.name in saved else replace(row, lr_scale=0.0) for row in table.values()]
    return ParameterTable(rows).extended(adapter_rows(model, lora))


def _saved(table: ParameterTable, model: ModelConfig, lora: LoraConfig) -> set[str]:
    heads = {f"{name}.weight" for name in model.heads}
    rows = [row for row in table.trained().values() if not is_adapter(row)]
    saved = {row.name for row in rows if row.name in heads}
    for word in lora.modules_to_save:
        named = {row.name for row in rows if _names(word, row.name)}
        if not named:
            parts = dict.fromkeys(part for row in rows for part in _BEFORE.sub("", row.name).split("."))
            raise WrongTargetError("modules_to_save", _no_match(word, list(parts)))
        saved |= named
    if both := saved & {one.row.name for one in adapted_maps(model, lora)}:
        raise WrongTargetError(
            "modules_to_save", f"{min(both)} is trained whole and has an adapter; remove it here or from targets"
        )
    return saved


def _check_maps(maps: Sequence[LinearMap], model: ModelConfig, lora: LoraConfig) -> None:
    names = {one.name for one in maps}
    for one in maps:
        packed = f"{one.owner}.{PACKED}"
        if one.kind == "experts" and one.name != packed and one.row.num_fused > 1 and packed in names:
            raise WrongTargetError(
                "targets", f"'{PACKED}' holds both gate and up projection of the experts; name it or '{one.key}'"
            )
    odd = next((one for one in maps if one.kind != "linear"), None)
    if lora.dora and odd is not None:
        raise WrongTargetError(
            "dora",
            f"supports the linear layers of attention and MLP only, and targets name {odd.name}: the norms of its "
            "adapted rows would be recomputed in every step; remove it from targets, or set dora to false",
        )
    if lora.dropout and odd is not None:
        raise WrongTargetError(
            "dropout",
            f"supports the linear layers of attention and MLP only, and targets name {odd.name}, whose tokens carry "
            f"no numbers to make masks from; set it to 0, or remove {odd.name} from targets",
        )
    if model.tie_word_embeddings and any(one.kind == "embedding" for one in maps):
        raise WrongTargetError(
            "targets", "embed_tokens is also the head's weight (model.tie_word_embeddings); remove it"
        )


def _vocabulary(maps: Sequence[LinearMap]) -> list[str]:
    """What a target may be called, short names first."""
    paths = [_BEFORE.sub("", one.name).split(".") for one in maps]
    parts = dict.fromkeys(part for path in paths for part in path[::-1])
    return [*parts, *dict.fromkeys(".".join(path[-2:]) for path in paths if len(path) > 1), ALL_LINEAR]


def _no_match(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    nearest = ", ".join(f"'{name}'" for name in near or known[:6])
    return f"{shown(repr(word))} matches no module of the model; nearest: {nearest}"
