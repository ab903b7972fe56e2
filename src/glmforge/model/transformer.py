"""The GLM MoE as plain modules for one device: embedding, decoder layers, MTP layers, head.

Parameter names are those of the published checkpoints in transformers' packed form, so weights need no name map:
`model.embed_tokens`, `model.layers.{l}...` (MTP layers follow the trunk's), `model.norm`, `lm_head`.

The forward works on T = B * S flattened tokens of packed documents and never makes logits by itself: what
happens to the hidden states is the caller's `head` (logits, a chunked cross-entropy, log-probabilities, a reward),
called inside the forward so that a sharded engine has the head's weights at hand.

Shapes: B rows, S tokens per row, T = B * S, D hidden_size, V vocab_size, L MoE layers, E experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.model.attention import Attend, Attention
from glmforge.model.block import DecoderLayer, LayerOutput, MTPLayer
from glmforge.model.generate import generate
from glmforge.model.init import initialize
from glmforge.model.layers import Embedding, Linear, RMSNorm
from glmforge.model.rope import Rope
from glmforge.model.router import sequence_balance_loss

T = TypeVar("T")
Head = Callable[[Tensor, Tensor, int], T]
"""`head(h_TD, lm_head_weight_VD, depth)`; depth 0 is the next token, depth n the n-th token after it."""


@dataclass(frozen=True)
class RouterStats:
    """What the routers did: `counts_LE` int64 tokens per expert of every MoE layer (MTP layers last) and the
    sequence-level auxiliary loss summed over layers and rows (fp32 scalar, 0 when not asked for)."""

    counts_LE: Tensor
    aux_loss: Tensor


@dataclass(frozen=True)
class ForwardOutput(Generic[T]):
    """What `head` made of the trunk (`main`) and of each MTP depth (`mtp`), and the routers' statistics."""

    main: T
    mtp: tuple[T, ...]
    router: RouterStats


def logits_head(h_TD: Tensor, weight_VD: Tensor, depth: int) -> Tensor:
    """Logits [T, V] in the compute dtype."""
    return F.linear(h_TD, weight_VD.to(h_TD.dtype))


class DocumentAttention:
    """Causal attention inside the packed documents of one batch: what training and scoring attend with."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents

    @torch.compiler.disable
    def __call__(self, module: Attention, q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor) -> Tensor:
        return attention(q_THP, k_TGP, v_TGP, self.documents)


class Trunk(nn.Module):
    """Published name `model`: embedding, all layers (the MTP layers last) and the final norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        num_layers = config.num_hidden_layers
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(num_layers)])
        self.layers.extend(MTPLayer(config, num_layers + i) for i in range(config.num_nextn_predict_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class GlmMoe(nn.Module):
    """The language model. `compute_dtype` is that of the activations; weights are cast to it where they are used."""

    def __init__(self, config: ModelConfig) -> None:
        """Build with uninitialised weights (use `GlmMoe.create`, or load a checkpoint into it)."""
        super().__init__()
        self.config = config
        self.rope_theta = config.rope_theta
        self.compute_dtype = torch.float32
        self.model = Trunk(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)

    @classmethod
    def create(cls, config: ModelConfig, seed: int = 0) -> Self:
        """A freshly initialised fp32 model; the weights depend on `seed` and names only."""
        model = cls(config)
        initialize(model, seed, config.initializer_range)
        return model

    @property
    def trunk_layers(self) -> Sequence[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.model.layers)[: self.config.num_hidden_layers])

    @property
    def mtp_layers(self) -> Sequence[MTPLayer]:
        return cast(list[MTPLayer], list(self.model.layers)[self.config.num_hidden_layers :])

    def forward(
        self,
        ids_BS: Tensor,
        documents: Documents | None = None,
        *,
        head: Head[T] = logits_head,  # type: ignore[assignment]
        with_mtp: bool = True,
        with_aux_loss: bool = False,
    ) -> ForwardOutput[T]:
        """Run all layers over packed documents (`None`: each row is one document)."""
        num_rows, seq_len = ids_BS.shape
        documents = documents or Documents.from_lengths([seq_len] * num_rows, device=ids_BS.device)
        attend = DocumentAttention(documents)
        rope = self.rope(documents.positions_T)
        ids_T = ids_BS.flatten()
        stats = _StatsCollector(self.config, num_rows if with_aux_loss else None)

        embedded_TD = self.embed(ids_T)
        h_TD = self.model.norm(self.run_trunk(embedded_TD, rope, attend, stats.add))
        main = head(h_TD, self.lm_head.weight, 0)
        mtp = []
        for depth, layer in enumerate(self.mtp_layers if with_mtp else (), start=1):
            # Position t reads the embedding of token t + depth, or zeros past the end of its document: no label
            # asks for that position, but what is routed there must not depend on who its neighbours are.
            past_end_T1 = ~documents.continues_T(depth)[:, None]
            next_TD = embedded_TD.roll(-depth, dims=0).masked_fill(past_end_T1, 0)
            output = layer(h_TD, rope, attend, next_TD)
            stats.add(output)
            h_TD = output.x_TD
            mtp.append(head(h_TD, self.lm_head.weight, depth))
        return ForwardOutput(main, tuple(mtp), stats.result(ids_BS.device))

    def embed(self, ids_T: Tensor) -> Tensor:
        """Embeddings `[T, D]` in the compute dtype."""
        return self.model.embed_tokens(ids_T).to(self.compute_dtype)

    def rope(self, positions_T: Tensor) -> Rope:
        """Rotation of tokens at these positions with the current base."""
        return Rope.at(positions_T, self.config.rotary_dim, self.rope_theta, self.compute_dtype)

    def run_trunk(
        self, x_TD: Tensor, rope: Rope, attend: Attend, observe: Callable[[LayerOutput], None] | None = None
    ) -> Tensor:
        """The trunk's layers without embedding and final norm; `observe` sees every layer's output."""
        for layer in self.trunk_layers:
            output = layer(x_TD, rope, attend)
            x_TD = output.x_TD
            if observe is not None:
                observe(output)
        return x_TD

    @torch.no_grad()
    def logits(self, ids_BS: Tensor) -> Tensor:
        """Next-token logits `[B, S, V]` of full rows (no padding), in the compute dtype."""
        output = self(ids_BS, with_mtp=False)
        return output.main.unflatten(0, ids_BS.shape)

    def generate(self, ids: Tensor | Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """New tokens for every prompt (rows of a tensor, or lists of different length); see `generate.generate`."""
        return generate(self, ids.tolist() if isinstance(ids, Tensor) else ids, **options)


class _StatsCollector:
    """Gathers router counts (and the auxiliary loss, when the number of rows is given) over the layers."""

    def __init__(self, config: ModelConfig, num_rows: int | None) -> None:
        self.config = config
        self.num_rows = num_rows
        self.counts: list[Tensor] = []
        self.aux_losses: list[Tensor] = []

    def add(self, output: LayerOutput) -> None:
        if output.counts_E is None or output.scores_TE is None:
            return
        self.counts.append(output.counts_E)
        if self.num_rows is not None:
            k = self.config.num_experts_per_tok
            self.aux_losses.append(sequence_balance_loss(output.scores_TE, self.num_rows, k))

    def result(self, device: torch.device) -> RouterStats:
        shape = (0, self.config.n_routed_experts)
        counts_LE = torch.stack(self.counts) if self.counts else torch.zeros(shape, dtype=torch.int64, device=device)
        aux_loss = torch.stack(self.aux_losses).sum() if self.aux_losses else torch.zeros((), device=device)
        return RouterStats(counts_LE, aux_loss)
