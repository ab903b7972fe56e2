"""The GLM MoE as plain modules for one device: embedding, decoder layers, MTP layers, head.

Parameter names are those of the published checkpoints in transformers' packed form, so weights need no name map:
`model.embed_tokens`, `model.layers.{l}...` (MTP layers follow the trunk's), `model.norm`, `lm_head`.

The forward works on T flattened tokens of packed documents and never makes logits by itself: what happens to the
hidden states is the caller's `head` (logits, a chunked cross-entropy, log-probabilities, a reward), called inside the
forward so that a sharded engine has the heads' weights at hand.

A `Section` of the model is a run of consecutive layers with the same names and weights as in the whole: the first one
begins with the embedding, the last one ends with norm, MTP layers and heads. Where the end is, only the section says: a
model may have other heads and no language-model head. What a section hands to the next are the hidden states and, where
MTP layers follow, the embeddings of the tokens to come.

Shapes: B rows, S tokens per row, T tokens, D hidden_size, V vocab_size, L MoE layers, E experts, N MTP depths.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from glmforge.config.kernels import KernelsConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.documents import Documents
from glmforge.model.attention import Attend
from glmforge.model.block import DecoderLayer, LayerOutput, LayerTokens, MTPLayer
from glmforge.model.dropout import TokenNoise
from glmforge.model.head import Heads, LinearHead, LMHead
from glmforge.model.init import initialize
from glmforge.model.inputs import ModelInputs, Routing, Rows
from glmforge.model.layers import Embedding, RMSNorm
from glmforge.model.moe import MoE
from glmforge.model.rope import Rope
from glmforge.model.router import Balance, RowBalance, row_balance, sequence_balance_loss

T = TypeVar("T")
Head = Callable[[Tensor, Heads, int], T]
"""`head(h_TD, heads, depth)`; depth 0 is the next token, depth n the n-th token after it."""


class Section(NamedTuple):
    """Trunk layers `start` to `stop` (not included); `first` has the embedding, `last` norm, MTP layers and heads."""

    start: int
    stop: int
    first: bool
    last: bool

    @classmethod
    def whole(cls, config: ModelConfig) -> "Section":
        return cls(0, config.num_hidden_layers, first=True, last=True)


class Activations(NamedTuple):
    """What a section hands to the next: `x_TD`, `next_TD` of each MTP depth, the embeddings of coming tokens."""

    x_TD: Tensor
    next_TD: tuple[Tensor, ...]


@dataclass(frozen=True)
class RouterStats:
    """What a section's routers did, layer by layer: `counts_LE` tokens that chose each expert, `dropped_LE` those
    dropped (both int64), the sequence-level auxiliary loss summed over layers and rows (fp32 scalar), and, if asked
    for, the experts that the routers' tokens took (`experts_TLK`, int64; L is the section's layers)."""

    counts_LE: Tensor
    dropped_LE: Tensor
    aux_loss: Tensor
    experts_TLK: Tensor | None = None


@dataclass(frozen=True)
class ForwardOutput(Generic[T]):
    """What `head` made of the trunk (`main`) and of each MTP depth (`mtp`), None and () before the last section; the
    routers' statistics; and `activations` for the next section, None after the last."""

    main: T
    mtp: tuple[T, ...]
    router: RouterStats
    activations: Activations | None = None

    @property
    def is_last(self) -> bool:
        """Whether the last section gave this, the one with heads."""
        return self.activations is None


def logits_head(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
    """Logits [T, V] in the compute dtype."""
    return cast(Tensor, heads.lm(h_TD))


class Trunk(nn.Module):
    """Published name `model`: embedding, all layers (the MTP layers last) and the final norm, or a section of them."""

    def __init__(self, config: ModelConfig, section: Section) -> None:
        super().__init__()
        num_layers = config.num_hidden_layers
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size) if section.first else None
        layers = {str(layer): DecoderLayer(config, layer) for layer in range(section.start, section.stop)}
        if section.last:
            for layer in range(num_layers, num_layers + config.num_nextn_predict_layers):
                layers[str(layer)] = MTPLayer(config, layer)
        self.layers = nn.ModuleDict(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps) if section.last else None


