"""The tokens of one step as tensors, and what the model says of them.

Shapes: T tokens, R sequences, L tokens whose logits are wanted, V vocab_size.
"""

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.generate.scheduler import Work
from glmforge.generate.sequence import Sequence
from glmforge.kernels.paged_attention import PagedTokens


class Span(NamedTuple):
    """Tokens `ids` of a sequence that has `pages`, the first one at the position `start`; of the last `num_wanted` the
    logits are wanted."""

    pages: abc.Sequence[int]
    start: int
    ids: abc.Sequence[int]
    num_wanted: int


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


def step_tokens(steps: abc.Sequence[Work], page_size: int, device: torch.device) -> StepTokens:
    """The tokens of `steps`, sequence after sequence."""
    wants_experts = any(work.sequence.request.params.experts for work in steps)
    return span_tokens([_span(work) for work in steps], page_size, device, wants_experts=wants_experts)


def span_tokens(
    spans: abc.Sequence[Span], page_size: int, device: torch.device, *, wants_experts: bool = False
) -> StepTokens:
    """The tokens of `spans`, each of another sequence."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    starts, lengths = [0], []
    for span in spans:
        stop = span.start + len(span.ids)
        ids += span.ids
        positions += range(span.start, stop)
        slots += (span.pages[at // page_size] * page_size + at % page_size for at in range(span.start, stop))
        starts.append(len(ids))
        wanted += range(len(ids) - span.num_wanted, len(ids))
        lengths.append(stop)
    most = max((len(span.pages) for span in spans), default=0)
    pages = [[*span.pages, *[0] * (most - len(span.pages))] for span in spans]

    def tensor(values: abc.Sequence[int] | list[list[int]], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    counts = tuple(len(span.ids) for span in spans)
    int32 = torch.int32
    paged = PagedTokens(
        tensor(starts, int32), tensor(lengths, int32), tensor(pages, int32), tensor(slots), counts, tuple(lengths)
    )
    return StepTokens(tensor(ids), tensor(positions), paged, tensor(wanted), wants_experts)


def logits_rows(steps: abc.Sequence[Work]) -> dict[Sequence, int]:
    """For each sequence that is computed to its end, the row of logits after its last token; its drafts' follow."""
    rows, row = {}, 0
    for work in steps:
        num_wanted = work.num_wanted
        if work.completes:
            rows[work.sequence] = row + num_wanted - work.num_places
        row += num_wanted
    return rows


def _span(work: Work) -> Span:
    sequence, num_tokens = work
    start, stop = sequence.num_cached, sequence.num_cached + num_tokens
    num_drafts = max(0, stop - len(sequence.tokens))
    ids = sequence.tokens[start:stop] + sequence.drafts[:num_drafts]
    return Span(sequence.pages, start, ids, work.num_wanted)
