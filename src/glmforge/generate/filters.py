"""Which of the likely tokens may be drawn: min-p, top-k and top-p.

Each comes down to a least logit for its row. Tokens that are as likely as the last one kept are kept with it, so what
remains follows from the values alone, in any order equal ones are found.

Top-p needs the likeliest tokens in order, yet to sort a vocabulary of 150,000 takes about ten milliseconds a row.
Trained models put nearly all probability on a few hundred tokens: those are looked at first, and a row is sorted only
where they do not suffice.

Shapes: L rows, V vocab_size, R rows with a filter, K candidates.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from glmforge.generate.params import SamplingParams

_NUM_CANDIDATES = 512

_Filtered = list[tuple[int, SamplingParams]]
"""Rows with what filters them."""


def keep_likeliest_(logits_LV: Tensor, params: Sequence[SamplingParams]) -> None:
    """Set the logits of tokens that may not be drawn to -inf, in place; rows of temperature 0 are left alone."""
    drawn = [(row, one) for row, one in enumerate(params) if one.temperature > 0]
    _keep_by_min_p_(logits_LV, [(row, one) for row, one in drawn if one.min_p > 0])
    _keep_first_(logits_LV, [(row, one) for row, one in drawn if one.top_k or one.top_p < 1], _NUM_CANDIDATES)


def _keep_by_min_p_(logits_LV: Tensor, filtered: _Filtered) -> None:
    if filtered:
        some_RV = _rows(logits_LV, filtered)
        shares_R = _column([math.log(one.min_p) for _, one in filtered], some_RV)
        _drop_below_(logits_LV, filtered, some_RV.amax(dim=-1) + shares_R)


def _keep_first_(logits_LV: Tensor, filtered: _Filtered, num_candidates: int) -> None:
    """Keep the first `top_k` of the likeliest, and of those as many as `top_p` needs."""
    if not filtered:
        return
    if all(one.top_k for _, one in filtered):
        num_candidates = 0
    num_candidates = min(logits_LV.shape[1], max(num_candidates, *(one.top_k for _, one in filtered)))
    some_RV = _rows(logits_LV, filtered)
    least_R, suffices_R = _least_kept(some_RV, [one for _, one in filtered], num_candidates)
    suffices = suffices_R.tolist()
    enough = [place for place, enough in enumerate(suffices) if enough]
    _drop_below_(logits_LV, [filtered[place] for place in enough], least_R[enough])
    short = [one for one, enough in zip(filtered, suffices, strict=True) if not enough]
    _keep_first_(logits_LV, short, logits_LV.shape[1])


def _least_kept(some_RV: Tensor, params: Sequence[SamplingParams], num_candidates: int) -> tuple[Tensor, Tensor]:
    """The least logit that is kept in each row, and whether the candidates suffice to tell."""
    largest_RK = some_RV.topk(num_candidates, dim=-1).values
    top_k = torch.tensor([one.top_k or num_candidates for one in params], device=some_RV.device)
    ranks_K = torch.arange(num_candidates, device=some_RV.device)
    weights_RK = (largest_RK.double() - largest_RK[:, :1]).exp_().masked_fill_(ranks_K >= top_k[:, None], 0)
    ends_RK = weights_RK.cumsum(dim=-1)
    total_R = ends_RK[:, -1].clone()  # what top-p is a share of
    unlimited = [place for place, one in enumerate(params) if not one.top_k]
    if unlimited and num_candidates < some_RV.shape[1]:
        total_R[unlimited] = (some_RV[unlimited] - largest_RK[unlimited, :1]).exp_().sum(dim=-1, dtype=torch.float64)
    wanted_R = total_R * torch.tensor([one.top_p for one in params], dtype=torch.float64, device=some_RV.device)
    num_kept_R = ((ends_RK - weights_RK < wanted_R[:, None]) & (weights_RK > 0)).sum(dim=-1)
    least_R = largest_RK.gather(1, num_kept_R[:, None] - 1).squeeze(1)
    return least_R, ends_RK[:, -1] >= wanted_R


def _rows(logits_LV: Tensor, filtered: _Filtered) -> Tensor:
    """Of those rows; a copy only where there are others."""
    return logits_LV if len(filtered) == len(logits_LV) else logits_LV[[row for row, _ in filtered]]


def _drop_below_(logits_LV: Tensor, filtered: _Filtered, least_R: Tensor) -> None:
    if not filtered:
        return
    least_L = logits_LV.new_full((len(logits_LV),), float("-inf"))
    least_L[[row for row, _ in filtered]] = least_R
    logits_LV.masked_fill_(logits_LV < least_L[:, None], float("-inf"))


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
