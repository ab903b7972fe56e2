"""Steps of very many micro-batches are not simulated whole, and their lower bound is one."""

from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.time import step_time
from glmforge.plan.time.step_time import least_seconds, predict_step

AIR = Path(__file__).parents[4] / "configs" / "pretrain_glm45_air_106b.yaml"
SCHEDULES = ("1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev", "looped_bfs", "gpipe")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_further_rounds_take_as_long_as_those_before(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [f"parallel.pipeline_schedule={schedule}", "parallel.compile=false"]
    config = select_phase(load_config(AIR, settings), "general")
    layout = resolve_layout(config, 1024)
    machine = find_machine("H100 SXM")
    shortened = predict_step(config, layout, machine).seconds
    monkeypatch.setattr(step_time, "_ROUNDS", 10**6)
    whole = predict_step(config, layout, machine).seconds
    assert shortened == pytest.approx(whole, rel=1e-9)  # sums of the same numbers in another order
    assert 0.5 * whole < least_seconds(config, layout, machine) < whole
