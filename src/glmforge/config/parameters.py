"""The table of parameters: everything the rest of the program has to know of a parameter, said once, in its row.

The names are the published checkpoint's, in transformers' packed form; `glmforge.model` makes exactly these. Initial
values, the cuts of tensor and expert parallelism, the sums of gradients, the kind of optimizer, the planned bytes and
the tensors of a published checkpoint are all read from here, before torch is imported if need be, and on a rank that
holds a few layers only.

A new parameter of the model gets its row here. Parts that are put into a model from outside (adapters, other heads)
bring rows of their own: `ParameterTable.extended`. A parameter without a row, and a row without a parameter, is an
error when the model is built (`glmforge.parallel.declared`).

Shapes: D hidden_size, V vocab_size, H query heads, G key/value heads, P head_dim, E experts, I moe_intermediate_size,
F intermediate width of a SwiGLU.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from glmforge.config.model import ModelConfig
from glmforge.errors import GlmforgeError

Shape = tuple[int, ...]
Family = Literal["matrix", "embedding", "head", "vector"]
Initial = Literal["normal", "fan_in", "zeros", "ones"]
LayerKind = Literal["dense", "moe", "mtp"]
Axis = Literal["dp_replicate", "fsdp", "cp", "tp", "efsdp", "ep"]
When = Literal["always", "sequence_parallel"]
HeldDtype = Literal["uint8", "bf16"]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_EMBEDDING_MODULE = EMBEDDING.removesuffix("weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")

COMPLETE: Mapping[Axis, When] = {}
"""Every rank of tp computes all of the gradient of its (part of the) parameter."""
OWN_SHARE: Mapping[Axis, When] = {"tp": "always"}
"""The ranks of tp use the same parameter for different tokens, heads or features."""
OWN_TOKENS: Mapping[Axis, When] = {"tp": "sequence_parallel"}
"""They use it for the same tokens, but under sequence parallelism for different ones."""


class UndeclaredParameterError(GlmforgeError, KeyError):
    """A parameter that has no row in the table."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter, or buffer, of the model.

    Attributes:
        name: the published one, as in the model's `state_dict`.
        shape: of the whole tensor, not of a rank's part.
        family: as what an optimizer sees it; a "matrix" may be a stack of them.
        initial: "normal" is N(0, `initializer_range`), "fan_in" N(0, 1 / (3 columns)), whose variance is that of
            `nn.Linear`; both are for tensors of two and three dims.
        tp_dim: the dim that tensor parallelism cuts; None: every rank of tp holds it whole.
        expert: whether dim 0 counts experts and is cut by expert parallelism.
        partial: the axes over which gradients must still be summed, and when: along them the ranks hold the same part
            of the parameter and each has the gradient of its own share of the work. Axes over which FSDP shards or
            copies the parameter are FSDP's to sum (fsdp and dp_replicate; within experts efsdp and dp_replicate).
        num_fused: equal blocks of rows (of the second-last dim), each a linear map of its own.
        expert_parts: how files hold packed experts: for each expert one matrix for each equal block of rows, called
            `<name up to the last dot>.<expert>.<part>`. Empty: as it is in memory.
        mtp: whether it is part of an MTP layer.
        fp32: in files and models of another type, this one stays fp32.
        trained: whether it is a parameter; a buffer has no gradient and no optimizer.
        lr_scale: factor on the learning rate, on top of what `optim.rules` say; 0 freezes.
        dtype: what it is held in where the configuration has no say: the parts of a quantised weight.
    """

    name: str
    shape: Shape
    family: Family
    initial: Initial
    tp_dim: int | None
    partial: Mapping[Axis, When]
    expert: bool = False
    num_fused: int = 1
    expert_parts: tuple[str, ...] = ()
    mtp: bool = False
    fp32: bool = False
    trained: bool = True
    lr_scale: float = 1.0
    dtype: HeldDtype | None = None

    def __post_init__(self) -> None:
        cut = {"tp": self.tp_dim is not None, "ep": self.expert}
        if wrong := [axis for axis in self.partial if cut.get(axis)]:
            raise ValueError(
                f"{self.name}: is sharded over {wrong[0]}, so its gradient cannot be a partial sum over it"
            )
        if self.initial in ("normal", "fan_in") and len(self.shape) not in (2, 3):
            raise ValueError(f"{self.name}: of shape {self.shape} cannot be drawn; choose zeros or ones")

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def layer(self) -> int | None:
        """Number of the layer it belongs to, MTP layers after the trunk's; None outside the layers."""
        layer = _LAYER.match(self.name)
        return int(layer[1]) if layer else None

    @property
    def of_embedding(self) -> bool:
        """Whether it belongs to the embedding, before the layers."""
        return self.name.startswith(_EMBEDDING_MODULE)

    def partial_axes(self, *, sequence_parallel: bool) -> tuple[Axis, ...]:
        """The axes over which its gradient is a partial sum in such a layout."""
        return tuple(axis for axis, when in self.partial.items() if when == "always" or sequence_parallel)


