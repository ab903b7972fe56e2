"""Groups that are sampled ahead, with servers that answer in any order, die, and are replaced.

The servers are played: `tests/integration/rl/test_schedules.py` has real ones, which do not do the worst at will.
"""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from glmforge.backend.native import NativeBackend
from glmforge.generate.answer import Sample
from glmforge.generate.logprobs import TokenLogprob
from glmforge.observe.alive import quiet
from glmforge.parallel.world import World
from glmforge.rl.ahead import AheadSource
from glmforge.rl.engines.base import EngineLostError
from glmforge.rl.remote import RemoteSampler
from glmforge.rl.samples import Answer
from helpers.rollouts import VOCAB_SIZE, Prompts, config_of, settings_of

WANTED = 4
"""Groups of a step."""


class PlayedFleet:
    """Servers that answer some groups whenever somebody waits, the newest as soon as the oldest."""

    def __init__(self, settings: Any, model: Any, draw: random.Random, deaths: float) -> None:
        self.settings, self.model, self.draw, self.deaths = settings, model, draw, deaths
        self.open: list[Future[list[Sample]]] = []
        self.version: int | None = None
        self.num_updates = self.num_restarts = 0
        self.most_at_once = 3

    def update(self, version: int, alive: Any = quiet) -> None:
        if version != self.version:
            self.num_updates += 1
            busy = [one for one in self.open if not one.done()]
            assert not busy or self.settings.kind == "glmforge", "weights changed in the middle of an answer"
        self.version = version

    def replace(self, error: EngineLostError) -> None:
        self.num_restarts += 1
        self.version = None

    def begin(self, number: int, prompt: Sequence[int], params: Any) -> "Future[list[Sample]]":
        self.open.append(Future())
        return self.open[-1]

    def play(self) -> None:
        self.open = [one for one in self.open if not one.done()]
        dies = self.draw.random() < self.deaths
        for one in self.draw.sample(
            self.open, len(self.open) if dies else min(len(self.open), self.draw.randint(0, self.most_at_once))
        ):
            if dies:
                one.set_exception(EngineLostError("died"))
            else:
                versions = [self.version or 0] * 2 if self.settings.kind == "glmforge" else []
                logprobs = [TokenLogprob(-1.0)] * 2
                samples = [Sample([7, 8], "length", logprobs=logprobs, versions=versions) for _ in range(4)]
                one.set_result(samples)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


class PlayedSampler(RemoteSampler):
    def wait(self, seconds: float) -> None:
        self.fleet.play()  # type: ignore[attr-defined]
        super().wait(0)


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    return NativeBackend.build(config_of({}, optimizer="adamw"), World.single())


