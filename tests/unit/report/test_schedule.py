"""The schedule of a run in numbers and on its axis."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glmforge.config import RunConfig, load_config
from glmforge.errors import ConfigError, DataError
from glmforge.report.schedule import (
    phase_columns,
    phase_rows,
    plan_schedule,
    source_rows,
)
from glmforge.report.schedule_figures import TokenAxis, schedule_svg
from glmforge.report.schedule_page import write_schedule
from helpers.tiny_data import TinyData, make_tiny_data

PAPER = Path(__file__).parents[3] / "configs" / "pretrain_glm45_355b.yaml"
RUN = """
name: two
model: tiny
data:
  tokenizer: nowhere
  sources: [{name: web, path: nowhere/web}, {name: code, path: nowhere/code, weight: 3, code: true}]
phases:
  - {name: first, steps: 10, seq_len: 32, batch_size: 8, batch_ramp: {start: 4, increment: 4, tokens: 512}}
  - {name: second, steps: 5, seq_len: 64, batch_size: 4, sources: {code: 1}, rope_theta: 1e6, fim_rate: 0.5}
optim: {lr: 1e-3, min_lr: 1e-4, warmup_steps: 4}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def with_data(data: TinyData, max_epochs: float | None, **phase: Any) -> RunConfig:
    """Two sources of one shard, the first with a cap, over a phase that asks most of it."""
    sources = [
        {"name": "capped", "path": str(data.train), "weight": 9, "max_epochs": max_epochs},
        {"name": "free", "path": str(data.train)},
    ]
    phases = [{"name": "main", "steps": 100, "seq_len": 64, "batch_size": 64} | phase]
    return data.run_config(Path("nowhere"), data={"tokenizer": str(data.tokenizer), "sources": sources}, phases=phases)


def test_phases_lie_end_to_end_with_their_batches_and_rates() -> None:
    schedule = plan_schedule(load_config(RUN))
    first, second = schedule.phases
    # Four steps of 4 rows (512 tokens), then six of 8; five of 4 rows of 64.
    assert (first.start, first.stop, second.start, second.stop) == (0, 2048, 2048, 3328)
    assert [(span.start, span.stop, span.batch_tokens) for span in first.spans] == [(0, 512, 128), (512, 2048, 256)]
    assert schedule.warmup_tokens == 512
    assert first.first_lr == pytest.approx(1e-3 / 4)
    assert (second.last_lr, schedule.tokens) == (1e-4, 3328)
    assert (first.rope_theta, second.rope_theta) == (1e4, 1e6)


def test_a_learning_rate_of_steps_is_shown_at_the_tokens_where_its_steps_end(tmp_path: Path) -> None:
    config = load_config(RUN, ["optim.schedule_unit=steps", "optim.schedule=linear", "optim.warmup_steps=5"])
    schedule = plan_schedule(config)
    first, second = schedule.phases
    assert first.first_lr == pytest.approx(1e-3 / 5)
    assert (schedule.warmup_tokens, schedule.learning_rate(512 + 256)) == (768, 1e-3)
    assert first.last_lr == pytest.approx(1e-3 - 9e-4 * 5 / 10)
    assert second.last_lr == 1e-4
    page = write_schedule(config, tmp_path / "schedule.html").read_text()
    assert "The learning rate counts steps; tokens are those of full batches." in page


def test_rates_of_a_phase_are_those_of_its_first_and_last_step() -> None:
    schedule = plan_schedule(load_config(RUN))
    second = schedule.phases[1]
    assert second.first_lr == schedule.learning_rate(2048 + 4 * 64)
    assert schedule.phases[0].last_lr == schedule.learning_rate(2048) > second.first_lr


def test_without_shards_draws_are_as_asked_and_named_so() -> None:
    schedule = plan_schedule(load_config(RUN))
    assert schedule.missing == ["web", "code"]
    assert schedule.phases[0].draws == {"web": (0.25, 512.0, None), "code": (0.75, 1536.0, None)}
    assert schedule.phases[1].draws == {"code": (1.0, 1280.0, None)}
    assert schedule.total("code").tokens == 1536 + 1280
    assert schedule.total("code").epochs is None


