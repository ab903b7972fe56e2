"""Scores over tokens: what the run measured, what its checkpoints scored later, and results that are none."""

from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge.evaluate.result import Interval, Result, Score, write_result
from glmforge.observe.metrics import make_record
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import read_run
from glmforge.report.figures_benchmarks import benchmark_scores, score_curves
from glmforge.report.report import write_report
from helpers.synthetic_run import write_synthetic_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that measured one benchmark twice; at the second time there was no interval."""
    run = write_synthetic_run(tmp_path / "run", num_steps=40, killed_at=None)
    with JsonlFile(run / "benchmarks.jsonl") as file:
        named = {"step": 10, "tokens": 40_960, "benchmark": "gsm8k", "benchmark_items": 100}
        file.write(make_record(**named, benchmark_score=0.25, benchmark_low=0.1, benchmark_high=0.4))
        file.write(make_record(**named | {"step": 20, "tokens": 81_920}, benchmark_score=0.5))
        file.write(make_record(**named | {"step": 30, "tokens": 122_880}))  # no score
    return run


def write_step(directory: Path, step: int, score: float | None, tokens: int | None) -> None:
    (directory / f"step-{step}").mkdir(parents=True)
    interval = None if score is None else Interval(low=0, high=1)
    one = Score(
        benchmark="mmlu", metric="acc", num_items=4, score=score, interval=interval, chance=0.25, fingerprint="f"
    )
    write_result(directory / f"step-{step}", Result(model="m", step=step, tokens=tokens, scores=(one,)), [])


def test_curves(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for step, score, tokens in ((9, 0.3, 36_864), (100, 0.4, 409_600), (7, None, 28_672), (8, 0.9, None)):
        write_step(elsewhere, step, score, tokens)
    (elsewhere / "step-11").mkdir()  # not finished
    log = read_run(run)
    assert score_curves(log, elsewhere) == {
        "gsm8k": [(40_960, 0.25, 0.1, 0.4, 0.0), (81_920, 0.5, 0.5, 0.5, 0.0)],
        "mmlu, checkpoints": [(36_864, 0.3, 0.0, 1.0, 0.25), (409_600, 0.4, 0.0, 1.0, 0.25)],
    }
    with pytest.raises(DataError, match=r"out: has no results step-\*/result.json"):
        benchmark_scores(log, tmp_path / "out")


def test_in_the_report(run: Path, tmp_path: Path) -> None:
    write_step(run / "evaluations", 10, 0.3, 40_960)
    page = write_report(run).read_text("utf-8")
    assert "<h3>Benchmarks</h3>" in page
    assert all(name in page for name in ("gsm8k", "mmlu, checkpoints", "Dotted: the score of guessing"))
    (run / "evaluations" / "step-10" / "result.json").write_text("{")
    with pytest.raises(DataError, match=r"step-10/result\.json"):
        write_report(run)
    without = write_synthetic_run(tmp_path / "without", num_steps=10, killed_at=None)
    assert benchmark_scores(read_run(without)) is None
