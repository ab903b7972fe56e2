"""Which tensor of a megatron-core checkpoint holds which of ours, and how they lie in it.

The names are those of megatron-core's GPT model in a distributed checkpoint (`ShardedTensor.key`), in which neither
tensor, pipeline nor expert parallelism shows: every tensor is whole there, whatever wrote it. Three things differ from
the published form. Queries, keys and values are one matrix, ordered by group: the queries of the first group of heads,
its key, its value, then the next group. Gate and up are one matrix, gate rows first; of packed experts that is our form
already. The vocabulary is padded with rows that no token uses.

A norm has two names where Transformer Engine fuses it into the matrix behind it and the local layers do not: both are
read, and both are written, because Megatron passes over tensors that it does not know.

Shapes: G key/value heads, P head_dim, E experts, I intermediate width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glmforge.config.model import ModelConfig
from glmforge.config.parameters import EMBEDDING, HEAD, Shape

Form = Literal["same", "rows", "groups", "vocabulary"]

WEIGHTS = ("embedding.", "decoder.", "output_layer.", "mtp.")
"""What the names of a GPT model's own tensors begin with; optimizer and RNG have others."""


@dataclass(frozen=True)
class Link:
    """A tensor of Megatron's and those of ours that it is made of.

    Attributes:
        key: its name; `other_key` is the second one, if it has two.
        names: ours, in the order in which they lie in it.
        form: "same" as ours, "rows" one after the other, "groups" q, k and v of each group of heads, "vocabulary" with
            more rows than ours.
    """

    key: str
    names: tuple[str, ...]
    form: Form = "same"
    other_key: str | None = None


def links(config: ModelConfig) -> Iterator[Link]:
    """All of a model, in the order of our parameter table: `names` together are its names."""
    yield Link("embedding.word_embeddings.weight", (EMBEDDING,), "vocabulary")
    for layer in range(config.num_hidden_layers):
        is_dense = layer < config.first_k_dense_replace
        yield from _layer(config, f"decoder.layers.{layer}.", f"model.layers.{layer}.", is_dense=is_dense)
    for index in range(config.num_nextn_predict_layers):
        theirs, ours = f"mtp.layers.{index}.", f"model.layers.{config.num_hidden_layers + index}."
        for name in ("enorm", "hnorm", "eh_proj"):
            yield Link(f"{theirs}{name}.weight", (f"{ours}{name}.weight",))
        yield from _layer(config, f"{theirs}transformer_layer.", ours, is_dense=False)
        yield Link(f"{theirs}final_layernorm.weight", (f"{ours}shared_head.norm.weight",))
    yield Link("decoder.final_layernorm.weight", ("model.norm.weight",))
    if not config.tie_word_embeddings:
        yield Link("output_layer.weight", (HEAD,), "vocabulary")


def _layer(config: ModelConfig, theirs: str, ours: str, *, is_dense: bool) -> Iterator[Link]:
    attention, mlp, norm = f"{theirs}self_attention.", f"{theirs}mlp.", f"{theirs}mlp.linear_fc1.layer_norm_weight"
    yield Link(f"{attention}linear_qkv.layer_norm_weight", (f"{ours}input_layernorm.weight",))
    for kind in ("weight", "bias") if config.attention_bias else ("weight",):
        names = tuple(f"{ours}self_attn.{part}_proj.{kind}" for part in "qkv")
        yield Link(f"{attention}linear_qkv.{kind}", names, "groups")
    yield Link(f"{attention}linear_proj.weight", (f"{ours}self_attn.o_proj.weight",))
    for part in "qk" if config.use_qk_norm else "":
        yield Link(f"{attention}{part}_layernorm.weight", (f"{ours}self_attn.{part}_norm.weight",))
    if is_dense:
        yield Link(norm, (f"{ours}post_attention_layernorm.weight",))
        yield from _swiglu(mlp, f"{ours}mlp.")
        return
    yield Link(f"{theirs}pre_mlp_layernorm.weight", (f"{ours}post_attention_layernorm.weight",), other_key=norm)
    yield Link(f"{mlp}router.weight", (f"{ours}mlp.gate.weight",))
    yield Link(f"{mlp}router.expert_bias", (f"{ours}mlp.gate.e_score_correction_bias",))
    yield Link(f"{mlp}experts.experts.linear_fc1.weight", (f"{ours}mlp.experts.gate_up_proj",))
    yield Link(f"{mlp}experts.experts.linear_fc2.weight", (f"{ours}mlp.experts.down_proj",))
    yield from _swiglu(f"{mlp}shared_experts.", f"{ours}mlp.shared_experts.")


def _swiglu(theirs: str, ours: str) -> Iterator[Link]:
    yield Link(f"{theirs}linear_fc1.weight", (f"{ours}gate_proj.weight", f"{ours}up_proj.weight"), "rows")
    yield Link(f"{theirs}linear_fc2.weight", (f"{ours}down_proj.weight",))


def fused_shape(shapes: Sequence[Shape]) -> Shape:
    """Of Megatron's tensor, from those of ours; of a vocabulary without padding."""
    rows = sum(shape[0] for shape in shapes)
    return (rows, *shapes[0][1:])


def fuse(link: Link, parts: Sequence[Tensor], config: ModelConfig) -> Tensor:
    """Megatron's tensor from ours, in the order of `link.names`; of a vocabulary without padding."""
    if link.form != "groups":
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))
    groups, columns = config.num_key_value_heads, parts[0].shape[1:]
    by_group = [part.reshape(groups, -1, *columns) for part in parts]
    return torch.cat(by_group, dim=1).reshape(-1, *columns)


def split(link: Link, whole: Tensor, shapes: Sequence[Shape], config: ModelConfig) -> list[Tensor]:
    """Ours, of these `shapes`, from Megatron's tensor: the reverse of `fuse`, without the rows of a padding."""
    sizes = [shape[0] for shape in shapes]
    if link.form != "groups":
        return list(whole[: sum(sizes)].split(sizes))
    groups = config.num_key_value_heads
    by_group = whole.reshape(groups, -1, *whole.shape[1:]).split([size // groups for size in sizes], dim=1)
    return [part.reshape(shape) for part, shape in zip(by_group, shapes, strict=True)]
