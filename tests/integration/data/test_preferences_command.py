"""`glmforge data preferences`: both answers shown, everything counted."""

import json
from pathlib import Path

from typer.testing import CliRunner

from glmforge.cli.app import app
from helpers.preferences import write_preferences
from helpers.tiny_data import TinyData


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", "preferences", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_both_answers_are_shown_with_what_is_trained_on(tiny_data: TinyData, tmp_path: Path) -> None:
    file = write_preferences(tmp_path / "pairs.jsonl", 5)
    shown = output_of(str(file), "--tokenizer", str(tiny_data.tokenizer), "--show", "2")
    assert shown.count("--- chosen:") == shown.count("--- rejected:") == 2
    assert f"--- {file}:1: prompt of" in shown
    assert "»\nGood, thank you for asking about 0.<|user|>«" in shown
    assert "»\nBad 1.<|user|>«" in shown
    assert "»" not in shown.partition("--- chosen")[0]  # the prompt is not trained on
    assert "5 records, 5 pairs, the chosen answer is the longer one in 100%" in shown
    assert "categories: even 3, odd 2" in shown


def test_what_would_be_left_out_is_counted(tiny_data: TinyData, tmp_path: Path) -> None:
    file = write_preferences(tmp_path / "pairs.jsonl", 3)
    tie = {"prompt": "a", "chosen": "b", "rejected": "b"}
    long = {"prompt": "why " * 99, "chosen": "b", "rejected": "c", "margin": 1}
    margin = {"prompt": "why", "chosen": "b", "rejected": "c", "margin": 1}
    with file.open("a") as opened:
        opened.writelines(json.dumps(record) + "\n" for record in (tie, long, margin, margin, {"chosen": "\x1b[2J"}))
    shown = output_of(str(file), "--tokenizer", str(tiny_data.tokenizer), "--max-tokens", "90")
    assert "8 records, 1 of them invalid, 1 with two equal answers, dropped, 1 too long and dropped, 5 pairs" in shown
    assert "1 of them duplicates" in shown
    assert "with a margin: 2 pairs" in shown
    assert "pairs.jsonl:8: not a preference pair" in shown
    assert "\x1b" not in shown
