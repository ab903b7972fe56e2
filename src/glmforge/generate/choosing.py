"""The tokens of a step: of each sequence the next one, and those behind it as long as they were drafted.

Choosing changes nothing but the logits, so a step in which a request makes it fail can be computed again without it.
"""

import torch
from torch import Tensor

from glmforge.generate.place import Place
from glmforge.generate.sampler import Chosen, choose_tokens
from glmforge.generate.sequence import Sequence


def choose(logits_LV: Tensor, rows: dict[Sequence, int]) -> dict[Sequence, list[Chosen]]:
    """The next token of each sequence, and the one behind it as long as it was drafted. Overwrites the logits.

    A sequence that no token is left for has none in its place.

    Args:
        rows: the row of logits after the last token of each sequence; those after its drafts follow.
    """
    chosen: dict[Sequence, list[Chosen]] = {sequence: [] for sequence in rows}
    while rows:
        places = [_place(sequence, chosen[sequence], logits_LV.shape[1]) for sequence in rows]
        places = [place for place in places if place.allowed is None or place.allowed.any()]
        if not places:
            break
        wanted = [rows[place.sequence] for place in places]
        all_rows = wanted == list(range(len(logits_LV)))
        tokens = choose_tokens(logits_LV if all_rows else logits_LV[wanted], places)
        confirmed: dict[Sequence, int] = {}
        for place, one in zip(places, tokens, strict=True):
            sequence, number = place.sequence, len(place.drafted)
            chosen[sequence].append(one)
            if sequence.drafts[number : number + 1] == [one.token] and (
                sequence.grammar is None or sequence.grammar.goes_on(number + 1)
            ):
                confirmed[sequence] = rows[sequence] + 1
        rows = confirmed
    return chosen


def failing_alone(rows: dict[Sequence, int], vocab_size: int) -> dict[int, Exception]:
    """By number, the requests for which sampling fails alone, with logits of zeros."""
    found: dict[int, Exception] = {}
    for sequence in rows:
        try:
            choose_tokens(torch.zeros(1, vocab_size), [_place(sequence, [], vocab_size)])
        except Exception as error:  # noqa: BLE001 - nothing but this request has a part in it
            found[sequence.request.number] = error
    return found


def one_line(error: Exception) -> str:
    """Type and words of an error that has no line of its own for users."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


def _place(sequence: Sequence, chosen: list[Chosen], vocab_size: int) -> Place:
    """Behind a sequence and what has been chosen for it since."""
    allowed = None
    if sequence.grammar is not None:
        allowed = sequence.grammar.allowed(vocab_size, len(chosen))
        allowed[sequence.request.params.vocab_size :] = False
    return Place(sequence, tuple(one.token for one in chosen), allowed)
