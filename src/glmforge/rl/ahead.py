"""Rollouts by servers that sample while the run trains: one step off, or asynchronous (`config.rl_schedule`).

One step off, a step's groups are sampled during the step before, and servers get new weights in between. Asynchronous,
groups of several steps are in flight at any time. Before each step servers pause, get the new weights, and resume in
the middle of answers, so each token has a version of its own.

A checkpoint holds the complete groups that wait and the numbers of those that are being sampled. A resumed run requests
the latter again, under its present weights.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.rl.engines.base import EngineLostError, together
from glmforge.rl.exchange import gathered
from glmforge.rl.group_queue import GroupQueue
from glmforge.rl.remote import RemoteSampler
from glmforge.rl.samples import Answer, by_group
from glmforge.rl.source import RolloutSource
from glmforge.training.source import Position


class AheadSource(RolloutSource):
    """See above. Its sampler is a `RemoteSampler`; a rollout is one step."""

    sampler: RemoteSampler
    _queue: GroupQueue | None = None
    """None before the first step, and once a checkpoint was loaded."""
    _most_groups: int
    """That may be in flight."""

    def state_dict(self) -> dict[str, Any]:
        asked = [] if self._queue is None else [one for one in self._queue.begun if one not in self._queue.complete]
        return {**super().state_dict(), "again": sorted({*self._again, *asked})}

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        self._queue = None
        return super().load_state_dict(state, position)

    def _sample(self, wanted: int) -> dict[int, list[Answer]]:
        counts, waits_first = Counter[str](), self.settings.schedule.kind == "one_step_off"
        if self._queue is None or not waits_first:
            self._begin(wanted, self._num_steps)
        started = time.perf_counter()
        ready = by_group(self._mine(self._waiting))
        chosen = self._await(ready, wanted, counts)
        self._metrics["answer_wait_seconds"] = time.perf_counter() - started
        self._waiting = [one for number, group in ready.items() if number not in chosen for one in group]
        if waits_first:
            self._begin(wanted, self._num_steps + 1)
        taken = {number: ready[number] for number in chosen if number in ready}
        self._count(counts, [one for group in taken.values() for one in group])
        self._metrics["missing_groups"] = wanted - len(chosen)
        return taken

    def _begin(self, wanted: int, step: int) -> None:
        """Give servers the weights as they are now, and have groups for `step`, and for those ahead of it, in flight.
        Collective."""
        schedule, steps_left = self.settings.schedule, self._phase_config.num_steps - step
        if steps_left == 0:
            return
        self.sampler.fleet.update(self._num_steps, self.alive)
        ahead = schedule.steps_ahead if schedule.kind == "asynchronous" else 0
        self._most_groups = wanted * min(1 + ahead, steps_left)
        if self._queue is None:
            self._queue = GroupQueue(wanted, int(schedule.window * (1 + ahead) * wanted), schedule.oldest)
            self._restore(self._queue)
        more_than_needed = list(self._queue.begun)[self._most_groups :]
        self._queue.remove(more_than_needed)
        self._again = sorted({*self._again, *more_than_needed})
        self._top_up(self._queue)
        self._ask_for(self._queue, self._queue.too_old(step))
        self._waiting = [one for one in self._waiting if one.prompt in self._queue.complete]

    def _restore(self, queue: GroupQueue) -> None:
        """Put the complete groups of a checkpoint into the queue. Collective."""
        self.sampler.forget()
        waiting, unfinished = by_group(self._mine(self._waiting)), by_group(self._mine(self._unfinished))
        for number, begun in self._all([(number, group[0].begun) for number, group in waiting.items()]):
            queue.ask([number], begun)
            queue.complete.add(number)
        self._again = sorted({*self._again, *self._all(list(unfinished))})
        self._unfinished = []

    def _top_up(self, queue: GroupQueue) -> None:
        """Have as many groups in flight as may be, and those that a dead server has not answered."""
        self._ask_for(queue, [one.number for one in self._ask(max(0, self._most_groups - len(queue.begun)))])

    def _ask_for(self, queue: GroupQueue, numbers: Sequence[int]) -> None:
        queue.ask(numbers, self._num_steps)
        self.sampler.begin([self.prompts[number] for number in numbers], self._num_steps)

    def _await(self, ready: dict[int, list[Answer]], wanted: int, counts: Counter[str]) -> list[int]:
        """The numbers of a step's groups. Groups of this rank that become complete are added to `ready`. Collective."""
        queue, step, num_dropped = self._queue, self._num_steps, 0
        assert queue is not None, "begun"
        while (chosen := queue.take(step)) is None:
            if num_dropped >= self.settings.rollout.max_rounds * wanted:
                chosen = sorted(queue.complete)[:wanted]
                queue.remove(chosen)
                break
            try:
                together(self.sampler.wait, self.alive, "generation by the engine")
            except EngineLostError as error:
                self.sampler.fleet.replace(error)
                self._begin(wanted, step)
            arrived = self.sampler.take()
            if any(gathered(bool(arrived))):
                groups = by_group(self._rewarded(arrived))
                kept = self._kept(groups, counts)
                ready |= kept
                queue.complete.update(self._all(list(kept)))
                dropped = self._all([number for number in groups if number not in kept])
                queue.remove(dropped)
                num_dropped += len(dropped)
                self._top_up(queue)
        return chosen
