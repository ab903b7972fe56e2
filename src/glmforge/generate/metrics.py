"""What an engine did: tokens per second, how full its steps and its cache were, how long requests waited.

The engine tells of every request and of every step; counts grow with the engine, waiting times are kept of the last
`MAX_TIMES` requests. Times are those of the host, which has waited for the device when it knows the tokens.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from glmforge.generate.scheduler import Scheduler, Work

MAX_TIMES = 10_000


class Waiting(NamedTuple):
    """Seconds that requests waited: the median, what 95 % stay below, the longest."""

    median: float
    high: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Waiting":
        """NaN before the first request."""
        ordered = sorted(seconds) or [float("nan")]
        return cls(statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1])


class Metrics:
    """Counts since the engine was made.

    Attributes:
        num_requests: that were accepted.
        num_steps, step_seconds: steps that computed something, and the time that they took together.
        num_computed: tokens that the model was run on: prompts, answers, and what was computed again.
        num_new: tokens given to answers.
        num_in_steps: sequences of each step, summed over the steps.
        num_prompt, num_found: tokens of the prompts that began, and how many of them lay in the cache already.
        num_preempted: how often a sequence gave its pages to another one.
        num_drafted, num_accepted: tokens that a drafter guessed, and those that were right.
        peak_cache_use: the largest share of the pages that sequences held in a step.
        queue_times: seconds from the arrival of a request to the step that began with it.
        first_token_times: seconds from its arrival to its first token.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.num_requests = self.num_steps = self.num_computed = self.num_new = self.num_in_steps = 0
        self.num_prompt = self.num_found = self.num_preempted = self.num_drafted = self.num_accepted = 0
        self.step_seconds = self.peak_cache_use = 0.0
        self.queue_times: deque[float] = deque(maxlen=MAX_TIMES)
        self.first_token_times: deque[float] = deque(maxlen=MAX_TIMES)
        self._queued: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self._step_began = 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all answers per second of steps."""
        return self.num_new / self.step_seconds if self.num_steps else 0.0

    @property
    def mean_batch(self) -> float:
        """Sequences in a step."""
        return self.num_in_steps / self.num_steps if self.num_steps else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that did not have to be computed when their requests began."""
        return self.num_found / self.num_prompt if self.num_prompt else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were right."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    def values(self) -> dict[str, float]:
        """Everything by name, as for a file of metrics; times in seconds."""
        times = {"queue": Waiting.of(self.queue_times), "first_token": Waiting.of(self.first_token_times)}
        steps = ("num_requests", "num_steps", "num_computed", "num_new")
        counts = (*steps, "num_prompt", "num_found", "num_preempted", "num_drafted", "num_accepted")
        rates = ("step_seconds", "tokens_per_second", "mean_batch", "hit_rate", "acceptance", "peak_cache_use")
        return {name: getattr(self, name) for name in (*counts, *rates)} | {
            f"{name}_{what}_seconds": value
            for name, waiting in times.items()
            for what, value in waiting._asdict().items()
        }

    def summary(self) -> str:
        """What matters most, in one line."""
        if not self.num_new:
            return "nothing was generated"
        queue, first = Waiting.of(self.queue_times), Waiting.of(self.first_token_times)
        drafts = f"{self.acceptance:.0%} of {self.num_drafted:,} drafted tokens accepted; " if self.num_drafted else ""
        return (
            f"{self.num_new:,} tokens in {self.step_seconds:.1f} s: {self.tokens_per_second:,.0f} tokens/s, "
            f"{self.mean_batch:.1f} sequences per step; {self.hit_rate:.0%} of the prompt tokens were cached, peak "
            f"cache use {self.peak_cache_use:.0%}, {self.num_preempted:,} preemptions; {drafts}"
            f"median queue time {queue.median:.2f} s, first token after {first.median:.2f} s"
        )

    def asked(self, request: int) -> None:
        """A request was accepted."""
        self.num_requests += 1
        self._queued[request] = self._clock()

    def cancelled(self, request: int) -> None:
        """It is not waited for any more."""
        self._queued.pop(request, None)
        self._begun.pop(request, None)

    def begin_step(self, work: Sequence[Work], scheduler: Scheduler) -> None:
        """These tokens are about to be computed."""
        self._step_began = self._clock()
        self.num_in_steps += len(work)
        self.num_computed += sum(num_tokens for _, num_tokens in work)
        self.num_drafted += sum(len(sequence.drafts) for sequence, _ in work)
        self.num_preempted = scheduler.num_preempted
        self.peak_cache_use = max(self.peak_cache_use, scheduler.memory.share_held)
        for sequence, _ in work:
            request = sequence.request
            asked = self._queued.pop(request.number, None)
            if asked is not None:
                self._begun[request.number] = asked
                self.queue_times.append(self._step_began - asked)
                self.num_prompt += len(request.prompt)
                self.num_found += sequence.num_cached

    def end_step(self, requests: Iterable[int]) -> None:
        """They are computed; for each token chosen, the request that it belongs to."""
        now = self._clock()
        self.num_steps += 1
        self.step_seconds += now - self._step_began
        for request in requests:
            self.num_new += 1
            asked = self._begun.pop(request, None)
            if asked is not None:
                self.first_token_times.append(now - asked)
