"""Answers sampled by servers in place of the engine in the run's own processes; everything else is `rollout.Sampler`.

Of ranks that share requests (tp, pp) only the first asks, and has answers. Prompts, seeds and what is made of answers
are the same: a server of glmforge gives the answers that the engine would have given, but for rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any

from glmforge.config.rl import RolloutConfig
from glmforge.generate.answer import Sample
from glmforge.generate.params import SamplingParams
from glmforge.observe.alive import Alive
from glmforge.rl.engines.fleet import Fleet
from glmforge.rl.rollout import Asked, Sampler
from glmforge.rl.samples import Answer


class RemoteSampler(Sampler):
    """All ranks call it together. It waits for all answers: `enough` is not heeded."""

    def __init__(
        self, config: RolloutConfig, fleet: Fleet, *, stop_ids: Sequence[int], vocab_size: int, seed: int
    ) -> None:
        super().__init__(config, fleet.model, stop_ids=stop_ids, vocab_size=vocab_size, seed=seed)
        self.fleet = fleet
        self.records_experts = self.records_experts and fleet.takes_buckets

    def sample(self, asked: Sequence[Asked], unfinished: Sequence[Answer] = (), **given: Any) -> list[Answer]:
        if not self.runner.is_first:
            asked, unfinished = (), ()
        return super().sample(asked, unfinished, **given)

    def metrics(self) -> dict[str, float]:
        return self.fleet.metrics

    def close(self) -> None:
        self.fleet.close()

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        *,
        version: int,
        on_answer: Callable[[int, list[Sample]], None],
        stopped: Callable[[], bool],
        alive: Alive,
    ) -> list[list[Sample]]:
        return self.fleet.sample(prompts, params, version, alive)
