"""Held-out prompts answered while a policy is trained: greedily, and by samples for pass@k.

The records are those of
benchmarks, so that reports draw them and `checkpoint.keep_best` and early stopping go by them.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from glmforge.config.rl import RolloutConfig
from glmforge.evaluate.statistics import wilson
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.model import ParallelModel
from glmforge.rl.exchange import gathered
from glmforge.rl.rollout import Asked, Sampler
from glmforge.rl.samples import Answer
from glmforge.rl.source import Score

MakeSampler = Callable[[RolloutConfig, ParallelModel], Sampler | None]


class HeldOut:
    """Has a policy answer the same prompts each time; see `training.hooks.benchmarks.Asker`.

    Args:
        prompts: by the name of their set.
        num_samples: to each prompt, beside the greedy answer.
        is_right: of a rewarded answer.
        make_sampler: of settings and a model; where it gives None, single answers are sampled.
    """

    def __init__(
        self,
        config: RolloutConfig,
        prompts: Mapping[str, Sequence[Asked]],
        score: Score,
        *,
        num_samples: int,
        is_right: Callable[[Answer], bool],
        make_sampler: MakeSampler = lambda config, model: None,
        stop_ids: Sequence[int],
        vocab_size: int,
        seed: int,
    ) -> None:
        self.config, self.prompts, self._score, self._is_right = config, prompts, score, is_right
        self.num_samples, self._make_sampler = num_samples, make_sampler
        self._stop_ids, self._vocab_size, self._seed = stop_ids, vocab_size, seed

    def check(self, model: ParallelModel) -> None:
        """Nothing that the run has not checked already."""

    def ask(self, model: ParallelModel, alive: Alive = quiet) -> Sequence[Record]:
        """Records of each set: greedy answers, and if there are samples their mean accuracy and pass@k. Collective."""
        started = time.perf_counter()
        greedy = self._right(model, {"group_size": 1, "temperature": 0.0}, alive)
        sampled = self._right(model, {"group_size": self.num_samples}, alive) if self.num_samples > 1 else {}
        records = []
        for name, asked in self.prompts.items():
            seconds = time.perf_counter() - started
            records.append(_record(name, [greedy[one.number] for one in asked], seconds))
            if sampled:
                of_set = [sampled[one.number] for one in asked]
                records.append(_record(f"{name} sampled", of_set, seconds))
                records.append(_record(f"{name} pass@{self.num_samples}", [_any(some) for some in of_set], seconds))
        return records

    def _right(
        self, model: ParallelModel, changes: dict[str, float], alive: Alive
    ) -> dict[int, list[tuple[bool, bool]]]:
        """Prompt -> of each of its answers, whether it is right and whether it was cut; on all ranks."""
        config = self.config.model_copy(update={"replay": False, **changes})
        sampler = self._make_sampler(config, model) or Sampler(
            config, model, stop_ids=self._stop_ids, vocab_size=self._vocab_size, seed=self._seed
        )
        answers = sampler.sample([one for some in self.prompts.values() for one in some], version=0, alive=alive)
        scored = self._score(answers, None) if sampler.runner.is_first else []
        mine = [(*one.key, self._is_right(one), one.is_cut) for one in scored if one.episode is None]
        found: dict[int, list[tuple[bool, bool]]] = {}
        for prompt, _, is_right, is_cut in sorted(one for part in gathered(mine) for one in part):
            found.setdefault(prompt, []).append((is_right, is_cut))
        return found


def _any(answers: Sequence[tuple[bool, bool]]) -> list[tuple[bool, bool]]:
    """The group as one answer: right if one is, cut if all are."""
    return [(any(is_right for is_right, _ in answers), all(is_cut for _, is_cut in answers))]


def _record(name: str, answers: Sequence[Sequence[tuple[bool, bool]]], seconds: float) -> Record:
    flat = [one for some in answers for one in some]
    number = len(answers)
    score = sum(is_right for is_right, _ in flat) / len(flat)
    finished = [is_right for is_right, is_cut in flat if not is_cut]
    low, high = wilson(score, number)
    return make_record(
        benchmark=name,
        benchmark_score=score,
        benchmark_low=low,
        benchmark_high=high,
        benchmark_finished_score=sum(finished) / len(finished) if finished else None,
        benchmark_cut_share=sum(is_cut for _, is_cut in flat) / len(flat),
        benchmark_items=number,
        benchmark_seconds=seconds,
    )