class ParameterTable(Mapping[str, Parameter]):
    """The rows by name, in the order in which checkpoint files list them; an unknown name is an error saying so."""

    def __init__(self, rows: Iterable[Parameter]) -> None:
        self._rows = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._rows:
            raise UndeclaredParameterError(
                f"{name}: parameter is not declared; add a row in glmforge/config/parameters.py, or extend the table "
                "(ParameterTable.extended)"
            )
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def extended(self, rows: Iterable[Parameter]) -> "ParameterTable":
        """This table and `rows` after it. Raises `ValueError` for a name that is declared already."""
        rows = list(rows)
        if known := [row.name for row in rows if row.name in self]:
            raise ValueError(f"{known[0]}: is already declared")
        return ParameterTable([*self.values(), *rows])

    def shapes(self) -> dict[str, Shape]:
        """Of all rows, buffers too."""
        return {name: row.shape for name, row in self.items()}

    def trained(self) -> dict[str, Parameter]:
        """The rows without the buffers'."""
        return {name: row for name, row in self.items() if row.trained}


def parameter_table(config: ModelConfig) -> ParameterTable:
    """The table of a model; the MTP layers' rows follow the trunk's. A tied head has no row."""
    return ParameterTable(_model_rows(config))


def outer_rows(config: ModelConfig) -> Iterator[Parameter]:
    """The rows outside the layers: embedding, final norm, the language-model head unless it is tied or absent,
    and the other heads."""
    vocabulary = config.vocab_size, config.hidden_size
    yield Parameter(name=EMBEDDING, shape=vocabulary, family="embedding", initial="normal", tp_dim=0, partial=COMPLETE)
    yield _norm("model.norm", config.hidden_size)
    if config.lm_head and not config.tie_word_embeddings:
        yield Parameter(name=HEAD, shape=vocabulary, family="head", initial="normal", tp_dim=0, partial=COMPLETE)
    for name, num_outputs in config.heads.items():
        # A few rows: nothing that an optimizer of matrices could make orthogonal.
        shape = num_outputs, config.hidden_size
        yield Parameter(
            name=f"{name}.weight", shape=shape, family="vector", initial="normal", tp_dim=None, partial=OWN_SHARE
        )


def layer_rows(config: ModelConfig, kind: LayerKind, prefix: str = "") -> Iterator[Parameter]:
    """The rows of one layer of this kind, whether or not the model has one; `prefix` begins their names."""
    if kind == "mtp":
        yield from (replace(row, mtp=True) for row in _mtp_layer(config, prefix))
    else:
        yield from _decoder_layer(config, kind, prefix)


def _decoder_layer(config: ModelConfig, kind: LayerKind, prefix: str) -> Iterator[Parameter]:
    d = config.hidden_size
    yield _norm(f"{prefix}input_layernorm", d)
    yield from _attention(config, f"{prefix}self_attn.")
    yield _norm(f"{prefix}post_attention_layernorm", d)
    yield from _swiglu(f"{prefix}mlp.", d, config.intermediate_size) if kind == "dense" else _moe(config, prefix)


def _mtp_layer(config: ModelConfig, prefix: str) -> Iterator[Parameter]:
    """A MoE layer with its own way in and out."""
    d = config.hidden_size
    yield _norm(f"{prefix}enorm", d)
    yield _norm(f"{prefix}hnorm", d)
    yield _matrix(f"{prefix}eh_proj.weight", (d, 2 * d), partial=OWN_TOKENS)
    yield from _decoder_layer(config, "moe", prefix)
    yield _norm(f"{prefix}shared_head.norm", d)


