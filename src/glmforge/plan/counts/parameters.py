"""How many parameters a model has, part by part, from its configuration alone: sums over the table of parameters.

Counts are exact integers. Each part is kept as matrices, vectors and buffers, because later questions ask for
different ones of them: FLOPs and Muon concern the matrices, AdamW gets the vectors (biases and norm weights),
and the routers' correction biases are buffers, which published totals include and no optimizer touches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from glmforge.config.model import ModelConfig
from glmforge.config.parameters import LayerKind, Parameter, layer_rows, outer_rows

_KINDS: tuple[LayerKind, ...] = ("dense", "moe", "mtp")


@dataclass(frozen=True)
class Count:
    """Elements of a part of the model."""

    matrices: int
    vectors: int = 0
    buffers: int = 0

    @property
    def parameters(self) -> int:
        """What an optimizer trains."""
        return self.matrices + self.vectors

    @property
    def total(self) -> int:
        """What a checkpoint holds."""
        return self.parameters + self.buffers

    def __add__(self, other: "Count") -> "Count":
        return Count(self.matrices + other.matrices, self.vectors + other.vectors, self.buffers + other.buffers)

    def __mul__(self, times: int) -> "Count":
        return Count(self.matrices * times, self.vectors * times, self.buffers * times)


@dataclass(frozen=True)
class ParameterCounts:
    """The parts of a model, and the sums of them that people quote.

    `*_active` is what one token passes through: its K routed experts and the shared ones, all else whole. The
    trunk is all layers and the final norm, without embedding, head and MTP. With tied embeddings the head works as
    any other but is not stored a second time.
    """

    embedding: Count
    head: Count
    is_tied: bool
    expert: Count
    dense_layer: Count
    moe_layer: Count
    moe_layer_active: Count
    trunk: Count
    trunk_active: Count
    mtp: Count
    mtp_active: Count
    num_mtp_layers: int

    @property
    def without_mtp(self) -> Count:
        """The model as transformers loads it: trunk, embedding and head."""
        tables = self.embedding if self.is_tied else self.embedding + self.head
        return self.trunk + tables

    @property
    def with_mtp(self) -> Count:
        """The model as it is trained and as GLM-4.6's checkpoint stores it."""
        return self.without_mtp + self.mtp

    @property
    def with_mtp_copies(self) -> Count:
        """GLM-4.5's and Air's checkpoints, which repeat embedding and head in every MTP layer."""
        return self.with_mtp + (self.embedding + self.head) * self.num_mtp_layers

    @property
    def active(self) -> Count:
        """What takes part in predicting one token; the embedding is only looked up."""
        return self.trunk_active + self.head

    @property
    def trunk_matmul(self) -> int:
        """Elements of the trunk that multiply each token."""
        return self.trunk_active.matrices

    @property
    def mtp_matmul(self) -> int:
        """Elements that multiply each token in the MTP layers, their use of the head included."""
        return self.mtp_active.matrices + self.head.matrices * self.num_mtp_layers

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        outer = list(outer_rows(config))
        embedding = _count(row for row in outer if row.family == "embedding")
        norm = _count(row for row in outer if row.family == "vector")
        dense, moe, mtp = (list(layer_rows(config, kind)) for kind in _KINDS)
        visited = config.num_experts_per_tok
        dense_layers = _count(dense) * config.first_k_dense_replace
        return cls(
            embedding=embedding,
            head=embedding if config.lm_head else Count(0),  # of the same shape, a matrix of its own or not
            is_tied=config.tie_word_embeddings,
            expert=_count((row for row in moe if row.expert), num_experts=1),
            dense_layer=_count(dense),
            moe_layer=_count(moe),
            moe_layer_active=_count(moe, num_experts=visited),
            trunk=dense_layers + _count(moe) * config.num_moe_layers + norm,
            trunk_active=dense_layers + _count(moe, num_experts=visited) * config.num_moe_layers + norm,
            mtp=_count(mtp) * config.num_nextn_predict_layers,
            mtp_active=_count(mtp, num_experts=visited) * config.num_nextn_predict_layers,
            num_mtp_layers=config.num_nextn_predict_layers,
        )


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of every part of the model."""
    return ParameterCounts.of(config)


def _count(rows: Iterable[Parameter], num_experts: int | None = None) -> Count:
    """Elements of these rows, with `num_experts` of the packed experts (None: all)."""
    count = Count(0)
    for row in rows:
        size = row.size if num_experts is None or not row.expert else row.size // row.shape[0] * num_experts
        if not row.trained:
            count += Count(0, buffers=size)
        else:
            count += Count(0, vectors=size) if row.family == "vector" else Count(size)
    return count