def test_with_shards_draws_are_those_of_training(data: TinyData) -> None:
    free = plan_schedule(with_data(data, None)).phases[0].draws
    assert free["capped"].share == pytest.approx(0.9, abs=1e-3)  # whole samples: 4 in 6,400
    assert free["capped"].epochs == pytest.approx(9 * (free["free"].epochs or 0), rel=0.01)
    capped = plan_schedule(with_data(data, 1)).phases[0].draws
    assert capped["capped"].epochs == 1
    assert capped["free"].share == pytest.approx(1 - capped["capped"].share)
    assert capped["capped"].share < 0.5


def test_a_plan_of_phases_alone_looks_at_no_data(data: TinyData) -> None:
    schedule = plan_schedule(with_data(data, 1), look_at_data=False)
    assert schedule.phases[0].draws["capped"].share == 0.9
    assert schedule.missing == []


def test_shards_without_their_tokenizer_are_refused(data: TinyData) -> None:
    config = with_data(data, None)
    config = config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": Path("gone")})})
    with pytest.raises(DataError, match=r"data\.tokenizer: gone: no such directory"):
        plan_schedule(config)


def test_rows_have_a_cell_per_column() -> None:
    schedule = plan_schedule(load_config(RUN))
    rows = [dict(zip(phase_columns(), row, strict=True)) for row in phase_rows(schedule)]
    assert rows[0]["batch, tokens"] == "128 → 256"
    assert rows[1]["batch, tokens"] == "256"
    assert (rows[1]["RoPE base"], rows[1]["FIM"], rows[1]["sequence"]) == ("1e6", "0.5", "64")
    assert [row[:3] for row in source_rows(schedule)] == [["web", "512", "15.4%"], ["code", "2.82k", "84.6%"]]


def test_an_axis_of_comparable_phases_is_to_scale() -> None:
    place = TokenAxis(plan_schedule(load_config(RUN)))
    assert place.to_scale
    assert place(1664) == 0.5


def test_an_axis_of_very_different_phases_leaves_room_for_each() -> None:
    schedule = plan_schedule(load_config(PAPER))
    place = TokenAxis(schedule)
    assert not place.to_scale
    widths = [place(phase.stop) - place(phase.start) for phase in schedule.phases]
    assert min(widths) > 0.08  # 0.09 of the drawing before all are scaled to fill it
    assert sum(widths) == pytest.approx(1)
    assert place(schedule.phases[0].spans[-1].start) > 0.1  # the batch ramp, 2 % of the tokens
    points = place.points()
    assert points[0] == 0
    assert points[-1] == schedule.tokens
    assert (np.diff([place(at) for at in points]) > 0).all()


def test_the_axis_stays_readable_with_many_phases() -> None:
    phases = ",".join(f"{{name: p{i}, tokens: {10 ** (i % 5 + 3)}, seq_len: 8, batch_size: 2}}" for i in range(30))
    place = TokenAxis(plan_schedule(load_config(RUN, [f"phases=[{phases}]", "optim.warmup_steps=0"])))
    assert (np.diff([place(mark) for mark in place.marks]) > 0).all()


def test_the_picture_tells_everything_that_changes() -> None:
    svg = schedule_svg(plan_schedule(load_config(PAPER)))
    told = (
        "code_and_reasoning",
        "15T",
        "104,309 steps",
        "131,072",
        "best fit",
        "1e6",
        "not to scale",
        "web_best",
    )
    assert [words for words in told if words not in svg] == []
    assert "var(--ink)" in svg
    assert "#0101" not in svg  # the stand-in for it


def test_the_page_needs_nothing_else_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    page = write_schedule(load_config(RUN), tmp_path / "schedule.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "because these shards do not exist: web, code" in page
    assert "not what was measured" in page


def test_the_page_shows_epochs_and_caps_where_the_data_are(tmp_path: Path, data: TinyData) -> None:
    page = write_schedule(with_data(data, 1), tmp_path / "schedule.html").read_text()
    assert "do not exist" not in page
    assert "(1 epochs)" in page


def test_a_warm_up_longer_than_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="warmup_steps"):
        write_schedule(load_config(RUN, ["optim.warmup_steps=100"]), tmp_path / "schedule.svg")
    assert not (tmp_path / "schedule.svg").exists()
