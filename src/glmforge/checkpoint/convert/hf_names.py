"""Which tensors a GLM checkpoint consists of, in memory and on disk.

In memory the experts of a layer are packed into two tensors, as transformers 5 has them:
`experts.gate_up_proj` `[E, 2I, D]` (gate rows first) and `experts.down_proj` `[E, D, I]`. Published
checkpoints hold three matrices per expert. Everything else has one name in both places. The relation is a
list of `Piece`s, each saying which part of which tensor in memory one tensor on disk is; export and import
walk the same list in opposite directions.

Shapes: D hidden_size, H query heads, G key/value heads, P head_dim, E experts, I moe_intermediate_size,
F intermediate_size, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from glmforge.checkpoint.convert.boxes import Box
from glmforge.config.model import ModelConfig

Shape = tuple[int, ...]

INDEX_FILE = "model.safetensors.index.json"  # which shard holds which tensor
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CORRECTION_BIAS = "mlp.gate.e_score_correction_bias"


@dataclass(frozen=True)
class Piece:
    """The tensor `disk_name` on disk is `memory[name][index]`, of this `shape`."""

    disk_name: str
    name: str
    index: tuple[int | slice, ...]
    shape: Shape

    @property
    def box(self) -> Box:
        """Where the tensor on disk lies in the one in memory; an expert is a box of size 1 along dim 0."""
        num_fixed = sum(isinstance(part, int) for part in self.index)
        sizes = (1,) * num_fixed + self.shape
        starts = [part if isinstance(part, int) else part.start for part in self.index]
        return Box((*starts, *(0 for _ in sizes[len(starts) :])), sizes)

    def part(self, box: Box) -> tuple[slice, ...]:
        """The index of `box`, a part of `self.box`, in the tensor on disk."""
        index = box.within(self.box)
        return index[len(index) - len(self.shape) :]


def packed_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor in memory, in the order of the layers (the MTP layers last)."""
    d, v = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {EMBEDDING: (v, d)}
    for layer in range(config.num_hidden_layers + config.num_nextn_predict_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config, layer)}
    head: dict[str, Shape] = {} if config.tie_word_embeddings else {HEAD: (v, d)}
    return shapes | {"model.norm.weight": (d,)} | head


def mtp_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """What the names of the multi-token-prediction layers begin with."""
    first = config.num_hidden_layers
    return tuple(f"model.layers.{first + i}." for i in range(config.num_nextn_predict_layers))


def mtp_duplicates(config: ModelConfig) -> dict[str, str]:
    """Disk name -> name of the main embedding and head that GLM-4.5 (not 4.6) repeats in each MTP layer."""
    head = EMBEDDING if config.tie_word_embeddings else HEAD
    return {
        prefix + repeated: name
        for prefix in mtp_prefixes(config)
        for repeated, name in [("embed_tokens.weight", EMBEDDING), ("shared_head.head.weight", head)]
    }


def duplicates(config: ModelConfig) -> dict[str, str]:
    """Disk name -> name of all that files may hold twice: MTP's copies, and the head of tied embeddings."""
    return mtp_duplicates(config) | ({HEAD: EMBEDDING} if config.tie_word_embeddings else {})


def published_pieces(name: str, shape: Shape) -> Iterator[Piece]:
    """The tensors on disk that one tensor in memory becomes: three per expert, otherwise itself."""
    if name.endswith(".experts.gate_up_proj"):
        yield from _gate_up_pieces(name, shape)
    elif name.endswith(".experts.down_proj"):
        experts = name.removesuffix("down_proj")
        yield from (Piece(f"{experts}{e}.down_proj.weight", name, (e,), shape[1:]) for e in range(shape[0]))
    else:
        yield whole_piece(name, shape)


def whole_piece(name: str, shape: Shape) -> Piece:
    """A tensor that is the same on disk and in memory."""
    return Piece(name, name, (), shape)


def disk_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Published checkpoints keep the correction biases in fp32: in bf16 their small updates would vanish."""
    return torch.float32 if name.endswith(CORRECTION_BIAS) else dtype


def _gate_up_pieces(name: str, shape: Shape) -> Iterator[Piece]:
    experts = name.removesuffix("gate_up_proj")
    num_experts, i = shape[0], shape[1] // 2
    for e in range(num_experts):
        yield Piece(f"{experts}{e}.gate_proj.weight", name, (e, slice(0, i)), (i, shape[2]))
        yield Piece(f"{experts}{e}.up_proj.weight", name, (e, slice(i, 2 * i)), (i, shape[2]))


def _layer_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    d = config.hidden_size
    is_mtp = layer >= config.num_hidden_layers
    if is_mtp:
        yield "enorm.weight", (d,)
        yield "hnorm.weight", (d,)
        yield "eh_proj.weight", (d, 2 * d)
    yield "input_layernorm.weight", (d,)
    yield from _attention_shapes(config)
    yield "post_attention_layernorm.weight", (d,)
    if layer < config.first_k_dense_replace:
        yield from _mlp_shapes("mlp", d, config.intermediate_size)
    else:
        yield from _moe_shapes(config)
    if is_mtp:
        yield "shared_head.norm.weight", (d,)


def _attention_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    d, p = config.hidden_size, config.head_dim
    h, g = config.num_attention_heads, config.num_key_value_heads
    for projection, heads in [("q", h), ("k", g), ("v", g)]:
        yield f"self_attn.{projection}_proj.weight", (heads * p, d)
        if config.attention_bias:
            yield f"self_attn.{projection}_proj.bias", (heads * p,)
    yield "self_attn.o_proj.weight", (d, h * p)
    if config.use_qk_norm:
        yield "self_attn.q_norm.weight", (p,)
        yield "self_attn.k_norm.weight", (p,)


def _moe_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    d, e, i = config.hidden_size, config.n_routed_experts, config.moe_intermediate_size
    yield "mlp.gate.weight", (e, d)
    yield CORRECTION_BIAS, (e,)
    yield "mlp.experts.gate_up_proj", (e, 2 * i, d)
    yield "mlp.experts.down_proj", (e, d, i)
    yield from _mlp_shapes("mlp.shared_experts", d, i * config.n_shared_experts)


def _mlp_shapes(prefix: str, d: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate_proj.weight", (inner, d)
    yield f"{prefix}.up_proj.weight", (inner, d)
    yield f"{prefix}.down_proj.weight", (d, inner)
