"""Runs beside each other: numbers, differences, and their page."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.doctor.compare import Figure, differences, figures, read_runs
from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import JsonlFile, read_jsonl
from helpers.synthetic_run import write_synthetic_run
from unit.report.test_report import Page


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_synthetic_run(root / "base", num_steps=120), write_synthetic_run(root / "short", num_steps=60)]


def test_numbers_and_their_differences(two: list[Path]) -> None:
    found = {one.label: one for one in figures(read_runs(two))}
    assert found["steps"].cells() == ["120", "60"]
    losses = [record["loss"] for record in read_jsonl(two[0] / "metrics.jsonl")]
    assert found["loss"].values[0] == pytest.approx(sum(losses[-5:]) / 5)  # smoothed over five records
    first, second = found["loss"].values
    assert first is not None
    assert second is not None
    assert found["loss"].cells()[1] == f"{second:.4f} ({'+' if second > first else '-'}{abs(second - first):.4f})"
    best = found["best bits/byte"].values[0]
    last = found["last bits/byte"].values[0]
    assert best is not None
    assert last is not None
    assert best <= last
    assert "reward" not in found


def test_a_difference_has_its_sign() -> None:
    assert Figure("x", [2.0, 1.5, None, 3.0], "{:.1f}".format).cells() == ["2.0", "1.5 (-0.5)", "-", "3.0 (+1.0)"]


def test_only_what_differs_and_defaults_are_none(tmp_path: Path, two: list[Path]) -> None:
    other = tmp_path / "other"
    shutil.copytree(two[0], other)
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["optim"]["lr"] = 1e-4
    config["data"] = {"sources": [{"name": "web", "weight": 2}]}
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    info = json.loads((other / "run.json").read_text())
    info["versions"]["torch"] = "2.14.0"
    (other / "run.json").write_text(json.dumps(info))
    assert dict(differences(read_runs([two[0], other]))) == {
        "optim.lr": ["0.00025", "0.0001"],
        "data.sources.web.name": ["-", "web"],
        "data.sources.web.weight": ["-", "2"],
        "versions.torch": ["2.13.0", "2.14.0"],
    }
    assert differences(read_runs(two)) == []


def test_the_page(tmp_path: Path, two: list[Path]) -> None:
    hostile = tmp_path / "<img src=x>$a$"
    shutil.copytree(two[1], hostile)
    config = yaml.safe_load((hostile / "config.yaml").read_text())
    config["<script>"] = "</td><script>alert(1)</script>"
    (hostile / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["compare", str(two[0]), str(hostile), "--output", str(out)])
    assert result.exit_code == 0, result.output
    text = out.read_text()
    page = Page(text)
    assert "<script" not in text
    assert "<img src" not in text
    assert "<img src=x>$a$" in page.text
    assert page.titles.count("Training loss") == 3  # over each axis
    assert "Held-out text, mean of the sources" in page.titles


def test_sixteen_runs_of_any_length_and_none_more(tmp_path: Path) -> None:
    paths = [tmp_path / f"run{number}" for number in range(17)]
    for number, path in enumerate(paths):
        path.mkdir()
        (path / "config.yaml").write_text("name: x\n")
        (path / "run.json").write_text("{}")
        with JsonlFile(path / "metrics.jsonl") as file:
            for step in range(1, 2 + 7 * number):
                file.write(
                    {"step": step, "loss": float("nan") if step == 3 else 5 / step + number, "step_seconds": 0.1}
                )
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["compare", *map(str, paths[:16]), "--output", str(out)])
    assert result.exit_code == 0, result.output
    text = out.read_text()
    assert all(f"var(--series-{number})" in text for number in range(1, 9))
    assert text.count("border-top-style: dashed") == 8
    with pytest.raises(GlmforgeError, match="pass 2 to 16 runs, not 17"):
        read_runs(paths)
    with pytest.raises(GlmforgeError, match="given twice"):
        read_runs([paths[0], paths[0]])
