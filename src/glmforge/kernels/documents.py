"""Where the documents of a packed batch begin and end.

Training packs documents of different lengths into rows, and attention must not look across a border. Every
attention backend needs the borders in its own form: as lengths on the host (to slice or batch documents on the
CPU), as cumulative offsets on the device (variable-length kernels), as an id per token (a block mask). They are
made once per batch here, so that no layer of the model has to ask the device for a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from glmforge.kernels.block_mask import interval_block_mask
from glmforge.kernels.transfer import on_device


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of T flattened tokens, in order and without gaps. Padding is a document like any other.

    Attributes:
        cu_seqlens: int32 [n + 1], document i holds tokens [cu_seqlens[i], cu_seqlens[i + 1]).
        lengths: the n document lengths, on the host.
        positions_T: int64 [T], each token's position inside its document, what RoPE rotates by.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    positions_T: Tensor

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: torch.device | str | None = None) -> "Documents":
        """Documents of the given lengths (each at least 1), with their tensors on `device`.

        Only the borders are copied there, and nothing waits for it.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"documents need one length or more, each at least 1; got {list(lengths)}")
        borders = on_device([0, *accumulate(lengths)], device, torch.int64)
        starts_T = borders[:-1].repeat_interleave(borders.diff(), output_size=sum(lengths))
        positions_T = torch.arange(len(starts_T), device=device) - starts_T
        return cls(borders.to(torch.int32), tuple(lengths), positions_T)

    def halves(self) -> tuple["Documents", "Documents"]:
        """Those of the first and of the second half of the tokens, where a document ends in the middle."""
        middle = self.num_tokens // 2
        ends = list(accumulate(self.lengths))
        assert middle in ends, "a document crosses the middle"
        num_first = ends.index(middle) + 1
        first_T, second_T = self.positions_T.split(middle)
        first, second = self.cu_seqlens[: num_first + 1], self.cu_seqlens[num_first:] - middle
        return (
            Documents(first, self.lengths[:num_first], first_T),
            Documents(second, self.lengths[num_first:], second_T),
        )

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def max_length(self) -> int:
        return max(self.lengths)

    @cached_property
    def block_mask(self) -> BlockMask:
        """FlexAttention's mask, T x T; one serves all layers and their recomputation."""
        places_T = torch.arange(len(self.positions_T), device=self.positions_T.device)
        return interval_block_mask(places_T - self.positions_T, places_T, len(places_T))

    def ids_T(self) -> Tensor:
        """int64 [T]: which document each token belongs to."""
        starts_T = (self.positions_T == 0).to(torch.int64)
        return starts_T.cumsum(0) - 1

    def continues_T(self, offset: int) -> Tensor:
        """bool [T]: whether the token `offset` places later belongs to the same document."""
        ids_T = self.ids_T()
        later_T = ids_T.roll(-offset)
        later_T[-offset:] = -1
        return later_T == ids_T
