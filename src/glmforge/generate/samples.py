"""Several samples of a request: the prompt is computed once, and the others begin behind it.

As many begin at once as there is room for, by forking the first one's pages. Of the rest one waits at a time among the
scheduler's sequences, so that thousands of samples cost no more than those that run.
"""

from collections.abc import Callable, Iterable

from glmforge.generate.runner import Runner
from glmforge.generate.scheduler import Scheduler
from glmforge.generate.sequence import Request, Sequence
from glmforge.generate.speculate.drafter import Computed


class Samples:
    """The samples that have no sequence yet. `begin` makes one, of a request and the number of the sample."""

    def __init__(self, scheduler: Scheduler, runner: Runner, begin: Callable[[Request, int], Sequence]) -> None:
        self._scheduler, self._memory, self._runner, self._begin = scheduler, scheduler.memory, runner, begin
        self._unborn: dict[int, range] = {}
        scheduler.on_admit = self._queue_next_sample

    def __len__(self) -> int:
        return len(self._unborn)

    def add(self, request: Request) -> None:
        """Let the first sample of a request wait."""
        if request.params.num_samples > 1:
            self._unborn[request.number] = range(1, request.params.num_samples)
        self._scheduler.add(self._begin(request, 0))

    def left(self, number: int) -> range:
        """The samples of this request that have no sequence yet."""
        return self._unborn.get(number, range(0))

    def drop(self, number: int) -> range:
        """The same, which get none any more."""
        return self._unborn.pop(number, range(0))

    def siblings(self, rows: Iterable[Sequence]) -> dict[Sequence, list[Sequence]]:
        """Of each first sample that has come to the end of its prompt, the others that may begin there: as many as
        there is room for."""
        siblings: dict[Sequence, list[Sequence]] = {}
        room = self._scheduler.max_sequences - len(self._scheduler.running)
        for first in rows:
            if first.request.number in self._unborn and first.sample == 0 and not first.answer:
                some = self._unborn[first.request.number][:room]
                siblings[first] = [self._begin(first.request, sample) for sample in some]
                room -= len(some)
        return siblings

    def fork(self, computed: list[Computed], siblings: dict[Sequence, list[Sequence]]) -> None:
        """Let samples begin behind a prompt that is computed: the same logits, and the same states on the last page.
        They are added to `computed`."""
        page_size = self._memory.page_size
        for first, start, place in list(computed):
            if first not in siblings:
                continue
            for sibling in siblings[first]:
                self._unborn[first.request.number] = self._unborn[first.request.number][1:]
                self._fork(first, sibling)
                begin = max(start, (first.num_cached - 1) // page_size * page_size)
                computed.append(Computed(sibling, begin, place + begin - start))
            self._queue_next_sample(first)

    def _fork(self, first: Sequence, sequence: Sequence) -> None:
        """Let a sample begin behind the prompt that another one has computed, or wait if there is no room."""
        sequence.take_record(first)
        joined = False
        try:
            joined = self._memory.fork(first, sequence, self._runner.copy_page) and self._scheduler.join(sequence)
        finally:
            if not joined:
                self._memory.end(sequence)
                self._scheduler.add(sequence)

    def _queue_next_sample(self, sequence: Sequence) -> None:
        """A sequence runs now: the next sample of its request takes its place among those that wait, if the prompt has
        been computed."""
        number = sequence.request.number
        if (unborn := self._unborn.get(number)) is None or not (sequence.sample or sequence.num_pending == 0):
            return
        if unborn:
            self._unborn[number] = unborn[1:]
            self._scheduler.add(self._begin(sequence.request, unborn[0]))
        else:
            del self._unborn[number]
