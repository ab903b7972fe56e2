"""The next token of each sequence from its logits.

Logits pass through the request's rules (`rules.py`) and filters (`filters.py`); one uniform number then picks a token
by the cumulative probabilities. That number is a function of the request's seed, the number of the sample and the
place of the token, so it is the same whatever else is in the batch.

Sums over a large vocabulary are made in two steps, blocks first and then inside the one that is hit: a cumulative sum
over all of it takes several times as long. On a CPU a few rows at a time go through all that is done to them, so that
they stay in its cache.

Shapes: L places, V vocab_size, S of them that are not greedy, N blocks of B tokens.
"""

from collections import abc
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.generate.filters import keep_likeliest_
from glmforge.generate.logprobs import TokenLogprob, token_logprobs
from glmforge.generate.rules import apply_rules_
from glmforge.generate.sequence import Place
from glmforge.kernels.random import fold

_BLOCK_TOKENS = 256
_CACHED_LOGITS = 2**19
"""Logits that a core of a CPU has in its cache."""


class Chosen(NamedTuple):
    """A token, and its log-probability if the request asks for it."""

    token: int
    logprob: TokenLogprob | None = None


def choose_tokens(logits_LV: Tensor, places: abc.Sequence[Place]) -> list[Chosen]:
    """A token for each row. Overwrites the logits."""
    num_rows = len(places)
    if logits_LV.device.type == "cpu":
        num_rows = max(1, _CACHED_LOGITS * torch.get_num_threads() // logits_LV.shape[1])
    starts = range(0, len(places), num_rows)
    parts = zip(logits_LV.split(num_rows), (places[start : start + num_rows] for start in starts), strict=True)
    return list(chain.from_iterable(_choose_at_once(*part) for part in parts))


def _choose_at_once(logits_LV: Tensor, places: abc.Sequence[Place]) -> list[Chosen]:
    told = [row for row, place in enumerate(places) if place.params.logprobs is not None]
    unchanged_LV = logits_LV[told] if told else None  # a copy
    adjust_(logits_LV, places)
    tokens = _choose(logits_LV, places)
    if unchanged_LV is None:
        return [Chosen(token) for token in tokens]
    logprobs = place_logprobs(unchanged_LV, [places[row] for row in told], [tokens[row] for row in told])
    by_row = dict(zip(told, logprobs, strict=True))
    return [Chosen(token, by_row.get(row)) for row, token in enumerate(tokens)]


def place_logprobs(logits_LV: Tensor, places: abc.Sequence[Place], tokens: abc.Sequence[int]) -> list[TokenLogprob]:
    """What the requests ask to be told of `tokens`, from logits that nothing has changed."""
    params = [place.params for place in places]
    return token_logprobs(logits_LV, [one.temperature for one in params], tokens, [one.logprobs or 0 for one in params])


def adjust_(logits_LV: Tensor, places: abc.Sequence[Place]) -> None:
    """Change the logits in place: their softmax is what tokens are drawn from.

    Rows of temperature 0 pass through the rules alone; their largest logit is the token.
    """
    apply_rules_(logits_LV, places)
    temperatures = [place.params.temperature for place in places]
    if any(heat not in (0, 1) for heat in temperatures):
        heat_L = torch.tensor([heat or 1.0 for heat in temperatures], dtype=logits_LV.dtype, device=logits_LV.device)
        logits_LV /= heat_L[:, None]
    keep_likeliest_(logits_LV, [place.params for place in places])


def probabilities(logits_LV: Tensor, places: abc.Sequence[Place]) -> Tensor:
    """probabilities_LV of the next token at each place; 1 for the likeliest one under temperature 0.

    Overwrites the logits.
    """
    adjust_(logits_LV, places)
    probabilities_LV = logits_LV.softmax(dim=-1)
    greedy = [row for row, place in enumerate(places) if place.params.temperature == 0]
    if greedy:
        likeliest = logits_LV[greedy].argmax(dim=-1)
        probabilities_LV[greedy] = F.one_hot(likeliest, logits_LV.shape[1]).to(probabilities_LV.dtype)
    return probabilities_LV


def uniform(places: abc.Sequence[Place], purpose: int = 0) -> Tensor:
    """float64 [L] in [0, 1), on the CPU: the numbers that decide at these places, others for each purpose."""
    columns = zip(*((one.sequence.request.seed, one.sequence.sample, one.number) for one in places), strict=True)
    seeds, samples, numbers = (torch.tensor(column) for column in columns)
    bits_L = fold(fold(seeds, samples), numbers)
    bits_L = bits_L if purpose == 0 else fold(bits_L, purpose)
    return ((bits_L >> 11) & (2**53 - 1)).double().mul(2.0**-53)


def draw(weights_LV: Tensor, uniform_L: Tensor) -> Tensor:
    """int64 [L]: token v with probability `weights_v / sum(weights)`, decided by a number in [0, 1) for each row.

    No token of weight 0 is drawn; every row has another one.
    """
    num_missing = -weights_LV.shape[1] % _BLOCK_TOKENS
    padded = F.pad(weights_LV, (0, num_missing)) if num_missing else weights_LV
    blocks_LNB = padded.unflatten(1, (-1, _BLOCK_TOKENS))
    ends_LN = blocks_LNB.sum(dim=-1).double().cumsum(dim=-1)
    target_L = uniform_L.to(ends_LN.device) * ends_LN[:, -1]
    block_L = _first_beyond(ends_LN, target_L)
    rows_L = torch.arange(len(ends_LN), device=ends_LN.device)
    inside_LB = blocks_LNB[rows_L, block_L].double().cumsum(dim=-1)
    before_L = ends_LN[rows_L, block_L] - inside_LB[:, -1]
    return block_L * _BLOCK_TOKENS + _first_beyond(inside_LB, (target_L - before_L).clamp(min=0))


def _choose(logits_LV: Tensor, places: abc.Sequence[Place]) -> list[int]:
    drawn = [row for row, place in enumerate(places) if place.params.temperature > 0]
    if not drawn:
        return logits_LV.argmax(dim=-1).tolist()
    some_SV = logits_LV if len(drawn) == len(places) else logits_LV[drawn]
    weights_SV = some_SV.sub_(some_SV.amax(dim=-1, keepdim=True)).exp_()
    tokens_S = draw(weights_SV, uniform([places[row] for row in drawn]))
    if len(drawn) == len(places):
        return tokens_S.tolist()
    tokens_L = logits_LV.argmax(dim=-1)  # rows that are drawn from are a copy above
    tokens_L[drawn] = tokens_S
    return tokens_L.tolist()


def _first_beyond(ends_LN: Tensor, target_L: Tensor) -> Tensor:
    """The first entry above the target; where rounding leaves none, the first one that equals the last."""
    found_L2 = [
        torch.searchsorted(ends_LN, target_L[:, None], right=True),
        torch.searchsorted(ends_LN, ends_LN[:, -1:].contiguous()),
    ]
    return torch.minimum(*found_L2).squeeze(1)
