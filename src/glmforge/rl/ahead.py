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
from functools import partial
from typing import Any

from glmforge.rl.engines.base import EngineLostError, together
from glmforge.rl.exchange import gathered
from glmforge.rl.group_queue import GroupQueue
from glmforge.rl.remote import RemoteSampler
from glmforge.rl.rollout import Asked
from glmforge.rl.samples import Answer, by_group
from glmforge.rl.source import RolloutSource
from glmforge.training.source import Position

_MOMENT_S = 0.1


class AheadSource(RolloutSource):
    """See above. Its sampler is a `RemoteSampler`; a rollout is one step."""

    sampler: RemoteSampler
    _queue: GroupQueue | None = None
    """None before the first step, and once a checkpoint was loaded."""
    _most_groups: int
    """Maximum number of groups in flight."""
    _ready: dict[int, list[Answer]]
    """Groups in the queue that are complete, on this rank."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "again": sorted({*self._again, *self._incomplete()})}

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        self._queue = None
        return super().load_state_dict(state, position)

    def _sample(self, wanted: int) -> dict[int, list[Answer]]:
        step, counts, is_off = self._num_steps, Counter[str](), self.settings.schedule.kind == "one_step_off"
        self._ready = by_group(self._mine(self._waiting))
        if self._queue is None or not is_off:
            self._begin(wanted, step)
        assert self._queue is not None, "begun"
        started = time.perf_counter()
        chosen = self._await(self._queue, wanted, counts)
        self._metrics["answer_wait_seconds"] = time.perf_counter() - started
        taken = {number: self._ready.pop(number) for number in chosen if number in self._ready}
        if is_off:
            self._begin(wanted, step + 1)
        self._waiting = [one for group in self._ready.values() for one in group]
        self._count(counts, [one for group in taken.values() for one in group])
        self._metrics["missing_groups"] = wanted - len(chosen)
        return taken

    def _begin(self, wanted: int, step: int) -> None:
        """Give servers the present weights, and have groups for `step` and those ahead of it in flight. Collective."""
        schedule, steps_left = self.settings.schedule, self._phase_config.num_steps - step
        if steps_left == 0:
            return
        ahead = schedule.steps_ahead if schedule.kind == "asynchronous" else 0
        self._most_groups = wanted * min(1 + ahead, steps_left)
        if self._queue is None:
            self._queue = GroupQueue(wanted, int(schedule.window * (1 + ahead) * wanted), schedule.oldest)
            self._restore(self._queue)
        excess = list(self._queue.begun)[self._most_groups :]
        if schedule.kind == "one_step_off":  # weights do not change in the middle of its answers
            excess = sorted({*excess, *self._incomplete()})
        self._queue.remove(excess)
        self._again = sorted({*self._again, *excess})
        self.sampler.drop(excess)
        self.sampler.fleet.update(self._num_steps, self.alive)
        self._fill(self._queue, step)

    def _restore(self, queue: GroupQueue) -> None:
        """Put the complete groups of a checkpoint into the queue. Collective."""
        self.sampler.forget()
        unfinished = by_group(self._mine(self._unfinished))
        for number, begun in self._all([(number, group[0].begun) for number, group in self._ready.items()]):
            queue.ask([number], begun)
            queue.complete.add(number)
        self._again = sorted({*self._again, *self._all(list(unfinished))})
        self._unfinished = []

    def _incomplete(self) -> list[int]:
        """Groups that are being sampled."""
        queue = self._queue
        return [] if queue is None else [number for number in queue.begun if number not in queue.complete]

    def _fill(self, queue: GroupQueue, step: int) -> None:
        """Request groups up to the limit, and again those that would be too old for `step` or that a dead server has
        lost."""
        self._request(queue, self._ask(max(0, self._most_groups - len(queue.begun))))
        self._request(queue, [self.prompts[number] for number in queue.too_old(step)])
        self._ready = {number: group for number, group in self._ready.items() if number in queue.complete}

    def _request(self, queue: GroupQueue, asked: Sequence[Asked]) -> None:
        version = self.sampler.fleet.version
        assert version is not None, "servers have weights"
        queue.ask([one.number for one in asked], version)
        self.sampler.begin(asked)

    def _await(self, queue: GroupQueue, wanted: int, counts: Counter[str]) -> list[int]:
        """The numbers of a step's groups. Collective."""
        step, seconds, num_dropped = self._num_steps, 0.0, 0  # first what has come while the run trained
        while num_dropped < self.settings.rollout.max_rounds * wanted:
            try:
                together(partial(self.sampler.wait, seconds), self.alive, "generation by the engine")
            except EngineLostError as error:
                self.sampler.fleet.replace(error)
                self._begin(wanted, step)
            seconds = _MOMENT_S
            arrived = self.sampler.take()
            if any(gathered(bool(arrived))):
                num_dropped += self._take_up(queue, arrived, counts)
            self._fill(queue, step)
            if (chosen := queue.take(step)) is not None:
                return chosen
            assert len(queue.complete) < len(queue.begun), "of complete groups a step can always be made"
        chosen = sorted(queue.complete)[:wanted]
        queue.remove(chosen)
        return chosen

    def _take_up(self, queue: GroupQueue, arrived: Sequence[Answer], counts: Counter[str]) -> int:
        """Reward answers of this rank's; how many groups of all ranks teach nothing and are dropped. Collective."""
        groups = by_group(self._rewarded(arrived))
        kept = self._kept(groups, counts)
        self._ready |= kept
        queue.complete.update(self._all(list(kept)))
        dropped = self._all([number for number in groups if number not in kept])
        queue.remove(dropped)
        return len(dropped)
