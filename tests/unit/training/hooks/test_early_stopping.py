import math
from pathlib import Path
from typing import Any

import pytest

from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.store import latest_checkpoint, list_checkpoints, step_of
from glmforge.config.observe import EarlyStoppingConfig
from glmforge.config.schema import RunConfig
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.hooks.early_stopping import EarlyStoppingHook
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.hooks import events
from helpers.tiny_data import TinyData


def stops_at(values: list[float], **config: object) -> int | None:
    """Number of the evaluation after which the run stops."""
    stopping = EarlyStoppingHook(EarlyStoppingConfig.model_validate(config))
    for number, value in enumerate(values, start=1):
        if stopping.update([{"source": "text", "bits_per_byte": value, "nll": -value}]):
            return number
    return None


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "expected"),
    [
        ([3.0, 2.0, 1.0], 1, 0.0, None),
        ([3.0, 3.0], 1, 0.0, 2),  # equal is no improvement
        ([3.0, 3.1, 2.9, 3.0, 3.0], 2, 0.0, 5),  # counted anew after the improvement
        ([3.0, 2.75, 2.5], 2, 0.5, None),  # against the best, not against the last
        ([3.0, 2.75, 2.625], 2, 0.5, 3),
        ([3.0, math.nan, math.inf], 2, 0.0, 3),
        ([math.nan, math.nan], 2, 0.0, 2),
    ],
)
def test_when_it_stops(values: list[float], patience: int, min_delta: float, expected: int | None) -> None:
    assert stops_at(values, patience=patience, min_delta=min_delta) == expected


def test_it_follows_the_metric_and_the_source_or_the_mean() -> None:
    assert stops_at([1.0, 2.0], patience=1, metric="nll") is None
    records = [{"source": "a", "bits_per_byte": 2.0}, {"source": "b", "bits_per_byte": 4.0}]
    better_mean = [{"source": "a", "bits_per_byte": 2.5}, {"source": "b", "bits_per_byte": 3.0}]
    for source, stopped in (("a", True), ("b", False), (None, False)):
        stopping = EarlyStoppingHook(EarlyStoppingConfig(source=source, patience=1))
        assert stopping.update(records) is None
        reason = stopping.update(better_mean)
        assert (reason is not None) == stopped
        assert reason is None or "bits_per_byte of 'a' has not improved on 2 in 1 evaluations" in reason


def test_state_survives() -> None:
    config = EarlyStoppingConfig(patience=2)
    before, after = EarlyStoppingHook(config), EarlyStoppingHook(config)
    after.load_state_dict(before.state_dict())
    for value in (2.0, 3.0):
        assert before.update([{"source": "text", "bits_per_byte": value}]) is None
    after.load_state_dict(before.state_dict())
    assert after.update([{"source": "text", "bits_per_byte": 2.5}])


PHASE = {"name": "main", "steps": 12, "seq_len": 32, "batch_size": 2}


def config_of(tiny_data: TinyData, output_dir: Path, *, stopping: dict[str, Any] | None, steps: int = 12) -> RunConfig:
    """Evaluates after every second step, and saves after every third."""
    observe = {"progress": False, "tensorboard": False, "evaluate_every": 2, "evaluate_tokens": 200, "log_every": 5}
    return tiny_data.run_config(
        output_dir,
        phases=[PHASE | {"steps": steps}],
        observe=observe | {"early_stopping": stopping},
        checkpoint={"every_steps": 3},
    )


class Interrupted(Exception):
    pass


class Interrupt(Hook):
    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.state.step == 4:
            raise Interrupted


HOPELESS = {"patience": 2, "min_delta": 100.0}  # the first evaluation is an improvement on nothing, no other is


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_stops_and_stays_stopped(tiny_data: TinyData, tmp_path: Path, interrupted: bool) -> None:
    config = config_of(tiny_data, tmp_path / "run", stopping=HOPELESS)
    if interrupted:  # after the second evaluation, and taken up before it
        with pytest.raises(Interrupted):
            train(config, [Interrupt()])
    state = train(config)
    assert state.step == 6
    assert state.stopped is not None
    assert "in 2 evaluations" in state.stopped
    latest = latest_checkpoint(config.output_dir / "checkpoints")
    assert latest is not None
    assert latest.name == "step-00000006"
    assert [record["step"] for record in read_jsonl(config.output_dir / "evaluation.jsonl")] == [2, 4, 6]
    assert [record["step"] for record in read_jsonl(config.output_dir / "metrics.jsonl")] == [5, 6]
    stops = [event for event in events(config.output_dir) if event[0] == "stopped early"]
    assert stops == [("stopped early", 6, state.stopped)]

    again = train(config)
    assert (again.step, again.stopped) == (6, state.stopped)
    assert [record["step"] for record in read_jsonl(config.output_dir / "metrics.jsonl")] == [5, 6]


def test_a_stopped_run_goes_on_when_it_is_no_longer_told_to_stop(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_of(tiny_data, tmp_path / "run", stopping=HOPELESS))
    state = train(config_of(tiny_data, tmp_path / "run", stopping=None))
    assert (state.step, state.stopped) == (12, None)


def test_a_run_at_its_end_is_not_stopped_early_and_may_be_prolonged(tiny_data: TinyData, tmp_path: Path) -> None:
    state = train(config_of(tiny_data, tmp_path / "run", stopping=HOPELESS, steps=6))
    assert (state.step, state.stopped) == (6, None)
    assert "stopped early" not in [event[0] for event in events(tmp_path / "run")]
    # The count goes on: the next evaluation without an improvement is the third.
    state = train(config_of(tiny_data, tmp_path / "run", stopping=HOPELESS, steps=12))
    assert state.step == 8


def test_checkpoints_have_what_was_measured_at_their_step(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_of(tiny_data, tmp_path, stopping=None, steps=6))
    (evaluated,) = [one for one in read_jsonl(tmp_path / "evaluation.jsonl") if one["step"] == 6]
    measured = {step_of(path): read_meta(path).measured for path in list_checkpoints(tmp_path / "checkpoints")}
    assert measured == {3: {}, 6: {name: evaluated[name] for name in ("bits_per_byte", "nll")}}


def test_a_benchmark_counts_upwards() -> None:
    stopping = EarlyStoppingHook(EarlyStoppingConfig(metric="gsm8k", patience=2, min_delta=0.1))
    others = {"benchmark": "mmlu", "benchmark_score": 0.9}
    for score, told in ((0.2, None), (0.5, None), (0.55, None), (None, "gsm8k has not improved on 0.5 in 2")):
        record = {"benchmark": "gsm8k"} | ({} if score is None else {"benchmark_score": score})
        reason = stopping.update([others, record])
        assert (reason is None) == (told is None)
    assert reason is not None
    assert told is not None
    assert reason.startswith(told)
