import math
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.observe import AnomalyConfig
from glmforge.observe.record_files import read_jsonl
from glmforge.training.hooks.anomaly import AnomalyHook
from helpers.hooks import FakeTrainer, events, fake_config

CONFIG = AnomalyConfig(window=8, threshold=8.0)
CALM = (2.0, 2.1, 1.9, 2.05)


def trainer_of(root: Path, batch_size: int = 8) -> FakeTrainer:
    sources = [{"name": name, "path": name} for name in ("web", "code", "books")]
    phases = [{"name": name, "steps": 100, "seq_len": 16, "batch_size": batch_size} for name in ("first", "second")]
    config = fake_config(data={"tokenizer": "tokenizer", "sources": sources}, phases=phases)
    trainer = FakeTrainer(AnomalyHook(CONFIG), config=config, root=root)
    for loss in CALM:
        trainer.step(loss=loss, grad_norm=loss / 2, source_tokens=(1, 1, 1))
    return trainer


def records(root: Path) -> list[dict[str, Any]]:
    path = root / "anomalies.jsonl"
    return read_jsonl(path) if path.exists() else []


def test_a_record_names_the_samples_and_their_sources(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, batch_size=12)
    trainer.step(loss=9.0, source_tokens=(90, 0, 30))
    (record,) = records(tmp_path)
    assert (record["step"], record["phase"], record["anomaly"]) == (5, "first", "loss")
    assert (record["loss"], record["loss_median"]) == (9.0, pytest.approx(2.025))
    assert record["loss_score"] > 8.0 > record["grad_norm_score"]
    assert (record["first_sample"], record["stop_sample"]) == (48, 60)
    assert record["source_tokens"] == {"web": 90, "books": 30}
    assert record["samples"] == [{"phase": "first", "sample": sample} for sample in range(48, 56)]  # eight at most
    ((event, step, detail),) = events(tmp_path)
    assert (event, step) == ("anomaly", 5)
    assert detail == "loss 9 (median 2.025), samples [48, 60) of phase 'first'"


@pytest.mark.parametrize(
    ("changes", "anomaly"),
    [
        ({}, None),
        ({"loss": 0.1, "grad_norm": 0.01}, None),
        ({"grad_norm": 30.0}, "grad_norm"),
        ({"loss": 9.0, "grad_norm": 30.0}, "loss, grad_norm"),
        ({"grad_norm": math.nan, "finite": False}, "grad_norm"),
        ({"loss": math.nan, "grad_norm": math.inf, "finite": False}, "loss, grad_norm"),
        ({"finite": False}, "another loss term"),
    ],
    ids=["calm", "low", "gradient", "both", "nan", "all nan", "another term"],
)
def test_what_is_an_anomaly(tmp_path: Path, changes: dict[str, Any], anomaly: str | None) -> None:
    trainer = trainer_of(tmp_path)
    trainer.step(**changes, source_tokens=(1, 1, 1))
    assert [record["anomaly"] for record in records(tmp_path)] == ([anomaly] if anomaly else [])


def test_a_step_that_is_not_finite_is_recorded_from_the_first_step_on(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.hooks[0].load_state_dict({})
    trainer.step(loss=50.0, source_tokens=(1, 1, 1))  # nothing to compare with
    trainer.step(loss=math.nan, finite=False, source_tokens=(1, 1, 1))
    (record,) = records(tmp_path)
    assert record["step"] == 6
    assert math.isnan(record["loss"])


def test_another_phase_has_another_level(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    for loss in (9.0, 9.1, 8.9):
        trainer.step(loss=loss, phase=1, source_tokens=(1, 1, 1))
    assert records(tmp_path) == []
    trainer.step(loss=30.0, phase=1, source_tokens=(1, 1, 1))
    (record,) = records(tmp_path)
    assert (record["phase"], record["samples"][0]) == ("second", {"phase": "second", "sample": 24})


def test_state_survives_a_resume(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    resumed = AnomalyHook(CONFIG)
    resumed.load_state_dict(trainer.hooks[0].state_dict())
    trainer.hooks = (resumed,)
    trainer.step(loss=9.0, source_tokens=(1, 1, 1))
    assert len(records(tmp_path)) == 1


def test_a_new_level_becomes_the_normal(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    for step in range(12):
        trainer.step(loss=4.0 + 0.1 * (step % 2), source_tokens=(1, 1, 1))
    steps = [record["step"] for record in records(tmp_path)]
    assert steps[0] == 5
    assert steps[-1] <= 4 + 5  # by then more than half of the window is of the new level
