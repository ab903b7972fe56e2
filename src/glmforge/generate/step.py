"""The tokens of one step as tensors, and what the model says of them.

Shapes: T tokens, R sequences, L tokens whose logits are wanted, V vocab_size.
"""

import itertools
from collections import abc
from dataclasses import dataclass, replace
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
        adapters: of each sequence; see `adapters`.
    """

    ids_T: Tensor
    positions_T: Tensor
    paged: PagedTokens
    wanted_L: Tensor
    wants_experts: bool = False
    adapters: tuple[str | None, ...] = ()


def step_tokens(steps: abc.Sequence[Work], page_size: int, device: torch.device) -> StepTokens:
    """The tokens of `steps`, sequence after sequence."""
    wants_experts = any(work.sequence.request.params.experts for work in steps)
    adapters = tuple(work.sequence.request.adapter for work in steps)
    tokens = span_tokens([_span(work) for work in steps], page_size, device, wants_experts=wants_experts)
    return replace(tokens, adapters=adapters)


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


def of_sequences(tokens: StepTokens, places: abc.Sequence[int]) -> tuple[StepTokens, Tensor, Tensor]:
    """Those of some sequences alone, in this order; where they stand among all tokens, and among the wanted ones."""
    paged, device = tokens.paged, tokens.ids_T.device
    counts, lengths = (tuple(numbers[place] for place in places) for numbers in (paged.counts, paged.lengths))
    begins = [0, *itertools.accumulate(paged.counts)]
    rows_t = torch.tensor([row for place in places for row in range(begins[place], begins[place + 1])], device=device)
    at_T = torch.full_like(tokens.ids_T, -1)  # where in the part each token is
    at_T[rows_t] = torch.arange(len(rows_t), device=device)
    places_L = at_T[tokens.wanted_L]
    wanted_l = places_L.argsort()[int((places_L < 0).sum()) :]
    part = StepTokens(
        tokens.ids_T[rows_t],
        tokens.positions_T[rows_t],
        PagedTokens(
            torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device=device),
            paged.lengths_R[list(places)],
            paged.pages_RM[list(places)],
            paged.slots_T[rows_t],
            counts,
            lengths,
        ),
        places_L[wanted_l],
        tokens.wants_experts,
        tuple(tokens.adapters[place] for place in places),
    )
    return part, rows_t, wanted_l


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
