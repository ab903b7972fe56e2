"""A vote is cast once, and heard of by all."""

import pytest

from glmforge.training.votes import Ballot, from_counts, to_counts


def test_votes_are_taken_once_and_summed_over_ranks() -> None:
    ballot = Ballot()
    ballot.cast("save")
    ballot.cast("save")
    taken = ballot.take()
    assert (taken, ballot.take()) == ({"save"}, frozenset())
    counts = [a + b for a, b in zip(to_counts(taken), to_counts(["save", "stop"]), strict=True)]
    assert from_counts(counts) == {"save", "stop"}


def test_there_is_nothing_else_to_vote_for() -> None:
    with pytest.raises(AssertionError, match="pause"):
        Ballot().cast("pause")
