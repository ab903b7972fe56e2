"""The tokens of one step as tensors, and what the model says of them.

Shapes: T tokens, R sequences, L tokens whose logits are wanted, V vocab_size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.generate.scheduler import Work
from glmforge.kernels.paged_attention import PagedTokens


@dataclass(frozen=True, eq=False)
class StepTokens:
    """What a runner is given.

    Attributes:
        ids_T, positions_T: int64.
        paged: where they belong.
        wanted_L: int64, the tokens whose logits are wanted, in ascending order.
        wants_experts: whether the experts that they choose are.
    """

    ids_T: Tensor
    positions_T: Tensor
    paged: PagedTokens
    wanted_L: Tensor
    wants_experts: bool = False


def step_tokens(steps: Sequence[Work], page_size: int, device: torch.device) -> StepTokens:
    """The tokens of `steps`, sequence after sequence."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    starts, lengths = [0], []
    for work in steps:
        sequence, num_tokens = work
        start, stop = sequence.num_cached, sequence.num_cached + num_tokens
        ids += sequence.tokens[start:stop]
        positions += range(start, stop)
        slots += (sequence.pages[at // page_size] * page_size + at % page_size for at in range(start, stop))
        starts.append(len(ids))
        wanted += range(len(ids) - work.num_wanted, len(ids))
        lengths.append(stop)
    most = max((len(sequence.pages) for sequence, _ in steps), default=0)
    pages = [sequence.pages + [0] * (most - len(sequence.pages)) for sequence, _ in steps]

    def tensor(values: Sequence[int] | list[list[int]], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    counts = tuple(num_tokens for _, num_tokens in steps)
    int32 = torch.int32
    paged = PagedTokens(
        tensor(starts, int32), tensor(lengths, int32), tensor(pages, int32), tensor(slots), counts, tuple(lengths)
    )
    wants_experts = any(work.sequence.request.params.experts for work in steps)
    return StepTokens(tensor(ids), tensor(positions), paged, tensor(wanted), wants_experts)
