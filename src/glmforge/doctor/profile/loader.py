"""The loader alone: how fast it gives batches, with how many reading processes, and whether that is enough.

Batches are those of the run's own recipe and first phase, of one data rank, read in this process or by workers as in
training, with nothing else to do. Beside it the sources one by one, in this process: which of them is slow.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from glmforge.config.parallel import ParallelConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.parallel.world import World
from glmforge.recipes.recipe import Recipe
from glmforge.recipes.token_shards import TokenShardRecipe
from glmforge.recipes.train import open_recipe

_BY_MODELS = ("rl", "dpo")
"""Stages in which models make a part of a batch."""


@dataclass(frozen=True)
class LoaderSpeed:
    """With `workers` reading processes. `first_s`: until the first batch is there, starting them included; the other
    batches came at `batches_per_s`, which reading ahead does not flatter."""

    workers: int
    first_s: float
    batches: int
    batches_per_s: float


@dataclass(frozen=True)
class SourceSpeed:
    """`seconds` of a sample of a source in the mean, and its `share` of the loader's time as the mixture draws."""

    name: str
    samples: int
    seconds: float
    share: float


@dataclass(frozen=True)
class DataProfile:
    """`step_s`: of a training step without its wait for data, which a batch has time for; None if not known."""

    samples_per_batch: int
    seq_len: int
    configured_workers: int
    speeds: list[LoaderSpeed]
    sources: list[SourceSpeed]
    step_s: float | None

    def samples_per_s(self, speed: LoaderSpeed) -> float:
        return speed.batches_per_s * self.samples_per_batch

    def of_need(self, speed: LoaderSpeed) -> float | None:
        """Batches that it gives in the time of a step; less than 1 makes training wait."""
        return None if self.step_s is None else speed.batches_per_s * self.step_s

    @property
    def verdict(self) -> str:
        """In words."""
        fastest = max(self.speeds, key=lambda speed: speed.batches_per_s)
        if self.step_s is None:
            return (
                f"fastest with data.num_workers={fastest.workers}; pass --training FILE of 'glmforge profile train "
                "--output' or --step-seconds to see whether that is enough"
            )
        enough = [speed for speed in self.speeds if speed.batches_per_s * self.step_s >= 1]
        if not enough:
            slowest = max(self.sources, key=lambda source: source.share, default=None)
            source = f"; most of the time goes into source '{slowest.name}'" if slowest else ""
            return f"the loader is the limit: at best {self.of_need(fastest):.2f} batches in the time of a step{source}"
        least = min(enough, key=lambda speed: speed.workers)
        now = "" if self.configured_workers == least.workers else f"; it is {self.configured_workers}"
        return (
            f"data.num_workers={least.workers} is enough ({self.of_need(least):.1f} batches in the time of a step){now}"
        )

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        return {"profile": "data", **asdict(self), "verdict": self.verdict}


def profile_data(
    config: RunConfig,
    workers: Sequence[int],
    seconds: float,
    *,
    data_ranks: int = 1,
    step_s: float | None = None,
    say: Callable[[str], object] = lambda words: None,
) -> DataProfile:
    """For about `seconds` with each number of `workers`, or until the phase ends.

    Raises `ConfigError` for stages whose batches models make, and where `data_ranks` cannot share a batch.
    """
    if config.stage in _BY_MODELS:
        raise ConfigError(
            f"stage {config.stage}: models make a part of its batches; 'glmforge profile train' counts that as data"
        )
    share = _share(config, data_ranks)
    world = World.single("cpu")
    recipe = open_recipe(share, world)
    speeds = []
    for number in workers:
        say(f"{number} workers")
        speeds.append(_speed(recipe, number, seconds, world))
    return DataProfile(
        samples_per_batch=share.phases[0].batch_size,
        seq_len=share.phases[0].seq_len,
        configured_workers=config.data.num_workers,
        speeds=speeds,
        sources=_sources(recipe, seconds) if isinstance(recipe, TokenShardRecipe) else [],
        step_s=step_s,
    )


def _share(config: RunConfig, data_ranks: int) -> RunConfig:
    """The run as one data rank reads it, on one process."""
    phase = config.phases[0]
    if phase.batch_size % data_ranks:
        raise ConfigError(f"--data-ranks: {data_ranks} cannot share a batch_size of {phase.batch_size}; use a divisor")
    first = phase.model_copy(update={"batch_size": phase.batch_size // data_ranks, "batch_ramp": None})
    return config.model_copy(update={"phases": [first], "parallel": ParallelConfig()})


def _speed(recipe: Recipe, workers: int, seconds: float, world: World) -> LoaderSpeed:
    data = recipe.config.data.model_copy(update={"num_workers": workers})
    backend: Any = SimpleNamespace(world=world)  # a source reads the world of it
    source = recipe.source(recipe.config.model_copy(update={"data": data}), backend)
    # Batches that lie ready when the first one comes were read in the time before it.
    ahead, times = workers * data.prefetch, [time.perf_counter()]
    try:
        while source.next() is not None:
            times.append(time.perf_counter())
            if times[-1] - times[1] >= seconds and len(times) > 2 * ahead + 2:
                break
    finally:
        source.close()
    counted = len(times) - 2 - ahead
    if counted < 1:
        raise ConfigError(f"phases.0: ends after {len(times) - 1} batches, too few for {workers} workers; pass fewer")
    return LoaderSpeed(workers, times[1] - times[0], counted, counted / (times[-1] - times[1 + ahead]))


def _sources(recipe: TokenShardRecipe, seconds: float) -> list[SourceSpeed]:
    stream = recipe.data.curriculum.stream(0, {})
    taken: dict[str, float] = defaultdict(float)
    numbers: Counter[str] = Counter()
    stop = time.perf_counter() + seconds
    for index in range(recipe.config.phases[0].num_samples):
        (place,) = stream.locate([index])
        started = time.perf_counter()
        stream.sample(index)
        taken[place.source] += time.perf_counter() - started
        numbers[place.source] += 1
        if time.perf_counter() > stop:
            break
    total = sum(taken.values())
    return [SourceSpeed(name, numbers[name], taken[name] / numbers[name], taken[name] / total) for name in numbers]
