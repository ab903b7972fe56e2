"""Name and shape of every parameter of a model, from its configuration alone.

The names are the published checkpoint's, in transformers' packed form; `glmforge.model` makes exactly these. Rules by
name can so be checked, and bytes counted, before torch is imported, and on a rank that holds a few layers only.

D: hidden_size; E: experts; I: moe_intermediate_size.
"""

from collections.abc import Iterator

from glmforge.config.model import ModelConfig

Shape = tuple[int, ...]
_Named = Iterator[tuple[str, Shape]]


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Published name -> global shape, in the model's own order; buffers (the routers' biases) are none."""
    table = config.vocab_size, config.hidden_size
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": table}
    for layer in range(config.num_hidden_layers + config.num_nextn_predict_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer(config, layer)}
    head = {} if config.tie_word_embeddings else {"lm_head.weight": table}
    return shapes | {"model.norm.weight": (config.hidden_size,)} | head


def _layer(config: ModelConfig, layer: int) -> _Named:
    d = config.hidden_size
    yield "input_layernorm.weight", (d,)
    yield from _attention(config)
    yield "post_attention_layernorm.weight", (d,)
    if layer < config.first_k_dense_replace:
        yield from _swiglu("mlp", d, config.intermediate_size)
    else:
        yield from _moe(config)
    if layer >= config.num_hidden_layers:
        yield from (("enorm.weight", (d,)), ("hnorm.weight", (d,)), ("eh_proj.weight", (d, 2 * d)))
        yield "shared_head.norm.weight", (d,)


def _attention(config: ModelConfig) -> _Named:
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (rows, config.hidden_size)
        if config.attention_bias:
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.o_proj.weight", (config.hidden_size, queries)
    if config.use_qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _moe(config: ModelConfig) -> _Named:
    d, e, i = config.hidden_size, config.n_routed_experts, config.moe_intermediate_size
    yield "mlp.gate.weight", (e, d)
    yield "mlp.experts.gate_up_proj", (e, 2 * i, d)
    yield "mlp.experts.down_proj", (e, d, i)
    yield from _swiglu("mlp.shared_experts", d, config.n_shared_experts * i)


def _swiglu(name: str, hidden: int, inner: int) -> _Named:
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)
