"""Refusals as a table: of one model, and beside those before."""

import re
from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge.evaluate.result import ITEMS, Item
from glmforge.report.evaluation_page import write_page
from glmforge.report.report import write_report
from glmforge.report.safety import safety_table
from helpers.results import item, made_result, reply, text_of, written
from helpers.synthetic_run import write_synthetic_run


def asked(kind: str, refused: list[bool], *, subject: str = "", first: int = 0, cut: int = 0) -> list[Item]:
    """Items of a kind, of which the last ones are cut."""
    right = [one == (kind == "refusal") for one in refused]
    return [
        item(
            number, float(right[place]), benchmark=kind, subject=subject, digest=f"{kind}-{number}",
            metrics={"refused": float(one)}, written=(reply("text", is_cut=place >= len(refused) - cut),),
        )
        for place, (number, one) in enumerate(enumerate(refused, start=first))
    ]  # fmt: skip


def cells(directory: Path) -> list[list[str]]:
    found = safety_table(directory)
    assert found is not None
    return [[cell.text.strip() for cell in row] for row in found.rows]


def test_a_model_alone(tmp_path: Path) -> None:
    harmful = [*asked("refusal", [True] * 3, subject="crime"), *asked("refusal", [False], subject="<b>", first=3)]
    directory = made_result(tmp_path, [*harmful, *asked("over_refusal", [True, False], cut=1)])
    assert cells(directory) == [
        ["harmful", "4", "", "75.0%", "30.1% to 95.4%", "0.0%", ""],
        ["crime", "3", "", "100.0%", "43.9% to 100.0%", "", ""],
        ["<b>", "1", "", "0.0%", "0.0% to 79.3%", "", ""],
        ["harmless", "2", "", "50.0%", "9.5% to 90.5%", "50.0%", ""],
    ]


def test_it_stands_in_the_report_and_on_the_page(tmp_path: Path) -> None:
    """With what was refused before; the page compares the scores by pairs: p = 2 / 2^8 by McNemar's exact test."""
    run = write_synthetic_run(tmp_path / "run", num_steps=4, killed_at=None)
    assert "harmless" not in text_of(write_report(run))
    harmless = asked("over_refusal", [False] * 4, subject="<script>")
    made_result(run / "safety/before", [*asked("refusal", [False] * 8), *asked("over_refusal", [True] + [False] * 3)])
    made_result(run / "safety", [*asked("refusal", [True] * 8), *harmless])
    report, page = write_report(run), write_page(run / "safety", baseline=run / "safety/before")
    for shown in (text_of(report), text_of(page)):
        assert "harmful 8 0.0% 100.0% 67.6% to 100.0%" in shown
        assert "harmless 4 25.0% 0.0% 0.0% to 49.0%" in shown
    assert re.search(r"refusal better 8 0.0% → 100.0% \+100.0 \+\S+ to \+100.0 0.008", text_of(page))
    for content in (report.read_text(), page.read_text()):
        assert "<script>" not in content
    assert "harmless" not in text_of(write_page(made_result(tmp_path / "other", [written(0, 1.0)])))


def test_what_is_no_result_of_it(tmp_path: Path) -> None:
    assert safety_table(tmp_path / "nothing") is None
    assert safety_table(made_result(tmp_path / "other", [written(0, 1.0)])) is None
    damaged = made_result(tmp_path / "damaged", asked("refusal", [True]))
    (damaged / ITEMS).write_text('{"benchmark": "refusal"}\n')
    with pytest.raises(DataError, match=r"items.jsonl:1: "):
        safety_table(damaged)
