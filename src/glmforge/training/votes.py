"""What any rank may ask of all: a vote, which all ranks hear of within the next step.

A signal reaches one rank, a person's command another; what follows (saving, ending) all ranks must do after the same
step. So each step sums how many ranks ask for what, beside its other small numbers.
"""

from collections.abc import Collection, Sequence

VOTES = ("preempt", "interrupt", "stop", "save", "profile", "save_failed")
"""Save and give way (to the scheduler, to a person), save and end, save, profile; and that a save of its own failed."""
ENDING = frozenset({"preempt", "interrupt", "stop"})
"""Those after which this process takes no more steps."""


class Ballot:
    """What this rank asks for in the next step."""

    def __init__(self) -> None:
        self._votes: set[str] = set()

    def cast(self, name: str) -> None:
        """Ask for one of `VOTES`. Safe in a signal handler."""
        assert name in VOTES, name
        self._votes.add(name)

    def take(self) -> frozenset[str]:
        """What has been requested since the last call."""
        taken = frozenset(self._votes)
        self._votes -= taken  # a signal may cast another vote at the same time
        return taken


def to_counts(votes: Collection[str]) -> list[float]:
    """One number per kind of vote, to be summed over ranks."""
    return [float(name in votes) for name in VOTES]


def from_counts(counts: Sequence[float]) -> frozenset[str]:
    """What some rank has requested."""
    return frozenset(name for name, count in zip(VOTES, counts, strict=True) if count)
