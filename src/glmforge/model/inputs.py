"""What a forward pass reads: the tokens of a micro-batch and all that the model must know of them.

A micro-batch is B rows of S tokens with documents packed in each row. The model sees T flattened tokens: all of them,
or, where ranks share each row, the ones that lie on this rank, in whatever order. So nothing in the model may assume
that neighbours in memory are neighbours in the text: positions, the tokens to come and the row of each token are
given, and attention is the caller's function.

Shapes: B rows, S tokens per row, T tokens on this rank, N multi-token-prediction depths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents

if TYPE_CHECKING:
    from glmforge.model.attention import Attend, Attention

NO_TOKEN = -1
"""The id of a token that does not exist: its embedding is zero."""


class DocumentAttention:
    """Causal attention inside the packed documents of one batch: what training and scoring attend with."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents

    @torch.compiler.disable
    def __call__(self, module: "Attention", q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor) -> Tensor:
        return attention(q_THP, k_TGP, v_TGP, self.documents)


@dataclass(frozen=True, eq=False)
class Rows:
    """Which row each token that a router sees belongs to, for losses that are means over rows.

    `sum` adds up a tensor over the ranks that share the rows (nothing to do where rows are whole).
    """

    row_T: Tensor
    num_rows: int
    seq_len: int
    sum: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def one_hot_BT(self, dtype: torch.dtype) -> Tensor:
        """1 where token t belongs to row b. A product with it sums over rows in a fixed order."""
        rows_B1 = torch.arange(self.num_rows, device=self.row_T.device)[:, None]
        return (self.row_T == rows_B1).to(dtype)


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The tokens of a micro-batch that this rank runs.

    Attributes:
        ids_T: int64 token ids.
        next_ids_NT: int64, the token n = 1, 2, ... places after each, `NO_TOKEN` past the end of its document.
        positions_T: int64, positions inside the documents.
        rows: of the tokens that the routers see.
        attend: how queries meet keys.
    """

    ids_T: Tensor
    next_ids_NT: Tensor
    positions_T: Tensor
    rows: Rows
    attend: "Attend"

    @classmethod
    def whole(cls, ids_BS: Tensor, documents: Documents | None = None, num_mtp_layers: int = 0) -> "ModelInputs":
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
            DocumentAttention(documents),
        )


def next_ids(ids_T: Tensor, documents: Documents, depth: int) -> Tensor:
    """[depth, T]: the tokens 1 to `depth` places later in the same document, `NO_TOKEN` past its end."""
    later = [ids_T.roll(-n).masked_fill(~documents.continues_T(n), NO_TOKEN) for n in range(1, depth + 1)]
    return torch.stack(later) if later else ids_T.new_empty(0, len(ids_T))
