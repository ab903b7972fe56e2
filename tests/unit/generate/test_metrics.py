"""What an engine counts, on a clock that stands still unless it is told."""

import pytest

from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.metrics import Metrics, Waiting
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe


def test_counts_and_times(model: GlmMoe) -> None:
    now = [0.0]
    cache_bytes = 32 * WholeModel(model).page_bytes(4)
    engine = Engine(model, EngineConfig(cache_bytes, page_size=4, max_sequences=2))
    engine.metrics = metrics = Metrics(lambda: now[0])
    run = engine.runner.run

    def run_for_two_seconds(tokens):
        now[0] += 2
        return run(tokens)

    engine.runner.run = run_for_two_seconds  # type: ignore[method-assign]
    for _ in range(3):
        engine.add(range(9), SamplingParams(max_new_tokens=2))
    now[0] += 1
    while not engine.is_idle:
        engine.step()
    # Two run in steps 1 and 2, the third one in 3 and 4, when two of its three pages are there already.
    assert list(metrics.queue_times) == [1, 1, 5]
    assert list(metrics.first_token_times) == [3, 3, 7]
    assert (metrics.num_requests, metrics.num_steps, metrics.step_seconds) == (3, 4, 8)
    assert (metrics.num_new, metrics.tokens_per_second, metrics.mean_batch) == (6, 6 / 8, 1.5)
    assert (metrics.num_prompt, metrics.num_found, metrics.hit_rate) == (27, 8, 8 / 27)
    assert metrics.num_computed == 2 * 10 + 2
    assert metrics.peak_cache_use == 6 / 32
    values = metrics.values()
    assert (values["queue_median_seconds"], values["first_token_longest_seconds"]) == (1, 7)
    assert metrics.summary().startswith("6 tokens in 8.0 s")


def test_one_that_is_cancelled_is_not_waited_for(model: GlmMoe) -> None:
    engine = Engine(model)
    engine.cancel(engine.add([1]))
    engine.generate([[2]], SamplingParams(max_new_tokens=1))
    assert len(engine.metrics.queue_times) == 1


def test_nothing_to_sum_up(model: GlmMoe) -> None:
    assert Engine(model).metrics.summary() == "nothing was generated"


@pytest.mark.parametrize(("seconds", "expected"), [([3.0], (3, 3, 3)), (range(101), (50, 95, 100))])
def test_waiting(seconds: list[float], expected: tuple[float, float, float]) -> None:
    assert Waiting.of(seconds) == expected
