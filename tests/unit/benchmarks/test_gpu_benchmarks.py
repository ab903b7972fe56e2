"""How GPU figures are recorded: what fails, hangs or dies costs one figure, and wrong values are no measurement."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from gpu.bench import Bench
from gpu.case import Case, Inputs, Setup
from gpu.kernels import compare, measured
from gpu.results import MissingError, Results, TooLargeError
from gpu.runner import PartRun, run_part
from gpu.summary import status_of
from torch import Tensor

from gpu import keep, runner

HEADER = {"part": "kernels", "dry": True, "device": {"name": "cpu"}}

TROUBLED = """
import os, sys, time
from pathlib import Path
from gpu.results import Results

results = Results(Path(sys.argv[1]), {"part": "kernels", "dry": True}, resume="--resume" in sys.argv)

def fails():
    raise ValueError("wrong by half")

for name, function in {
    "works": dict, "fails": fails, "dies": os.abort, "hangs": lambda: time.sleep(100), "works too": dict
}.items():
    results.measure(name, function)
results.content["complete"] = True
results.write()
"""


@dataclass(frozen=True)
class Troubled(PartRun):
    script: str = ""

    def command(self, *, left_s: float, resume: bool) -> list[str]:
        return [sys.executable, "-c", self.script, str(self.file), *["--resume"] * resume]


def test_a_run_goes_on_behind_what_dies_and_what_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FIGURE_LIMIT_S", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(runner.__file__).parents[1]))
    content = run_part(Troubled("kernels", tmp_path, dry=True, budget_s=120, script=TROUBLED))
    statuses = {name: figure["status"] for name, figure in content["figures"].items()}
    assert statuses == {"works": "ok", "fails": "failed", "dies": "crashed", "hangs": "hung", "works too": "ok"}
    assert content["figures"]["fails"]["reason"] == "ValueError: wrong by half"
    assert len(content["interruptions"]) == 2
    assert status_of(content) == "3 failed: fails, dies, hangs"


def test_a_part_is_ended_when_its_time_is_up_or_a_figure_takes_too_long(tmp_path: Path) -> None:
    results, now = Results(tmp_path / "gpu_kernels.json", HEADER), time.time()
    results.set("figure", status="running", started=now - 10)
    assert runner._overdue(results.file, time.monotonic() + 60) is None
    assert runner._overdue(results.file, time.monotonic() - 1) == "hung: the part's time is up"
    results.set("figure", started=now - runner.FIGURE_LIMIT_S - 1)
    assert runner._overdue(results.file, time.monotonic() + 60) == "hung: took longer than 150 s"


@pytest.mark.parametrize(
    ("error", "status", "verdict"),
    [
        (torch.OutOfMemoryError("40 GiB asked"), "out of memory", "1 failed: figure"),
        (MissingError("triton is not installed"), "missing", "ok"),
        (TooLargeError("needs 90 GB"), "too large", "ok"),
        (RuntimeError("no"), "failed", "1 failed: figure"),
    ],
)
def test_a_failure_is_recorded_by_its_kind(tmp_path: Path, error: Exception, status: str, verdict: str) -> None:
    results = Results(tmp_path / "gpu_kernels.json", HEADER)

    def fail() -> dict:
        raise error

    assert results.measure("figure", fail) is None
    assert results.measure("other", lambda: {"seconds": 1.0}) == {"seconds": 1.0}
    results.content["complete"] = True
    content = json.loads((tmp_path / "gpu_kernels.json").read_text())
    assert content["figures"]["figure"]["status"] == status
    assert content["figures"]["other"]["seconds"] == 1.0
    assert status_of(results.content) == verdict


def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


class WrongGradient(torch.autograd.Function):
    """Forgets what the weight's gradient is summed over."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x)[0]


WRONG = {
    "values": lambda x, weight: x * weight * 1.1,
    "not a number": lambda x, weight: x * weight / 0 * 0,
    "gradient": WrongGradient.apply,
    "no gradient": lambda x, weight: x * weight.detach(),
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(torch.device("cpu"), True, tmp_path, Results(tmp_path / "gpu_kernels.json", HEADER), 60.0)


def case_of(**implementations: object) -> Case:
    def make(g: Inputs) -> tuple[Tensor, Tensor]:
        return g.normal(33, 16), g.normal(16)

    return Case("scale", "33 x 16", make, {"plain": scale} | implementations, flops=528, bytes=2 * 33 * 16 * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_an_implementation_with_wrong_values_is_not_measured(bench: Bench, wrong: object) -> None:
    case, setup = case_of(wrong=wrong), Setup.of(bench.device, dry=True)
    assert all(error < 0.01 for error in compare(case, "plain", setup).values())
    with pytest.raises(ValueError, match="wrong values"):
        measured(bench, case, "wrong", setup)


def test_a_kernel_s_figure_has_times_and_rooflines(bench: Bench) -> None:
    setup = Setup.of(bench.device, dry=True)
    figure = measured(bench, case_of(), "plain", setup)
    forward, both = figure["forward"], figure["forward_and_backward"]
    assert forward["roofline"]["flops"] == 528
    assert both["roofline"]["flops"] == 3 * 528
    assert 0 < forward["fastest_s"] <= forward["seconds"]
    assert both["roofline"]["share"] == pytest.approx(both["roofline"]["floor_s"] / both["seconds"], rel=5e-2)


def test_dry_runs_are_not_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(tmp_path / "gpu_kernels.json", HEADER)
    results.measure("figure", dict)
    assert keep.keep(tmp_path) == 1
    assert "a dry run measures nothing" in capsys.readouterr().err
