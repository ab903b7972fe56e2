import pytest

from glmforge.generate.params import GREEDY
from glmforge.generate.sequence import Request, Sequence
from glmforge.generate.speculate.ngram import NgramDrafter


def sequence_of(tokens: list[int]) -> Sequence:
    return Sequence(Request(0, tuple(tokens), GREEDY), 0, list(tokens))


@pytest.mark.parametrize(
    ("tokens", "number", "drafts"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 1, [4]),  # the latest place
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1, [3]),  # the longer match is further back
        ([5, 5, 5], 2, [5]),
        ([1, 2, 3], 2, []),
        ([1], 2, []),
        ([2, 9, 3, 4, 2], 2, []),  # one token is too few
        # The bytes of 1, 2 stand inside of these, but not where tokens begin.
        ([1 << 8, 2 << 8, 3, 1, 2], 2, []),
        ([1, 2, 6, 1 << 8, 2 << 8, 3, 1, 2], 1, [6]),
    ],
)
def test_what_followed_the_last_tokens(tokens: list[int], number: int, drafts: list[int]) -> None:
    sequence = sequence_of(tokens)
    NgramDrafter().draft([], {sequence: number})
    assert sequence.drafts == drafts


def test_text_that_has_grown_since() -> None:
    drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3, 1])
    drafter.draft([], {sequence: 1})
    assert sequence.drafts == []
    sequence.append(2)
    drafter.draft([], {sequence: 1})
    assert sequence.drafts == [3]