class Course:
    """Steps of a run, and what became of its prompts."""

    def __init__(self, backend: NativeBackend, seed: int, spread: float = 0.7, deaths: float = 0.05) -> None:
        self.backend, self.draw, self.spread, self.deaths = backend, random.Random(seed), spread, deaths
        self.trained: list[tuple[int, Answer]] = []
        self.dropped = Counter[int]()

    def source(self, schedule: dict[str, Any], num_steps: int, **rollout: Any) -> AheadSource:
        kind = "glmforge" if schedule["kind"] == "asynchronous" else "vllm"
        engine = {"kind": kind, "urls": ["http://127.0.0.1:1"]}
        given: dict[str, Any] = {"engine": engine, "schedule": schedule, "max_gap": 1.0, "rollout": rollout}
        settings = settings_of(surrogate={"ratio_to": "rollout"}, **given)
        fleet: Any = PlayedFleet(settings.engine, self.backend.model, self.draw, self.deaths)
        config = config_of({}, steps=num_steps, optimizer="adamw")
        sampler = PlayedSampler(settings.rollout, fleet, stop_ids=(476,), vocab_size=VOCAB_SIZE, seed=1)
        sampler.records_experts = False
        return AheadSource(
            config,
            settings,
            self.backend,
            Prompts(),
            self.score,
            vocab_size=VOCAB_SIZE,
            sampler=sampler,
            write=lambda step, answers: self.trained.extend((step, one) for one in answers),
        )

    def score(self, answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
        equal = {one.prompt for one in answers if random.Random(one.prompt).random() >= self.spread}
        self.dropped.update(equal)
        return [one.changed(reward=0.0 if one.prompt in equal else float(one.sample)) for one in answers]

    def check(self, source: AheadSource, oldest: int) -> None:
        """No prompt is lost, none trained on twice, and none is too old."""
        keys = [one.key for _, one in self.trained]
        assert len(keys) == len(set(keys))
        trained = Counter(one.prompt for _, one in self.trained)
        assert set(trained.values()) <= {4}
        for step, one in self.trained:
            assert 0 <= step - 1 - one.begun <= oldest
            assert one.begun <= one.versions_N[0] <= step - 1
        again, waiting = set(source.state_dict()["again"]), {one.prompt for one in source._waiting}
        assert again.isdisjoint(waiting)
        left = again | waiting
        assert left.isdisjoint(trained)
        assert left.isdisjoint(self.dropped)
        assert self.dropped.keys().isdisjoint(trained)
        assert left | trained.keys() | self.dropped.keys() == set(range(source._next_prompt))


SCHEDULES: list[tuple[dict[str, Any], int]] = [
    ({"kind": "asynchronous"}, 3),
    ({"kind": "asynchronous", "steps_ahead": 1, "window": 1.0, "max_age": 1}, 1),
    ({"kind": "asynchronous", "steps_ahead": 4, "window": 0.01}, 5),
    ({"kind": "one_step_off"}, 1),
]


@pytest.mark.parametrize(("schedule", "oldest"), SCHEDULES)
@pytest.mark.parametrize(("spread", "max_rounds"), [(0.7, 20), (0.3, 1), (0.0, 1)])
def test_answers_in_any_order_and_deaths(
    backend: NativeBackend, schedule: dict[str, Any], oldest: int, spread: float, max_rounds: int
) -> None:
    for seed in range(4):
        course = Course(backend, seed, spread)
        source = course.source(schedule, 7, max_rounds=max_rounds)
        missing = 0
        while source.next() is not None:
            missing += source.metrics()["missing_groups"]
        course.check(source, oldest)
        assert len({one.prompt for _, one in course.trained}) == 7 * WANTED - missing
        assert missing == 0 or spread < 0.7


@pytest.mark.parametrize(("before", "after"), [(0, 1), (2, 1), (2, 3), (3, 0), (1, 2)])
def test_a_resumed_run_with_another_schedule(backend: NativeBackend, before: int, after: int) -> None:
    for seed in range(8):
        course = Course(backend, seed)
        first = course.source(SCHEDULES[before][0], 9)
        for _ in range(4):
            first.next()
        second = course.source(SCHEDULES[after][0], 9)
        second.load_state_files([first.state_files()])
        second.load_state_dict(first.state_dict(), first.position)
        while second.next() is not None:
            pass
        course.check(second, max(SCHEDULES[before][1], SCHEDULES[after][1]))
        late = [(step, one) for step, one in course.trained if step > 4]
        assert all(step - 1 - one.begun <= SCHEDULES[after][1] for step, one in late)
        assert len(course.trained) == 9 * WANTED * 4


def test_one_death_is_counted_once(backend: NativeBackend) -> None:
    course = Course(backend, 1, spread=1.0, deaths=0.0)
    source = course.source({"kind": "asynchronous"}, 6)
    fleet: Any = source.sampler.fleet
    fleet.most_at_once = 1
    source.next()
    assert source._incomplete()
    fleet.deaths = 1.0
    fleet.play()  # while the run trains
    fleet.deaths = 0.0
    fleet.replace(EngineLostError("noticed by the next update"))
    while source.next() is not None:
        pass
    assert fleet.num_restarts == 1
    course.check(source, 3)
