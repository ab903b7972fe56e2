"""What a stage of a pipeline consists of: its embedding, its layers, and its head.

Layers are alike if they are of one kind and `optim.rules` do the same to all of their parameters; where rules freeze,
if as much of them goes backward, too. What is counted of the first layer like it is true of a layer.
"""

import dataclasses
from functools import lru_cache
from typing import Literal, NamedTuple

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import rule_of
from glmforge.config.parameters import Parameter
from glmforge.config.role import MODEL
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import StageContent
from glmforge.plan.stages.gradients import Gradients, part_of

PieceKind = Literal["embedding", "dense", "moe", "head"]


class Piece(NamedTuple):
    """A part of a stage. `layer`: of a layer, the first one that is like it. MTP layers are part of the head."""

    kind: PieceKind
    layer: int = 0

    @property
    def is_layer(self) -> bool:
        return self.kind in ("dense", "moe")


def pieces_of(stage: StageContent, config: RunConfig, model: str) -> list[Piece]:
    """In the order of the forward pass. `model` is a name that is equal for equal models."""
    layers = _layers(_LayersKey(config, model, tuple(map(repr, config.optim.rules))))[stage.start : stage.stop]
    return [
        *([Piece("embedding")] if stage.has_embedding else []),
        *layers,
        *([Piece("head")] if stage.has_head else []),
    ]


def all_pieces(config: RunConfig, model: str) -> list[Piece]:
    """Of the whole model, as if it were one stage."""
    number, dense = config.model.num_hidden_layers, config.model.first_k_dense_replace
    mtp = config.model.num_nextn_predict_layers
    return pieces_of(StageContent(0, number, dense, number - dense, True, True, mtp), config, model)


def content_of(piece: Piece, config: RunConfig) -> StageContent:
    """A stage that is one piece."""
    model = config.model
    if piece.kind == "embedding":
        return StageContent(0, 0, 0, 0, True, False, 0)
    if piece.kind == "head":
        last = model.num_hidden_layers
        return StageContent(last, last, 0, 0, False, True, model.num_nextn_predict_layers)
    is_moe = piece.kind == "moe"
    return StageContent(piece.layer, piece.layer + 1, int(not is_moe), int(is_moe), False, False, 0)


@dataclasses.dataclass(frozen=True)
class _LayersKey:
    config: RunConfig = dataclasses.field(compare=False)
    model: str
    rules: tuple[str, ...]


@lru_cache(maxsize=64)
def _layers(key: _LayersKey) -> tuple[Piece, ...]:
    """Of every layer of the trunk."""
    model, optim = key.config.model, key.config.optim
    dense = model.first_k_dense_replace
    kinds: list[PieceKind] = ["dense" if layer < dense else "moe" for layer in range(model.num_hidden_layers)]
    if not optim.rules:
        return tuple(Piece(kind, 0 if kind == "dense" else dense) for kind in kinds)
    gradients = Gradients.of(model, optim, MODEL)
    rows: list[list[Parameter]] = [[] for _ in kinds]
    for row in MODEL.parameters(model).values():
        if row.layer is not None and not row.mtp:
            rows[row.layer].append(row)
    first: dict[tuple[object, ...], int] = {}
    found = []
    for layer, kind in enumerate(kinds):
        backward = (gradients.of_input(part_of(rows[layer][0].name, model)), gradients.in_layer(layer))
        what = (kind, backward, tuple(_rule(row, optim) for row in rows[layer]))
        found.append(Piece(kind, first.setdefault(what, layer)))
    return tuple(found)


def _rule(row: Parameter, optim: OptimConfig) -> int | None:
    return rule_of(row.name, optim.rules)