def _model_rows(config: ModelConfig) -> Iterator[Parameter]:
    first, *last = outer_rows(config)
    yield first
    for layer in range(config.num_hidden_layers + config.num_nextn_predict_layers):
        yield from layer_rows(config, _kind(config, layer), f"model.layers.{layer}.")
    yield from last


def _kind(config: ModelConfig, layer: int) -> LayerKind:
    if layer >= config.num_hidden_layers:
        return "mtp"
    return "dense" if layer < config.first_k_dense_replace else "moe"


def _attention(config: ModelConfig, prefix: str) -> Iterator[Parameter]:
    """Cut by whole heads. The norms of queries and keys are whole, but each rank norms its own heads only."""
    d, p = config.hidden_size, config.head_dim
    h, g = config.num_attention_heads, config.num_key_value_heads
    for projection, heads in (("q_proj", h), ("k_proj", g), ("v_proj", g)):
        yield _matrix(f"{prefix}{projection}.weight", (heads * p, d), tp_dim=0)
        if config.attention_bias:
            yield _vector(f"{prefix}{projection}.bias", heads * p, "zeros", tp_dim=0)
    yield _matrix(f"{prefix}o_proj.weight", (d, h * p), tp_dim=1)
    if config.use_qk_norm:
        yield _norm(f"{prefix}q_norm", p, partial=OWN_SHARE)
        yield _norm(f"{prefix}k_norm", p, partial=OWN_SHARE)


def _moe(config: ModelConfig, prefix: str) -> Iterator[Parameter]:
    """The router is whole; it and the experts always work on the rank's own tokens."""
    d, e, i = config.hidden_size, config.n_routed_experts, config.moe_intermediate_size
    yield _matrix(f"{prefix}mlp.gate.weight", (e, d), partial=OWN_SHARE)
    yield _vector(f"{prefix}mlp.gate.e_score_correction_bias", e, "zeros", trained=False, fp32=True)
    parts = ("gate_proj.weight", "up_proj.weight")
    yield _experts(f"{prefix}mlp.experts.gate_up_proj", (e, 2 * i, d), num_fused=2, expert_parts=parts)
    yield _experts(f"{prefix}mlp.experts.down_proj", (e, d, i), num_fused=1, expert_parts=("down_proj.weight",))
    yield from _swiglu(f"{prefix}mlp.shared_experts.", d, config.n_shared_experts * i)


def _swiglu(prefix: str, d: int, f: int) -> Iterator[Parameter]:
    yield _matrix(f"{prefix}gate_proj.weight", (f, d), tp_dim=0)
    yield _matrix(f"{prefix}up_proj.weight", (f, d), tp_dim=0)
    yield _matrix(f"{prefix}down_proj.weight", (d, f), tp_dim=1)


def _matrix(
    name: str, shape: Shape, *, tp_dim: int | None = None, partial: Mapping[Axis, When] = COMPLETE
) -> Parameter:
    return Parameter(name=name, shape=shape, family="matrix", initial="normal", tp_dim=tp_dim, partial=partial)


def _experts(name: str, shape: Shape, *, num_fused: int, expert_parts: tuple[str, ...]) -> Parameter:
    return Parameter(
        name=name,
        shape=shape,
        family="matrix",
        initial="normal",
        tp_dim=None,
        partial=COMPLETE,
        expert=True,
        num_fused=num_fused,
        expert_parts=expert_parts,
    )


def _norm(name: str, size: int, *, partial: Mapping[Axis, When] = OWN_TOKENS) -> Parameter:
    return _vector(f"{name}.weight", size, "ones", partial=partial)


def _vector(
    name: str,
    size: int,
    initial: Initial,
    *,
    tp_dim: int | None = None,
    partial: Mapping[Axis, When] = COMPLETE,
    trained: bool = True,
    fp32: bool = False,
) -> Parameter:
    return Parameter(
        name=name,
        shape=(size,),
        family="vector",
        initial=initial,
        tp_dim=tp_dim,
        partial=partial,
        trained=trained,
        fp32=fp32,
    )
