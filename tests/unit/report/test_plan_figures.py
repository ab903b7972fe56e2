"""The drawings of a plan: the passes of a pipeline, and what of a long step is shown."""

import re
from dataclasses import replace

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.report import make_report
from glmforge.plan.search.search import search_layouts
from glmforge.plan.time.simulate import Span
from glmforge.report.plan_figures import _windows, draw_pareto, draw_pipeline

RUN = """
name: planned
model: tiny
data: {tokenizer: none, sources: [{name: text, path: none}]}
phases: [{name: main, tokens: 1e6, seq_len: 64, batch_size: 32}]
parallel: {pp: 2, micro_batch_size: 1}
"""


def step(num_passes: int) -> list[Span]:
    """Two ranks that compute one pass after the other, a second each."""
    return [Span(rank, "forward", rank, n, n, n + 1) for rank in range(2) for n in range(num_passes)]


def test_without_a_pipeline_there_is_nothing_to_draw() -> None:
    assert draw_pipeline([span for span in step(4) if span.pp_rank == 0]) is None


@pytest.mark.parametrize(("num_passes", "windows"), [(90, [(0, 90)]), (180, [(0, 45), (135, 180)])])
def test_of_a_long_step_beginning_and_end_are_drawn(num_passes: int, windows: list[tuple[float, float]]) -> None:
    assert _windows(step(num_passes), 2) == windows


def test_every_pass_is_drawn_with_its_number() -> None:
    figure = draw_pipeline(step(8))
    assert figure is not None
    numbers = re.findall(r">\s*(\d)\s*</text>", figure.svg)
    assert sorted(number for number in numbers if number in "4567") == [n for n in "4567" for _ in range(2)]
    assert "var(--series-1)" in figure.svg
    assert "#0" not in figure.svg  # no stand-in colours are left


def test_a_search_is_drawn_with_the_plan_in_it() -> None:
    run = load_config(RUN)
    machine = find_machine("H100 SXM")
    report = make_report(run, run, resolve_layout(run, 4), machine)
    assert draw_pareto(report) is None
    figure = draw_pareto(replace(report, search=search_layouts(run, 4, machine)))
    assert figure is not None
    assert "this plan" in figure.svg
    assert "layouts fit" in figure.caption
