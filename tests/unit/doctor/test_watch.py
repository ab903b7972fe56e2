"""The screen and the lines of a run that is watched."""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.doctor.run_state import State, planned_steps, state_of
from glmforge.doctor.watch import Watched, sparkline, watch
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import record_event
from glmforge.runtime.lease import Lease

CONFIG = {"stage": "sft", "phases": [{"name": "a", "steps": 40, "tokens": None}, {"name": "b", "steps": 60}]}


def trained(root: Path, first: int, last: int, **more: Any) -> None:
    with JsonlFile(root / "metrics.jsonl") as file:
        for step in range(first, last + 1):
            record = {"step": step, "tokens": step * 1000, "loss": 4 / step, "lr": 1e-3, "tokens_per_second": 2345.0}
            file.write(record | {"grad_norm": 0.5, "step_seconds": 2.0, "max_violation_max": 0.25} | more)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """At step 50 of 100, held by this process."""
    root = tmp_path / "air"
    root.mkdir()
    (root / "config.yaml").write_text(json.dumps(CONFIG))
    record_event(root, "started", step=0)
    trained(root, 1, 50)
    return root


def shown(root: Path, width: int = 80, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    watch(root, console, once=True)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_screen(run: Path) -> None:
    with JsonlFile(run / "evaluation.jsonl") as file:
        file.write({"step": 20, "source": "web", "bits_per_byte": 2.0})
        file.write({"step": 40, "source": "web", "bits_per_byte": 1.25})
    record_event(run, "saved", step=40, facts={"seconds": 1.0})
    record_event(run, "straggler", step=45, detail="rank 3 is slow")
    with Lease(run, "train"):
        text = shown(run)
    for words in ("air", "sft", "running", "50/100", "1m 40s left", "0.0800", "lr", "0.001", "2.35k", "1.25x its share",
                  "web 1.250 bits/byte (step 40)", "step 40, ", "straggler: rank 3 is slow"):  # fmt: skip
        assert words in text, text
    assert "2.000" not in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_steers_it(run: Path, width: int) -> None:
    record_event(run, "anomaly", step=5, detail="\x1b[31mred\x1b[0m " + "x" * 300)
    text = shown(run, width, color_system=None)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_time_left_is_by_the_clock_since_the_run_last_went_back(run: Path) -> None:
    rows = [(0, 10), (100, 60), (110, 40), (150, 50)]
    with JsonlFile(run / "time.jsonl") as file:
        for second, step in rows:
            file.write({"time": f"2026-03-01T12:{second // 60:02d}:{second % 60:02d}+00:00", "step": step, "steps": 1})
    watched = Watched(run)
    with Lease(run, "train"):
        watched.update()
    assert watched.left_s == pytest.approx(4.0 * 50)


def test_a_rollback_takes_back_what_was_shown(run: Path) -> None:
    watched = Watched(run)
    watched.update()
    with JsonlFile(run / "metrics.jsonl", resume_step=30):
        pass
    trained(run, 31, 33, loss=9.0)
    watched.update()
    assert [record["step"] for record in watched.records] == list(range(1, 34))
    assert watched.last["loss"] == 9.0


def test_lines_without_a_terminal_until_the_end(run: Path) -> None:
    """As the run goes on: a step, a cut to an earlier step, the end."""
    deeds = iter(
        [
            lambda: trained(run, 51, 52),
            lambda: JsonlFile(run / "metrics.jsonl", resume_step=51).close(),
            lambda: trained(run, 52, 52, loss=7.0),
            lambda: record_event(run, "finished", step=52),
        ]
    )
    console = Console(file=io.StringIO(), width=30)
    with Lease(run, "train"):
        assert watch(run, console, sleep=lambda _: next(deeds)()) is State.FINISHED
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    steps = [line.split(" · ")[:2] for line in lines if line.startswith("step")]
    assert lines[0] == "air: running"
    assert steps == [["step 50", "loss 0.0800"], ["step 51", "loss 0.0784"], ["step 52", "loss 0.0769"],
                     ["step 52", "loss 7.0000"], ["step 52", "finished"]]  # fmt: skip
    assert lines[-2].startswith("air: finished")


def test_it_waits_for_a_run_and_goes_on_while_its_job_does(tmp_path: Path) -> None:
    root, asked = tmp_path / "air", list[int]()

    def begin(_: float) -> None:
        record_event(root, "started", step=0)
        record_event(root, "preempted", step=3)

    def goes_on() -> bool:
        asked.append(1)
        return len(asked) < 3

    console = Console(file=io.StringIO(), width=80)
    assert watch(root, console, goes_on=goes_on, sleep=begin) is State.STOPPED
    assert len(asked) == 3
    assert console.file.getvalue().startswith("air: waiting\n")  # type: ignore[attr-defined]


def test_states(run: Path) -> None:
    with Lease(run, "train"):
        assert state_of(run).state is State.RUNNING
        assert state_of(run, now=time.time() + 1000).state is State.SILENT
    assert state_of(run).state is State.FAILED  # its lease was released without a word
    record_event(run, "stopped", step=50, detail="by a person")
    assert (state_of(run).state, state_of(run).why) == (State.STOPPED, "by a person")
    record_event(run, "resumed", step=50)
    record_event(run, "hang", step=50, detail="no step for 9 s")
    assert state_of(run).why == "hang: no step for 9 s"
    record_event(run, "resumed", step=50)
    child = os.fork()
    if child == 0:
        Lease(run, "train").acquire()
        os._exit(0)
    os.waitpid(child, 0)
    assert state_of(run).why == "its process was killed"


def test_planned_steps(run: Path) -> None:
    assert planned_steps(run) == (100, "sft")
    phases = [{"steps": 5}, {"tokens": 1001, "batch_size": 10, "seq_len": 10}]
    (run / "config.yaml").write_text(json.dumps({"phases": phases}))
    assert planned_steps(run) == (16, "pretrain")
    phases[1]["batch_ramp"] = {"from": 1}  # type: ignore[assignment]
    (run / "config.yaml").write_text(json.dumps({"phases": phases}))
    assert planned_steps(run) == (None, "pretrain")


def test_sparklines() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1, 8, 8], 2) == "▁█"
    assert sparkline([float("nan"), 3.0], 8, "_#") == "_"
    assert sparkline([], 8) == ""


def test_as_typed(run: Path, tmp_path: Path) -> None:
    record_event(run, "finished", step=50)
    assert CliRunner().invoke(app, ["watch", str(run)]).exit_code == 0
    missing = CliRunner().invoke(app, ["watch", str(tmp_path / "none"), "--once"])
    assert "no such run or job" in str(missing.exception)
    record_event(run, "resumed", step=50)
    record_event(run, "hang", step=50)
    assert CliRunner().invoke(app, ["watch", str(run)]).exit_code == 1


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "time.jsonl", "evaluation.jsonl", "config.yaml"])
@pytest.mark.parametrize(
    "text",
    ["[1]\n", '{"step": [], "loss": "x", "time": 5, "event": {}}\n' * 2, "\0\xff\n", "[" * 100_000 + "\n", "FIFO"],
)
def test_damaged_files_are_shown_as_far_as_they_go(run: Path, name: str, text: str) -> None:
    (run / name).unlink(missing_ok=True)
    if text == "FIFO":
        os.mkfifo(run / name)
    else:
        (run / name).write_text(text, encoding="latin-1")
    assert "air" in shown(run)
