"""The next token of each sequence from its logits.

Logits pass through the request's rules (`rules.py`) and filters (`filters.py`). Then a race decides: of independent
exponential times, one for each token with its probability for a rate, token v's is the first with just this probability
(the Gumbel-max trick in other words). Blocks of tokens race first, then the tokens of the block that has won, so that
a vocabulary of 150,000 needs less than a thousand random numbers. These are a function of the request's seed, the
number of the sample and the place of the token: they are independent of the rest of the batch.

A cumulative sum and one uniform number would do as well, but where two distributions differ a little it shifts all that
comes behind. In a race a token loses only to one that gained, so two similar distributions mostly give the same token
under the same random numbers: a drafter makes use of that (`speculate`; Daliri et al., 2024, arXiv 2408.07978).

On a CPU a few rows at a time go through all that is done to them, so that they stay in its cache.

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
from glmforge.generate.place import Place
from glmforge.generate.rules import apply_rules_
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
    scored = [row for row, place in enumerate(places) if place.params.logprobs is not None]
    unchanged_LV = logits_LV[scored] if scored else None  # a copy
    adjust_(logits_LV, places)
    tokens = _choose(logits_LV, places)
    if unchanged_LV is None:
        return [Chosen(token) for token in tokens]
    logprobs = place_logprobs(unchanged_LV, [places[row] for row in scored], [tokens[row] for row in scored])
    by_row = dict(zip(scored, logprobs, strict=True))
    return [Chosen(token, by_row.get(row)) for row, token in enumerate(tokens)]


def place_logprobs(logits_LV: Tensor, places: abc.Sequence[Place], tokens: abc.Sequence[int]) -> list[TokenLogprob]:
    """What the requests ask to know about `tokens`, from unmodified logits."""
    params = [place.params for place in places]
    named = [one.logprob_tokens for one in params]
    temperatures, num_top = [one.temperature for one in params], [one.logprobs or 0 for one in params]
    return token_logprobs(logits_LV, temperatures, tokens, num_top, named)


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


def streams(places: abc.Sequence[Place]) -> Tensor:
    """int64 [L], on the CPU: the streams of random numbers that decide at these places."""
    columns = zip(*((one.sequence.request.seed, one.sequence.sample, one.number) for one in places), strict=True)
    seeds, samples, numbers = (torch.tensor(column) for column in columns)
    return fold(fold(seeds, samples), numbers)


def draw(weights_LV: Tensor, streams_L: Tensor) -> Tensor:
    """int64 [L]: token v with probability `weights_v / sum(weights)`, decided by the stream of its row.

    No token of weight 0 is drawn; every row has another one.
    """
    num_missing = -weights_LV.shape[1] % _BLOCK_TOKENS
    padded = F.pad(weights_LV, (0, num_missing)) if num_missing else weights_LV
    blocks_LNB = padded.unflatten(1, (-1, _BLOCK_TOKENS))
    num_blocks = blocks_LNB.shape[1]
    noise = _exponential(streams_L.to(weights_LV.device), num_blocks + _BLOCK_TOKENS)
    block_L = (blocks_LNB.sum(dim=-1) / noise[:, :num_blocks]).argmax(dim=-1)
    rows_L = torch.arange(len(block_L), device=block_L.device)
    inside_L = (blocks_LNB[rows_L, block_L] / noise[:, num_blocks:]).argmax(dim=-1)
    return block_L * _BLOCK_TOKENS + inside_L


def _choose(logits_LV: Tensor, places: abc.Sequence[Place]) -> list[int]:
    drawn = [row for row, place in enumerate(places) if place.params.temperature > 0]
    if not drawn:
        return logits_LV.argmax(dim=-1).tolist()
    some_SV = logits_LV if len(drawn) == len(places) else logits_LV[drawn]
    weights_SV = some_SV.sub_(some_SV.amax(dim=-1, keepdim=True)).exp_()
    tokens_S = draw(weights_SV, streams([places[row] for row in drawn]))
    if len(drawn) == len(places):
        return tokens_S.tolist()
    tokens_L = logits_LV.argmax(dim=-1)  # rows that are drawn from are a copy above
    tokens_L[drawn] = tokens_S
    return tokens_L.tolist()


def _exponential(streams_L: Tensor, length: int) -> Tensor:
    """float64 [L, length]: the first times of each stream, exponential at rate 1, never 0."""
    bits = fold(streams_L[:, None], torch.arange(length, device=streams_L.device))
    uniform = ((bits >> 12) & (2**52 - 1)).double().add_(0.5).mul_(2.0**-52)  # neither 0 nor 1
    return uniform.log_().neg_()
