"""A run that looks for needles at its evaluations trains to the same bits as one that does not."""

from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import ConfigError
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from helpers.tiny_data import TinyData

NEEDLES = {"lengths": [192, 256], "depths": [0.0, 1.0], "num_examples": 1, "haystack": "held_out"}


def sections(needles: dict[str, Any] | None, **observe: Any) -> dict[str, Any]:
    usual = {"progress": False, "tensorboard": False, "evaluate_every": 1, "evaluate_tokens": 300}
    return {
        "phases": [
            {"name": "short", "seq_len": 32, "batch_size": 2, "steps": 1},
            {"name": "medium", "seq_len": 192, "batch_size": 2, "steps": 1, "capacity_factor": 1.5},
            {"name": "long", "seq_len": 256, "batch_size": 2, "steps": 1, "capacity_factor": 1.5},
        ],
        "observe": usual | {"needles": needles} | observe,
        "checkpoint": {"every_steps": 2},
    }


def test_losses_are_the_same_with_needles(tiny_data: TinyData, tmp_path: Path) -> None:
    for name, needles in (("with", NEEDLES), ("without", None)):
        train(tiny_data.run_config(tmp_path / name, **sections(needles, tensorboard=name == "with")))
    ours, theirs = (read_jsonl(tmp_path / run / "metrics.jsonl") for run in ("with", "without"))
    assert [one["loss"] for one in ours] == [one["loss"] for one in theirs]
    assert [one["grad_norm"] for one in ours] == [one["grad_norm"] for one in theirs]
    assert not (tmp_path / "without" / "needles.jsonl").exists()
    records = read_jsonl(tmp_path / "with" / "needles.jsonl")
    found = [(one["step"], one["needle_length"], one["needle_depth"]) for one in records]
    assert found == [(step, n, depth) for step, n in ((2, 192), (3, 192), (3, 256)) for depth in (0.0, 1.0)]
    assert all(one["needle_accuracy"] == 0 and 4 < one["needle_nll"] < 8 for one in records)  # log(512) is 6.2
    assert any((tmp_path / "with" / "tensorboard" / "needles").iterdir())
    page = write_report(tmp_path / "with").read_text(encoding="utf-8")
    assert "Needles" in page


@pytest.mark.parametrize(
    ("needles", "observe", "words"),
    [
        ({"lengths": [512]}, {}, "512 is longer than any phase's sequences"),
        ({"haystack": "books"}, {}, "'books' is not in data.held_out: held_out"),
        ({"depths": [0.5, 0.5]}, {}, "0.5 is given more than once"),
        ({}, {"evaluate_every": None}, "run at evaluations; set observe.evaluate_every"),
    ],
    ids=str,
)
def test_what_cannot_be_tested_is_refused(
    tiny_data: TinyData, tmp_path: Path, needles: dict[str, Any], observe: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_data.run_config(tmp_path, **sections(NEEDLES | needles, **observe))


def test_generated_answers_need_whole_texts(tiny_data: TinyData, tmp_path: Path) -> None:
    given = sections(NEEDLES | {"answers": "generated"}) | {"parallel": {"cp": 2}}
    with pytest.raises(ValueError, match="'generated' needs whole texts on each rank"):
        tiny_data.run_config(tmp_path, **given)


def test_a_length_without_room_is_refused_before_the_first_step(tiny_data: TinyData, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"observe\.needles\.lengths: 64 tokens are too few for"):
        train(tiny_data.run_config(tmp_path, **sections(NEEDLES | {"lengths": [64]})))
    assert not (tmp_path / "checkpoints").exists()
