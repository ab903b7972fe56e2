"""Commands on results: tables, JSON, pages, one-line errors."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.evaluate.app import app
from glmforge.errors import GlmforgeError
from helpers.results import chosen, made_result, written


@pytest.fixture
def results(tmp_path: Path) -> tuple[str, str]:
    old = made_result(tmp_path / "old", [*(written(n, 1.0) for n in range(8)), chosen(0, 0, 0)], step=1)
    fell = [written(n, float(n < 2), is_cut=n > 5, extracted=None) for n in range(8)]
    new = made_result(tmp_path / "new", [*fell, chosen(0, 0, 0)], step=2)
    return str(old), str(new)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "220"})
    assert done.exit_code == 0, done.output
    return done.output


def test_compare_prints_writes_and_tells_why(results: tuple[str, str], tmp_path: Path) -> None:
    shown = run("compare", *results, "--out", str(tmp_path / "page.html"))
    assert " ".join(shown.split()).count("gsm8k worse 8 100.0% → 25.0% -75.0") == 1
    assert "gsm8k: 6 items fell; their failures in the new result: 4 no format, 2 cut" in shown
    assert "page.html" in {path.name for path in tmp_path.iterdir()}
    gsm8k, mmlu = json.loads(run("compare", *results, "--json"))
    assert gsm8k["comparison"]["num_worse"] == len(gsm8k["worse"]) == 6
    assert gsm8k["verdict"] == "worse"
    assert mmlu["comparison"]["difference"]["stderr"] is None  # a single item: NaN, which JSON does not have


def test_failures(results: tuple[str, str]) -> None:
    shown = run("failures", results[1], "--benchmark", "gsm8k")
    assert "6 of 8" in shown
    assert "gsm8k: raise --max-new-tokens (up to 8.3 points): 2 of 8 replies were cut" in shown
    (found,) = json.loads(run("failures", results[1], "-b", "gsm8k", "--json"))
    assert found["kinds"] == {"no format": 4, "cut": 2}


def test_table(results: tuple[str, str]) -> None:
    shown = run("table", *results)
    assert "100.0% (100.0%, 0.0%) *" in shown
    assert "25.0% (33.3%, 25.0%)" in shown
    rows = list(csv.DictReader(io.StringIO(run("table", *results, "--csv"))))
    assert [row["gsm8k, best"] for row in rows] == ["True", "False"]
    assert json.loads(run("table", *results, "--json"))[1]["gsm8k, cut"] == 0.25


def test_published_scores_stand_beside_ours(results: tuple[str, str]) -> None:
    published = "gsm8k: published 79.4% of GLM-4.5-Base (base model, no chat form; number of examples not stated; "
    assert published in run("table", *results)
    assert published in run("compare", *results)


def test_names_from_elsewhere_are_neither_markup_nor_control_characters(tmp_path: Path) -> None:
    name = "[red]x[/] \x1b[2J"
    items = [written(n, 0.0, is_cut=n == 0).model_copy(update={"benchmark": name, "subject": name}) for n in range(4)]
    old = made_result(tmp_path / "old", [one.model_copy(update={"score": 1.0}) for one in items], model=name)
    new = made_result(tmp_path / "new", items)
    for words in (("compare", str(old), str(new)), ("failures", str(new)), ("table", str(old), str(new))):
        shown = run(*words)
        assert "[red]x[/]" in shown
        assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    "words", [("compare", "{r}", "{r}/none"), ("failures", "{r}/none"), ("table", "{r}/none"), ("card", "{r}")]
)
def test_what_is_not_a_result_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(GlmforgeError, match=r"has no result\.json") as raised:
        run(*(word.format(r=tmp_path) for word in words))
    assert "\n" not in str(raised.value)
