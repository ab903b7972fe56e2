"""What a forward pass reads: the tokens of a micro-batch and all that the model must know of them.

A micro-batch is B rows of S tokens with documents packed in each row. The model sees T flattened tokens: all of them,
or, where ranks share each row, the ones that lie on this rank, in any order. So nothing in the model may assume
that neighbours in memory are neighbours in the text: positions, the tokens to come and the row of each token are
given, and attention is the caller's function.

Shapes: B rows, S tokens per row, T tokens on this rank, N multi-token-prediction depths.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glmforge.config.model import ModelConfig
from glmforge.kernels.attention import attention
from glmforge.kernels.attention_dropout import attention_with_dropout
from glmforge.kernels.documents import Documents
from glmforge.kernels.sinkhorn import sum_over_groups
from glmforge.model.dropout import TokenNoise

if TYPE_CHECKING:
    from glmforge.model.attention import Attend, Attention

NO_TOKEN = -1
"""The id of a token that does not exist: its embedding is zero."""


class DocumentAttention:
    """Causal attention inside the packed documents of one batch: what training and scoring attend with.

    A module in training drops probabilities as `noise`, of all these tokens, says. `part` is the number of the part of
    the heads that this rank has, where ranks share them.
    """

    def __init__(self, documents: Documents, noise: TokenNoise | None = None, part: int = 0) -> None:
        self.documents, self.part = documents, part
        self.noise = noise if noise is not None and noise.step.attention_dropout else None

    # For compiling a whole model: its kernels are chosen by the documents' lengths.
    @torch.compiler.disable
    def __call__(self, module: "Attention", q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor) -> Tensor:
        if self.noise is None or not module.training:
            return attention(q_THP, k_TGP, v_TGP, self.documents, implementation=module.kernels.attention)
        num_heads = q_THP.shape[1]
        heads = range(self.part * num_heads, (self.part + 1) * num_heads)
        streams_TH = self.noise.of_attention(module.layer, heads)
        return attention_with_dropout(
            q_THP, k_TGP, v_TGP, self.documents, streams_TH, self.noise.step.attention_dropout
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Which row each token that a router sees belongs to, for losses and routing that look at whole rows.

    `groups` names the process groups that share the rows between them, none where rows are whole.
    """

    row_T: Tensor
    num_rows: int
    seq_len: int
    groups: tuple[str, ...] = ()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks that share the rows; no gradient flows through it."""
        return sum_over_groups(tensor, self.groups)

    def one_hot_BT(self, dtype: torch.dtype) -> Tensor:
        """1 where token t belongs to row b. A product with it sums over rows in a fixed order."""
        rows_B1 = torch.arange(self.num_rows, device=self.row_T.device)[:, None]
        return (self.row_T == rows_B1).to(dtype)


@dataclass(frozen=True, eq=False)
class Routing:
    """Experts that are given to the routers instead of chosen by them: the routing of another forward, replayed.

    In RL the engine that made a rollout and the model that trains on it differ by rounding, which sends some tokens to
    other experts; with the engine's choice both compute the same function. Counts of tokens, capacity and correction
    biases go by the experts that are taken; the auxiliary loss goes by scores, and so by the router's own preference.

    Attributes:
        experts_TLK: integers, of the tokens that the routers see. L is the MoE layers of the trunk, or of the whole
            model, MTP layers last: layers beyond L choose for themselves, as does a token whose first expert is -1.
    """

    experts_TLK: Tensor

    def of_layer(self, number: int) -> Tensor | None:
        """int64 [T, K] of a MoE layer by its number among all of the model; None if it chooses for itself."""
        return self.experts_TLK[:, number].long() if number < self.experts_TLK.shape[1] else None

    def check(self, config: ModelConfig, num_tokens: int) -> None:
        """Raises ValueError if these are not experts of this many tokens in such a model; their values are not read."""
        shape, num_trunk = list(self.experts_TLK.shape), config.num_moe_layers
        numbers = dict.fromkeys((num_trunk, num_trunk + config.num_nextn_predict_layers))
        fitting = [[num_tokens, number, config.num_experts_per_tok] for number in numbers]
        if shape not in fitting or self.experts_TLK.is_floating_point():
            dtype = str(self.experts_TLK.dtype).removeprefix("torch.")
            expected = " or ".join(map(str, fitting))
            raise ValueError(f"routing: experts are {dtype} {shape}; pass integers {expected}")


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The tokens of a micro-batch that this rank runs.

    Attributes:
        ids_T: int64 token ids.
        next_ids_NT: int64, the token n = 1, 2, ... places after each, `NO_TOKEN` past the end of its document.
        positions_T: int64, positions inside the documents.
        rows: of the tokens that the routers see.
        attend: how queries meet keys.
        noise: of the tokens as the residual stream has them, for dropout in training; None drops nothing there.
        map_noise: the same of the tokens as linear maps read them.
        halves: the first and the second half of the tokens, passed to layers instead if they are to take them
            in turn (see `glmforge.model.block`); their tokens to come are omitted.
        routing: the experts that tokens take; None lets the routers choose.
        adapters: whether adapters count (see `glmforge.adapt.lora`). Without them the base model answers.
    """

    ids_T: Tensor
    next_ids_NT: Tensor
    positions_T: Tensor
    rows: Rows
    attend: "Attend"
    noise: TokenNoise | None = None
    map_noise: TokenNoise | None = None
    halves: tuple["ModelInputs", ...] = ()
    routing: Routing | None = None
    adapters: bool = True

    @classmethod
    def whole(
        cls,
        ids_BS: Tensor,
        documents: Documents | None = None,
        num_mtp_layers: int = 0,
        noise: TokenNoise | None = None,
    ) -> "ModelInputs":
        """All tokens of the rows (`documents` None: each row is one document)."""
        num_rows, seq_len = ids_BS.shape
        documents = documents or Documents.from_lengths([seq_len] * num_rows, device=ids_BS.device)
        ids_T = ids_BS.flatten()
        row_T = torch.arange(num_rows, device=ids_BS.device).repeat_interleave(seq_len, output_size=len(ids_T))
        return cls(
            ids_T,
            next_ids(ids_T, documents, num_mtp_layers),
            documents.positions_T,
            Rows(row_T, num_rows, seq_len),
            DocumentAttention(documents, noise),
            noise,
            noise,
        )


def next_ids(ids_T: Tensor, documents: Documents, depth: int) -> Tensor:
    """[depth, T]: the tokens 1 to `depth` places later in the same document, `NO_TOKEN` past its end."""
    later = [ids_T.roll(-n).masked_fill(~documents.continues_T(n), NO_TOKEN) for n in range(1, depth + 1)]
    return torch.stack(later) if later else ids_T.new_empty(0, len(ids_T))
