"""Which tokens the next step computes.

A step has room for `max_step_tokens` tokens. Sequences that decode come first, one token each, so that no prompt holds
them up; what room is left goes to prompts in the order of arrival, a piece at a time (chunked prefill: Agrawal et al.,
2023, arXiv 2308.16369). A sequence that waits is admitted when there are pages for all that it has to compute.

A lower priority is admitted and served first; within one the order of arrival decides. A sequence that runs is not
stopped for one that waits. When pages run out, the last one in this order gives its pages back and waits for its turn
again; its tokens stay, and what the prefix tree does not keep of them is computed again. So the first one always gets
on: it fits alone, or it would have been refused.

A sequence whose grammar has not said yet what may come next is passed over, be it waiting or running. After many such
steps it gives its pages back where others could run in its place.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from typing import NamedTuple

from glmforge.generate.memory import CacheMemory
from glmforge.generate.sequence import Reason, Sequence

_MAX_HELD = 20
"""A sequence is passed over in this many steps before it gives its place to another."""


class Work(NamedTuple):
    """The next `num_tokens` of a sequence that are not in the cache, drafts behind the last token among them."""

    sequence: Sequence
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether the next token can be chosen after it."""
        return self.num_tokens >= self.sequence.num_pending

    @property
    def num_wanted(self) -> int:
        """Of this many tokens, the last ones, the logits are wanted: to choose by, or to score a prompt.

        Asked before the sequence advances.
        """
        stop = self.sequence.num_cached + self.num_tokens
        unscored = stop - max(self.sequence.num_cached, self.sequence.num_scored) if self.sequence.scores_prompt else 0
        return max(self.num_places, unscored)

    @property
    def num_places(self) -> int:
        """At so many places a token may be chosen: behind the last one and behind the drafts."""
        return max(0, 1 + self.num_tokens - self.sequence.num_pending)


class Scheduler:
    """Sequences that wait and those that have pages.

    Attributes:
        waiting, running: by priority, and in the order of arrival.
        num_preempted: how often one had to give its pages back.
        on_admit: called with a sequence that runs from now on.
    """

    def __init__(self, memory: CacheMemory, max_sequences: int, max_step_tokens: int) -> None:
        self.memory, self.max_sequences, self.max_step_tokens = memory, max_sequences, max_step_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preempted = 0
        self.on_admit: Callable[[Sequence], None] = lambda sequence: None

    @property
    def sequences(self) -> list[Sequence]:
        return [*self.running, *self.waiting]

    def add(self, sequence: Sequence) -> None:
        """Let it wait for its turn."""
        insort(self.waiting, sequence, key=lambda other: other.order)

    def join(self, sequence: Sequence) -> bool:
        """Let one that has its pages run at once; whether there is room for one more."""
        if len(self.running) == self.max_sequences:
            return False
        insort(self.running, sequence, key=lambda other: other.order)
        return True

    def finish(self, sequence: Sequence, reason: Reason) -> None:
        """It is done; its pages are free for others."""
        sequence.finished = reason
        self.memory.end(sequence)
        (self.running if sequence in self.running else self.waiting).remove(sequence)

    def start_over(self) -> None:
        """Let all compute again what they have computed, as under other weights."""
        for sequence in list(self.running):
            self._requeue(sequence)

    def next_step(self) -> list[Work]:
        """What to compute next, no sequence twice; empty without requests."""
        steps: list[Work] = []
        room = self.max_step_tokens
        for sequence in sorted(self.running, key=lambda one: (one.num_pending > 1, one.order)):
            if sequence.is_held:
                sequence.num_held += 1
                continue
            num_tokens = min(sequence.num_pending + len(sequence.drafts), room)
            # One without pages has just given them to another.
            if num_tokens and sequence.pages and self._make_room(sequence, sequence.num_cached + num_tokens):
                steps.append(Work(sequence, num_tokens))
                room -= num_tokens
        while room > 0 and (admitted := self._admit()) is not None:
            steps.append(Work(admitted, min(admitted.num_pending, room)))
            room -= steps[-1].num_tokens
        return steps

    def advance(self, steps: Iterable[Work]) -> None:
        """The keys and values of these tokens are in the cache now. Drafts count when they are confirmed."""
        for sequence, num_tokens in steps:
            sequence.num_cached += min(num_tokens, sequence.num_pending)
            self.memory.learn(sequence)

    def check(self) -> None:
        """Raise `AssertionError` unless every page is accounted for."""
        self.memory.check(self.running)
        assert not any(sequence.pages for sequence in self.waiting), "one that waits has pages"
        assert len(self.running) <= self.max_sequences

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take pages from those that came last until it has enough; False if it came last itself.

        No sequence in the step loses pages: prompts have got theirs when they were admitted, and those that
        decode are served in the order of arrival.
        """
        while not self.memory.grow(sequence, num_tokens):
            last = self.running[-1]
            self._requeue(last)
            self.num_preempted += 1
            if last is sequence:
                return False
        return True

    def _requeue(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.memory.end(sequence)
        sequence.drafts.clear()
        sequence.forget_record()
        sequence.num_held = 0
        self.add(sequence)

    def _requeue_held(self) -> bool:
        """Take the place of a sequence that has been passed over for long; whether there is one."""
        held = next((one for one in reversed(self.running) if one.is_held and one.num_held >= _MAX_HELD), None)
        if held is not None:
            self._requeue(held)
        return held is not None

    def _admit(self) -> Sequence | None:
        """The one that waits longest, with pages for all that it has to compute; None if there are too few."""
        sequence = next((one for one in self.waiting if not one.is_held), None)
        if sequence is None or (len(self.running) == self.max_sequences and not self._requeue_held()):
            return None
        self.memory.begin(sequence)
        num_missing = self.memory.num_needed(len(sequence.tokens)) - len(sequence.pages)
        while num_missing > self.memory.num_available:
            if not self._requeue_held():
                self.memory.end(sequence)
                return None
        self.waiting.remove(sequence)
        self.join(sequence)
        if sequence.num_found is None:
            sequence.num_found = min(sequence.num_cached, len(sequence.request.prompt))
        self.memory.grow(sequence, len(sequence.tokens))
        self.on_admit(sequence)
        return sequence
