"""What requests ask of single tokens' logits: penalties, biases, and tokens that may not come.

Logits are changed in place. Work is done for the rows and tokens that a setting names; a batch without any costs
nothing.

Shapes: L rows, V vocab_size, N tokens of all rows that a setting names.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from glmforge.generate.place import Place

_NEVER = float("-inf")


def apply_rules_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    """Change the logits of each row as the request at its place asks."""
    _penalise_repetition_(logits_LV, places)
    _add_(logits_LV, places)
    _rule_out_(logits_LV, places)
    _limit_vocabulary_(logits_LV, places)
    _allow_only_(logits_LV, places)
    _end_thoughts_(logits_LV, places)


def _penalise_repetition_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    rows = [row for row, place in enumerate(places) if place.params.repetition_penalty != 1]
    if not rows:
        return
    ids = [
        torch.cat((places[row].sequence.request.prompt_ids, torch.tensor(places[row].answer, dtype=torch.int64)))
        for row in rows
    ]
    counts = torch.tensor([len(one) for one in ids])
    penalties = torch.tensor([places[row].params.repetition_penalty for row in rows], dtype=logits_LV.dtype)
    columns = torch.tensor(rows).repeat_interleave(counts), torch.cat(ids), penalties.repeat_interleave(counts)
    rows_N, ids_N, penalties_N = (column.to(logits_LV.device) for column in columns)
    seen_N = logits_LV[rows_N, ids_N]
    # A token that comes several times is written several times, each time with the same value.
    logits_LV[rows_N, ids_N] = torch.where(seen_N > 0, seen_N / penalties_N, seen_N * penalties_N)


def _add_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    """Frequency and presence penalties, and biases: a number for each token that has one."""
    added: list[tuple[int, int, float]] = []
    for row, place in enumerate(places):
        params = place.params
        if params.frequency_penalty or params.presence_penalty:
            added += (
                (row, token, -params.frequency_penalty * number - params.presence_penalty)
                for token, number in Counter(place.answer).items()
            )
        added += ((row, token, bias) for token, bias in params.logit_bias.items())
    if added:
        rows, ids, values = (torch.tensor(column, device=logits_LV.device) for column in zip(*added, strict=True))
        logits_LV.index_put_((rows, ids), values.to(logits_LV.dtype), accumulate=True)


def _rule_out_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    """Tokens that may not come: banned ones, and those that would end the answer too early."""
    banned: list[tuple[int, int]] = []
    for row, place in enumerate(places):
        params = place.params
        too_early = params.min_new_tokens > place.num_answered + 1
        banned += ((row, token) for token in chain(params.banned_tokens, params.stop_ids if too_early else ()))
    if banned:
        rows, ids = (torch.tensor(column, device=logits_LV.device) for column in zip(*banned, strict=True))
        logits_LV[rows, ids] = _NEVER


def _limit_vocabulary_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    """No token from a request's `vocab_size` on."""
    limits = {place.params.vocab_size for place in places}
    for limit in filter(None, limits):
        rows = [row for row, place in enumerate(places) if place.params.vocab_size == limit]
        if len(limits) == 1:
            logits_LV[:, limit:] = _NEVER
        else:
            logits_LV[rows, limit:] = _NEVER


def _allow_only_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    """At the first place the tokens that may come first, and under a grammar those that may come next."""
    for row, place in enumerate(places):
        if place.params.first_tokens and place.num_answered == 0:
            allowed_V = torch.zeros(logits_LV.shape[1], dtype=torch.bool)
            allowed_V[list(place.params.first_tokens)] = True
        elif place.allowed is not None:
            allowed_V = place.allowed
        else:
            continue
        logits_LV[row].masked_fill_(~allowed_V.to(logits_LV.device), _NEVER)


def _end_thoughts_(logits_LV: Tensor, places: Sequence[Place]) -> None:
    """Only the end of a thought where it has as many tokens as it may."""
    for row, place in enumerate(places):
        if place.params.thought_budget is not None and place.params.thought_ids and _thought_is_over(place):
            logits_LV[row] = _NEVER
            logits_LV[row, place.params.thought_ids[1]] = 0.0


def _thought_is_over(place: Place) -> bool:
    """Whether the thought that the prompt or the answer has opened is open, and has taken its tokens."""
    budget, (opening, end) = place.params.thought_budget, place.params.thought_ids
    assert budget is not None
    if place.num_answered < budget:
        return False
    answer = place.answer
    if end in answer:
        return False
    if place.sequence.request.opens_thought:
        return True
    return opening in answer and len(answer) - answer.index(opening) > budget
