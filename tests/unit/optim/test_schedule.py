import itertools
import math

import pytest

from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.optim.schedule import learning_rate_schedule
from helpers.models import run_config

TOKENS_PER_STEP = 16 * 8


def config(num_steps: int = 100, phases: list[dict[str, object]] | None = None, **optim: object) -> RunConfig:
    """Steps of 128 tokens from 2.5e-4 to 2.5e-5."""
    main = {"name": "main", "steps": num_steps, "seq_len": 16, "batch_size": 8}
    return run_config(phases=phases or [main], optim={"lr": 2.5e-4, "min_lr": 2.5e-5} | optim)


def over_steps(schedule: str, warmup: int, total: int, step: int) -> float:
    """The learning rate of step `step`, the first being 1, with progress counted in steps."""
    if step < warmup:
        return 2.5e-4 * step / warmup
    done = (step - warmup) / (total - warmup)
    remaining = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[schedule]
    return 2.5e-5 + 2.25e-4 * remaining


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 7, 99])
def test_with_batches_of_one_size_it_is_the_schedule_over_steps(schedule, warmup):
    rate = learning_rate_schedule(config(schedule=schedule, warmup_steps=warmup))
    for step in range(1, 101):
        # The same formula, rounded in another order
        assert rate(step * TOKENS_PER_STEP) == pytest.approx(over_steps(schedule, warmup, 100, step), rel=1e-13)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_borders_are_exact(schedule):
    rate = learning_rate_schedule(config(schedule=schedule, warmup_steps=10))
    total = 100 * TOKENS_PER_STEP
    assert rate(0) == 0.0
    assert rate(TOKENS_PER_STEP) == pytest.approx(2.5e-5, rel=1e-12)
    assert rate(10 * TOKENS_PER_STEP) == 2.5e-4
    assert rate(total) == 2.5e-5
    assert rate(total + 70) == 2.5e-5


def test_constant_stays_beyond_the_end():
    rate = learning_rate_schedule(config(10, schedule="constant", warmup_steps=4))
    assert rate(2 * TOKENS_PER_STEP) == pytest.approx(1.25e-4, rel=1e-12)
    assert {rate(step * TOKENS_PER_STEP) for step in range(4, 12)} == {2.5e-4}


def test_wsd_stays_until_its_last_share_and_falls_in_a_line():
    rate = learning_rate_schedule(config(schedule="wsd", warmup_steps=10, decay_share=0.25))
    assert {rate(step * TOKENS_PER_STEP) for step in range(10, 76)} == {2.5e-4}
    assert rate(80 * TOKENS_PER_STEP) == pytest.approx(2.5e-4 - 2.25e-4 / 5, rel=1e-12)


def test_wsd_that_would_fall_within_the_warmup_falls_after_it():
    wsd = learning_rate_schedule(config(schedule="wsd", warmup_steps=60, decay_share=0.5))
    linear = learning_rate_schedule(config(schedule="linear", warmup_steps=60))
    positions = range(0, 100 * TOKENS_PER_STEP + 1, 64)
    assert [wsd(position) for position in positions] == [linear(position) for position in positions]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 500, 1280])
def test_it_is_continuous_rises_and_then_falls(schedule, warmup):
    rate = learning_rate_schedule(config(10, schedule=schedule, warmup_tokens=warmup, decay_share=0.3))
    first = 1 if warmup == 0 else 0
    rates = [rate(position) for position in range(first, 1281)]
    top = max(0, warmup - first)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    # The steepest slope per token: the warm-up's, the cosine's pi / 2 of its mean, or that of the last 0.3
    if 1 < warmup < 1280:
        slope = 2.5e-4 * max(1 / warmup, math.pi / 2 / (1280 - warmup), 1 / (0.3 * 1280)) * 1.001
        assert max(abs(a - b) for a, b in itertools.pairwise(rates)) <= slope


RAMP = {"start": 2, "increment": 2, "tokens": 16 * 120}
PHASES = [
    {"name": "first", "steps": 60, "seq_len": 16, "batch_size": 8, "batch_ramp": RAMP},  # 20 of 2, 10 of 4, 7 of 6
    {"name": "second", "steps": 10, "seq_len": 64, "batch_size": 4},
]


@pytest.mark.parametrize(("steps", "tokens"), [(15, 480), (30, 1280), (60, 4896), (65, 4896 + 1280)])
def test_steps_of_warmup_are_the_planned_ones_within_a_ramp_beyond_it_and_beyond_a_phase(steps, tokens):
    rate = learning_rate_schedule(config(phases=PHASES, warmup_steps=steps))
    assert rate(tokens) == 2.5e-4
    assert rate(tokens - 16) == pytest.approx(2.5e-4 * (1 - 16 / tokens), rel=1e-12)
    assert rate(tokens + 16) < 2.5e-4


def test_one_curve_spans_all_phases():
    run = config(phases=PHASES, schedule="linear")
    rate = learning_rate_schedule(run)
    assert rate(run.num_tokens) == 2.5e-5
    assert rate(run.num_tokens // 2) == pytest.approx((2.5e-4 + 2.5e-5) / 2, rel=1e-12)


def test_no_warmup_starts_at_the_full_rate():
    assert learning_rate_schedule(config(10))(0) == 2.5e-4


@pytest.mark.parametrize(
    ("optim", "message"),
    [
        ({"warmup_steps": 101}, r"optim.warmup_steps: 101 is more than the 100 steps of the run"),
        ({"warmup_tokens": 12801}, r"optim.warmup_tokens: 12,801 is more than the 12,800 tokens of the run"),
    ],
)
def test_a_warmup_longer_than_the_run_is_refused(optim, message):
    with pytest.raises(ConfigError, match=message):
        learning_rate_schedule(config(**optim))
    learning_rate_schedule(config(**{key: value - 1 for key, value in optim.items()}))


def test_a_schedule_of_steps_is_the_same_curve_over_steps_whatever_the_batches():
    by_steps = {"schedule_unit": "steps", "warmup_steps": 7}
    rate = learning_rate_schedule(config(phases=PHASES, **by_steps))
    one_size = learning_rate_schedule(config(70, warmup_steps=7))
    assert [rate(0), rate(7), rate(70), rate(71)] == [0, 2.5e-4, 2.5e-5, 2.5e-5]
    for step in range(1, 71):
        assert rate(step) == pytest.approx(one_size(step * TOKENS_PER_STEP), rel=1e-13)
    with pytest.raises(ConfigError, match=r"optim.warmup_steps: 71 is more than the 70 steps of the run"):
        learning_rate_schedule(config(phases=PHASES, schedule_unit="steps", warmup_steps=71))