class GlmMoe(nn.Module):
    """The language model. `compute_dtype` is that of the activations; weights are cast to it where they are used.

    `has_base` is whether the weights beside adapters are those of the model before training, so that the same module is
    also that model (`ModelInputs.adapters`). `adapters_on` is whether adapters of embedding and head count just now.
    """

    has_base = False
    adapters_on = True

    def __init__(self, config: ModelConfig, section: Section | None = None) -> None:
        """Build (a section of) the model with uninitialised weights; see also `GlmMoe.create`."""
        super().__init__()
        self.config = config
        self.section = section or Section.whole(config)
        self.rope_theta = config.rope_theta
        self.compute_dtype = torch.float32
        self.model = Trunk(config, self.section)
        has_lm_head = self.section.last and config.lm_head
        self.lm_head = LMHead(config.hidden_size, config.vocab_size) if has_lm_head else None
        if config.tie_word_embeddings:
            if self.lm_head is None or self.model.embed_tokens is None:
                raise ValueError(
                    "tied embeddings need embedding and head in one section; a pipeline would separate them"
                )
            self.lm_head.tie(self.model.embed_tokens)
        for name, num_outputs in config.heads.items() if self.section.last else ():
            self.add_module(name, LinearHead(config.hidden_size, num_outputs))

    @classmethod
    def create(cls, config: ModelConfig, seed: int = 0) -> Self:
        """A freshly initialised fp32 model; the weights depend on `seed` and names only."""
        model = cls(config)
        initialize(model, parameter_table(config), seed, config.initializer_range)
        return model

    @property
    def linear_heads(self) -> dict[str, LinearHead]:
        """The heads of `config.heads`, none before the last section."""
        return {name: cast(LinearHead, getattr(self, name)) for name in self.config.heads if self.section.last}

    @property
    def layers(self) -> Sequence[DecoderLayer]:
        """All layers of this section, MTP layers last."""
        return cast(list[DecoderLayer], list(self.model.layers.values()))

    @property
    def trunk_layers(self) -> Sequence[DecoderLayer]:
        return [layer for layer in self.layers if not isinstance(layer, MTPLayer)]

    @property
    def mtp_layers(self) -> Sequence[MTPLayer]:
        return [layer for layer in self.layers if isinstance(layer, MTPLayer)]

    @property
    def moe_layers(self) -> dict[int, MoE]:
        """The MoE blocks of this section by their number among all of the model, MTP layers last."""
        first = self.config.first_k_dense_replace
        layers = cast(Iterable[tuple[str, DecoderLayer]], self.model.layers.items())
        return {int(name) - first: layer.mlp for name, layer in layers if isinstance(layer.mlp, MoE)}

    def set_capacity_factor(self, factor: float | None) -> None:
        """Let each expert take at most `factor` times the mean load of the tokens routed at once; None: all."""
        for moe in self.moe_layers.values():
            moe.experts.capacity_factor = factor

    def set_balance(self, balance: Balance) -> None:
        """What levels the experts in training (see `router.Balance`); in evaluation they all choose alike.

        Correction biases stay as they are, and steer the choice but for training with "sinkhorn".
        """
        for moe in self.moe_layers.values():
            moe.gate.balance = balance

    def set_kernels(self, kernels: KernelsConfig) -> None:
        """Let every module compute by these implementations, in which no "auto" is left (see `kernels.choice`)."""
        for module in self.modules():
            if isinstance(module, ChoosesKernels):
                module.kernels = kernels

    def forward(
        self,
        inputs: ModelInputs | Tensor,
        activations: Activations | None = None,
        *,
        head: Head[T] = logits_head,  # type: ignore[assignment]
        with_mtp: bool = True,
        with_aux_loss: bool = False,
        with_routing: bool = False,
    ) -> ForwardOutput[T]:
        """Run this section's layers over packed documents.

        `inputs` may be plain ids [B, S], each row one document. `activations` come from the section before.
        `with_routing` asks for the experts that tokens took (`RouterStats.experts_TLK`).

        Raises:
            ValueError: the inputs' routing is not of this model, or they ask for a base model that is not there.
        """
        if isinstance(inputs, Tensor):
            inputs = ModelInputs.whole(inputs, num_mtp_layers=self.config.num_nextn_predict_layers)
        if not inputs.adapters and not self.has_base:
            raise ValueError(
                "adapters=False needs the base model's weights, which are not available: the run has no lora "
                "section, or trains full parameters (lora.modules_to_save); load the reference as a separate model"
            )
        self.adapters_on = inputs.adapters
        try:
            return self._run(inputs, activations, head, with_mtp, with_aux_loss, with_routing)
        finally:
            self.adapters_on = True

    def _run(
        self,
        inputs: ModelInputs,
        activations: Activations | None,
        head: Head[T],
        with_mtp: bool,
        with_aux_loss: bool,
        with_routing: bool,
    ) -> ForwardOutput[T]:
        if activations is None:
            activations = self._embed_all(inputs, with_mtp)
        stats = _StatsCollector(self.config, inputs.rows, with_aux_loss, with_routing)
        halves = [self._told(half) for half in inputs.halves or (inputs,)]
        states_TD = _cut(activations.x_TD, len(halves))
        for layer in self.trunk_layers:
            states_TD = self._run_layer(layer, [[x_TD] for x_TD in states_TD], halves, stats)
        x_TD = _joined(states_TD)
        if not self.section.last:
            # None of the stats needs the head, so the next section can begin.
            return ForwardOutput(None, (), stats.result(x_TD.device), activations._replace(x_TD=x_TD))  # type: ignore[arg-type]
        assert self.model.norm is not None
        h_TD = self.model.norm(x_TD)
        heads = Heads(self.lm_head, self.linear_heads)
        main = head(h_TD, heads, 0)
        mtp = []
        for depth, (layer, next_TD) in enumerate(zip(self.mtp_layers, activations.next_TD, strict=False), start=1):
            read_TD = zip(_cut(h_TD, len(halves)), _cut(next_TD, len(halves)), strict=True)
            h_TD = _joined(self._run_layer(layer, read_TD, halves, stats))
            mtp.append(head(h_TD, heads, depth))
        return ForwardOutput(main, tuple(mtp), stats.result(h_TD.device))

    def _told(self, half: ModelInputs) -> "_LayerContext":
        noise, map_noise = (half.noise, half.map_noise) if self.training else (None, None)
        if half.routing is not None:
            half.routing.check(self.config, len(half.rows.row_T))
        return _LayerContext(
            self.rope(half.positions_T), half.attend, half.rows, noise, map_noise, half.routing, half.adapters
        )

    def _run_layer(
        self,
        layer: DecoderLayer,
        states_TD: Iterable[Sequence[Tensor]],
        halves: Sequence["_LayerContext"],
        stats: "_StatsCollector",
    ) -> list[Tensor]:
        """The states of each half after `layer`, which reads one or two tensors of each."""
        tokens = [half.of_layer(layer, self.config.first_k_dense_replace) for half in halves]
        outputs = layer(*itertools.chain.from_iterable(states_TD), tokens=tokens)
        stats.add(outputs, [half.rows for half in halves])
        return [output.x_TD for output in outputs]

    def _embed_all(self, inputs: ModelInputs, with_mtp: bool) -> Activations:
        # Position t of MTP depth n reads the embedding of token t + n, or zeros past the end of its document: no
        # label asks for that position, but what is routed there must not depend on who its neighbours are.
        next_ids = inputs.next_ids_NT if with_mtp else ()
        if with_mtp and len(next_ids) != self.config.num_nextn_predict_layers:
            raise ValueError(
                f"inputs hold the tokens of {len(next_ids)} MTP depths, but the model has "
                f"{self.config.num_nextn_predict_layers} MTP layers; pass num_mtp_layers, or with_mtp=False"
            )
        x_TD = self.embed(inputs.ids_T)
        if self.training and inputs.noise is not None:
            x_TD = inputs.noise.add_to_embeddings(x_TD)
        return Activations(x_TD, tuple(self.embed(ids_T) for ids_T in next_ids))

    def embed(self, ids_T: Tensor) -> Tensor:
        """Embeddings `[T, D]` in the compute dtype; zeros for `NO_TOKEN`."""
        assert self.model.embed_tokens is not None, "only the first section embeds"
        return cast(Tensor, self.model.embed_tokens(ids_T)).to(self.compute_dtype)

    def rope(self, positions_T: Tensor) -> Rope:
        """Rotation of tokens at these positions with the current base."""
        return Rope.at(positions_T, self.config.rotary_dim, self.rope_theta, self.compute_dtype)

    @torch.no_grad()
    def logits(self, ids_BS: Tensor, documents: Documents | None = None) -> Tensor:
        """Next-token logits `[B, S, V]` of full rows (no padding), in the compute dtype, without a graph.

        `differentiable_logits` is the same with one.
        """
        return self.differentiable_logits(ids_BS, documents)

    def differentiable_logits(self, ids_BS: Tensor, documents: Documents | None = None) -> Tensor:
        """Next-token logits `[B, S, V]` of full rows (no padding), in the compute dtype, for a loss of your own.

        Gradients flow into every parameter but those of the MTP layers; the routers' choices have none, their weights
        do. All logits are in memory at once, with their gradient; training itself never makes them (see
        `CrossEntropyHead`). `documents` tells which tokens see each other; None makes each row one document.
        """
        output = self(ModelInputs.whole(ids_BS, documents), with_mtp=False)
        return cast(Tensor, output.main).unflatten(0, ids_BS.shape)


