"""The table of all runs below some directories."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.doctor.runs import find_runs, ordered, read_row, select
from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import record_event


def made(root: Path, *, step: int, loss: float, stage: str = "sft", end: str | None = "finished") -> Path:
    record_event(root, "started", step=0)
    (root / "config.yaml").write_text(json.dumps({"stage": stage, "phases": [{"steps": 100}]}))
    with JsonlFile(root / "metrics.jsonl") as file:
        for one in range(1, step + 1):
            file.write({"step": one, "tokens": one * 10, "loss": loss, "tokens_per_second": 5.0})
    if end:
        record_event(root, end, step=step)
    return root


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made(tmp_path / "b", step=50, loss=1.5)
    made(tmp_path / "deep/er/a", step=100, loss=float("nan"), stage="rl")
    made(tmp_path / "c", step=7, loss=0.5, end="hang")
    (tmp_path / "c/checkpoints/step-1").mkdir(parents=True)
    (tmp_path / "c/checkpoints/step-1/run.json").write_text("{}")  # what lies in a run is none
    made(tmp_path / "damaged", step=3, loss=1.0)
    (tmp_path / "damaged/config.yaml").write_text("a: [\x1b")
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


def listed(*arguments: object) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["runs", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)  # type: ignore[no-any-return]


def test_rows(runs: Path) -> None:
    with JsonlFile(runs / "b/evaluation.jsonl") as file:
        for step, bits in ((10, 3.0), (20, 1.0), (30, 2.0)):
            file.write({"step": step, "source": "x", "bits_per_byte": bits})
            file.write({"step": step, "source": "y", "bits_per_byte": bits + 1})
    found = {row["name"]: row for row in listed(runs)}
    assert sorted(found) == ["a", "b", "c", "damaged"]
    b = found["b"]
    assert (b["stage"], b["state"], b["step"], b["total"], b["tokens"]) == ("sft", "finished", 50, 100, 500)
    assert (b["loss"], b["best"], b["tokens_per_second"]) == (1.5, 1.5, 5.0)
    assert found["a"]["loss"] is None  # JSON has no NaN
    assert (found["c"]["state"], found["c"]["why"]) == ("failed", "hang")
    assert found["damaged"]["state"] == "damaged"
    assert "config.yaml" in found["damaged"]["why"]


def test_sorted_and_filtered(runs: Path) -> None:
    assert [row["name"] for row in listed(runs, "--sort", "step", "--reverse")] == ["a", "b", "c", "damaged"]
    assert [row["name"] for row in listed(runs, "--sort", "loss")] == ["c", "b", "damaged", "a"]
    assert [row["name"] for row in listed(runs, "--state", "finished", "--stage", "sft")] == ["b"]
    assert [row["name"] for row in listed(runs, "--name", "[bc]")] == ["b", "c"]


def test_the_table_names_what_is_damaged_and_shows_it_safely(runs: Path) -> None:
    (runs / "b").rename(runs / "[red]\x1b]0;x\x07")
    result = CliRunner().invoke(app, ["runs", str(runs)])
    assert result.exit_code == 0
    assert "\\x1b]0;x" in result.output
    assert "[red]" in result.output
    assert "\x1b]0" not in result.output
    assert f"{runs}/damaged: damaged: " in result.output
    assert result.output.endswith("4 of 4 runs\n")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(GlmforgeError, match="no such directory"):
        list(find_runs([tmp_path / "none"]))
    assert CliRunner().invoke(app, ["runs", str(tmp_path), "--state", "dead"]).exit_code == 2


def test_only_the_ends_of_files_are_read(tmp_path: Path) -> None:
    """Of a file that does not fit into memory."""
    root = made(tmp_path / "long", step=3, loss=1.0)
    with (root / "metrics.jsonl").open("a") as file:
        file.truncate(1 << 38)  # a hole
        file.write('\n{"step": 1000000, "tokens": 5, "loss": 2.5}\n')
    row = read_row(root)
    assert (row.step, row.loss) == (1_000_000, 2.5)


def test_order_and_choice(runs: Path) -> None:
    rows = [read_row(path) for path in find_runs([runs])]
    assert [row.name for row in ordered(rows, "loss", reverse=True)] == ["b", "c", "damaged", "a"]
    assert select(rows, states=["silent"], stages=[], names=[]) == []
