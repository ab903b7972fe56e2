"""Goodput against a job that is made to fail at random, and the best interval against all others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.plan.cost.goodput import Failures

HOUR = 3600.0


def simulated_goodput(failures: Failures, interval: float, work: float, seed: int) -> float:
    """Progress by time of a job of `work` seconds: segments of work and save, each of which a failure undoes."""
    rng = random.Random(seed)
    clock, done, next_failure = 0.0, 0.0, rng.expovariate(1 / failures.mtbf_seconds)
    while done < work:
        segment = interval + failures.save_seconds
        if clock + segment <= next_failure:
            clock, done = clock + segment, done + interval
            continue
        clock = next_failure
        while True:  # a failure while it restarts begins the restart anew
            next_failure = clock + rng.expovariate(1 / failures.mtbf_seconds)
            if clock + failures.restart_seconds <= next_failure:
                clock += failures.restart_seconds
                break
            clock = next_failure
    return done / clock


@pytest.mark.parametrize(
    ("mtbf_hours", "restart", "save", "interval"),
    [(6.2, 600, 1, 1800), (6.2, 600, 60, 600), (1.0, 300, 30, 3600), (0.5, 900, 5, 900)],
)
def test_goodput_is_that_of_a_simulated_job(mtbf_hours: float, restart: float, save: float, interval: float) -> None:
    """Over 20,000 failures their mean distance is within a percent of what is expected (1 / sqrt(20,000) = 0.7 %), and
    what they cost is less than all of it."""
    failures = Failures(mtbf_hours * HOUR, restart, save, write_seconds=0.0)
    work = 20_000 * failures.mtbf_seconds * failures.goodput(interval)
    assert simulated_goodput(failures, interval, work, seed=7) == pytest.approx(failures.goodput(interval), rel=0.01)


def test_llama_3s_failures_leave_what_llama_3_had() -> None:
    """More than 0.90 of the time of 16,384 GPUs was effective (arXiv 2407.21783, section 3.3.4)."""
    failures = Failures(50_700 * HOUR / 16_384, restart_seconds=604, save_seconds=1, write_seconds=4)
    assert failures.goodput(failures.best_interval()) == pytest.approx(0.934, abs=0.001)


def test_a_job_that_hardly_fails_waits_for_its_saves_only() -> None:
    assert Failures(1e12, 600, 10, 0).goodput(990) == pytest.approx(0.99)


@pytest.mark.parametrize("save", [0.1, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("mtbf_hours", [0.5, 6.0, 100.0])
def test_no_interval_is_better_than_the_best(save: float, mtbf_hours: float) -> None:
    """Daly's series leaves less than a thousandth of what can be had."""
    failures = Failures(mtbf_hours * HOUR, 600, save, write_seconds=0.0)
    others = max(failures.goodput(1.05**n) for n in range(300))
    assert failures.goodput(failures.best_interval()) > others - 1e-3


def test_saves_do_not_overtake_each_other() -> None:
    slow = Failures(1e12, 600, 1, write_seconds=2000)
    assert slow.goodput(500) == pytest.approx(0.25)
    assert Failures(6 * HOUR, 600, 1, write_seconds=2000).best_interval() == 2000


def test_writing_in_the_background_is_lost_with_every_failure() -> None:
    slow, fast = (Failures(6 * HOUR, 600, 1, write_seconds=seconds) for seconds in (300, 0))
    assert slow.goodput(600) == pytest.approx(Failures(6 * HOUR, 900, 1, 0).goodput(600))
    assert slow.goodput(600) < fast.goodput(600)


def test_a_job_that_fails_all_the_time_never_ends() -> None:
    assert Failures(1.0, 600, 1, 0).goodput(600) == 0.0
    assert Failures(1.0, 600, 10, 0).best_interval() == 1.0


SECONDS = st.floats(1, 1e6)


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.floats(1, 10))
def test_what_fails_less_or_waits_less_never_makes_less_progress(
    mtbf: float, restart: float, save: float, write: float, interval: float, factor: float
) -> None:
    goodput = Failures(mtbf, restart, save, write).goodput(interval)
    better = (
        Failures(mtbf * factor, restart, save, write),
        Failures(mtbf, restart / factor, save, write),
        Failures(mtbf, restart, save / factor, write),
        Failures(mtbf, restart, save, write / factor),
    )
    assert 0 <= goodput < 1
    for failures in better:
        assert failures.goodput(interval) >= goodput * (1 - 1e-9)  # rounding of exp