class _LayerContext(NamedTuple):
    """What all layers know of their tokens."""

    rope: Rope
    attend: Attend
    rows: Rows
    noise: TokenNoise | None
    map_noise: TokenNoise | None
    routing: Routing | None
    adapters: bool

    def of_layer(self, layer: DecoderLayer, num_dense: int) -> LayerTokens:
        dropout = None if self.noise is None else self.noise.of_layer(layer.self_attn.layer)
        adapters = None if self.map_noise is None else self.map_noise.of_adapters(layer.self_attn.layer)
        given_TK = None
        if self.routing is not None and isinstance(layer.mlp, MoE):
            given_TK = self.routing.of_layer(layer.self_attn.layer - num_dense)
        return LayerTokens(self.rope, self.attend, self.rows, dropout, adapters, given_TK, self.adapters)


def _cut(x_TD: Tensor, num_parts: int) -> Sequence[Tensor]:
    return x_TD.chunk(num_parts) if num_parts > 1 else [x_TD]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


class _StatsCollector:
    """Gathers what the routers report (and what the auxiliary loss needs, if requested) over the layers."""

    def __init__(self, config: ModelConfig, rows: Rows, with_aux_loss: bool, with_routing: bool) -> None:
        self.config, self.rows, self.with_aux_loss, self.with_routing = config, rows, with_aux_loss, with_routing
        self.experts: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.dropped: list[Tensor] = []
        self.balance: list[RowBalance] = []

    def add(self, outputs: Sequence[LayerOutput], rows: Sequence[Rows]) -> None:
        """Of one layer, what it gave of all tokens or of each half; `rows` are each one's."""
        balance: list[RowBalance] = []
        if self.with_routing and outputs[0].experts_TK is not None:
            self.experts.append(_joined([output.experts_TK for output in outputs if output.experts_TK is not None]))
        for index, (output, of_output) in enumerate(zip(outputs, rows, strict=True)):
            if output.counts_E is None or output.dropped_E is None or output.scores_TE is None:
                return
            if index:
                self.counts[-1] = self.counts[-1] + output.counts_E
                self.dropped[-1] = self.dropped[-1] + output.dropped_E
            else:
                self.counts.append(output.counts_E)
                self.dropped.append(output.dropped_E)
            if self.with_aux_loss:
                balance.append(row_balance(output.scores_TE, of_output, self.config.num_experts_per_tok))
        if balance:
            self.balance.append(RowBalance(*(_joined(parts) for parts in zip(*balance, strict=True))))

    def result(self, device: torch.device) -> RouterStats:
        none = torch.zeros((0, self.config.n_routed_experts), dtype=torch.int64, device=device)
        aux_loss = torch.zeros((), device=device)
        if self.balance:
            aux_loss = sequence_balance_loss(self.balance, self.rows, self.config.num_experts_per_tok)
        return RouterStats(
            torch.stack(self.counts) if self.counts else none,
            torch.stack(self.dropped) if self.dropped else none,
            aux_loss,
            torch.stack(self.experts, dim=1) if self.experts else None,
        )
