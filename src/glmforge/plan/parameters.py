"""How many parameters a model has, part by part, from its configuration alone.

Counts are exact integers. Each part is kept as matrices, vectors and buffers, because later questions ask for
different ones of them: FLOPs and Muon concern the matrices, AdamW gets the vectors (biases and norm weights),
and the routers' correction biases are buffers, which published totals include and no optimizer touches.

Legend: D hidden_size, H query heads, G key/value heads, P head_dim, E experts, K experts per token,
I moe_intermediate_size, F intermediate_size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Self

from glmforge.config.model import ModelConfig


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
        table = Count(config.vocab_size * config.hidden_size)
        norm = Count(0, vectors=config.hidden_size)
        dense, moe = _dense_layer(config), _moe_layer(config, config.n_routed_experts)
        moe_active = _moe_layer(config, config.num_experts_per_tok)
        dense_layers = dense * config.first_k_dense_replace
        return cls(
            embedding=table,
            head=table,
            is_tied=config.tie_word_embeddings,
            expert=_mlp(config, config.moe_intermediate_size),
            dense_layer=dense,
            moe_layer=moe,
            moe_layer_active=moe_active,
            trunk=dense_layers + moe * config.num_moe_layers + norm,
            trunk_active=dense_layers + moe_active * config.num_moe_layers + norm,
            mtp=(moe + _mtp_entry(config)) * config.num_nextn_predict_layers,
            mtp_active=(moe_active + _mtp_entry(config)) * config.num_nextn_predict_layers,
            num_mtp_layers=config.num_nextn_predict_layers,
        )


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of every part of the model."""
    return ParameterCounts.of(config)


def _dense_layer(config: ModelConfig) -> Count:
    return _attention(config) + _mlp(config, config.intermediate_size)


def _moe_layer(config: ModelConfig, num_routed: int) -> Count:
    """A decoder layer with `num_routed` of its routed experts (all of them, or those one token visits)."""
    router = Count(config.n_routed_experts * config.hidden_size, buffers=config.n_routed_experts)
    experts = _mlp(config, config.moe_intermediate_size) * (num_routed + config.n_shared_experts)
    return _attention(config) + router + experts


def _attention(config: ModelConfig) -> Count:
    """q, k, v [D, (H + 2 G) P] with bias, o [H P, D] without, two layer norms, and QK-norm's pair over P."""
    query = config.num_attention_heads * config.head_dim
    key_value = 2 * config.num_key_value_heads * config.head_dim
    matrices = config.hidden_size * (query + key_value + query)
    biases = (query + key_value) * config.attention_bias
    norms = 2 * config.hidden_size + 2 * config.head_dim * config.use_qk_norm
    return Count(matrices, vectors=biases + norms)


def _mlp(config: ModelConfig, width: int) -> Count:
    """SwiGLU: gate and up [width, D], down [D, width]."""
    return Count(3 * config.hidden_size * width)


def _mtp_entry(config: ModelConfig) -> Count:
    """What an MTP layer has beside its decoder layer: eh_proj [D, 2 D], enorm, hnorm, shared_head.norm."""
    return Count(2 * config.hidden_size**2, vectors=3 * config.hidden_size)
