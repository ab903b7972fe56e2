"""The loop over phases: each phase's own settings, one schedule over all, hooks in order."""

from pathlib import Path
from typing import Any

from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.tiny_data import TinyData


def losses(tiny_data: TinyData, output_dir: Path, second_phase: dict[str, Any], **sections: Any) -> list[float]:
    phase = {"steps": 3, "seq_len": 32, "batch_size": 4}
    phases = [{"name": "first"} | phase, {"name": "second"} | phase | second_phase]
    train(tiny_data.run_config(output_dir, phases=phases, **sections))
    return [record["loss"] for record in read_jsonl(output_dir / "metrics.jsonl")]


def test_each_phase_has_its_own_settings(tiny_data: TinyData, tmp_path: Path) -> None:
    """The first loss of the second phase sees another RoPE base at once, other loss weights a step later."""
    reference = losses(tiny_data, tmp_path / "reference", {})
    for setting, first_to_differ in (
        ({"rope_theta": 10.0}, 3),
        ({"balance": "sinkhorn"}, 3),
        ({"mtp_loss_weight": 0.0}, 4),
        ({"aux_loss_weight": 10.0}, 4),
        ({"router_bias_rate": 10.0}, 4),
    ):
        (name,) = setting
        other = losses(tiny_data, tmp_path / name, setting)
        assert other[:first_to_differ] == reference[:first_to_differ], name
        assert other[first_to_differ] != reference[first_to_differ], name


def test_dropout_reaches_every_step_and_is_the_same_in_each_run(tiny_data: TinyData, tmp_path: Path) -> None:
    """The learning rate is next to nothing, so only what is dropped tells the runs apart."""
    optim = {"lr": 1e-30, "min_lr": 1e-30}
    plain = losses(tiny_data, tmp_path / "plain", {}, optim=optim)
    for rates in ({"dropout": 0.2}, {"attention_dropout": 0.2}):
        first = losses(tiny_data, tmp_path / f"first {rates}", {}, optim=optim, regularization=rates)
        again = losses(tiny_data, tmp_path / f"again {rates}", {}, optim=optim, regularization=rates)
        assert first == again
        assert all(a != b for a, b in zip(first, plain, strict=True))


def test_the_schedule_runs_over_all_phases(tiny_data: TinyData, tmp_path: Path) -> None:
    optim = {"lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 2, "schedule": "linear"}
    losses(tiny_data, tmp_path / "run", {}, optim=optim)
    rates = [record["lr"] for record in read_jsonl(tmp_path / "run" / "metrics.jsonl")]
    expected = [5e-4, 1e-3, 1e-3 - 9e-4 / 4, 1e-3 - 2 * 9e-4 / 4, 1e-3 - 3 * 9e-4 / 4, 1e-4]
    assert all(abs(rate - value) < 1e-12 for rate, value in zip(rates, expected, strict=True))


def test_hooks_are_called_around_every_step(tiny_data: TinyData, tmp_path: Path) -> None:
    calls: list[str] = []

    class Recorder(Hook):
        name = "recorder"

        def on_train_start(self, trainer: Trainer) -> None:
            calls.append(f"start {trainer.state.step}")

        def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
            calls.append(f"{trainer.phase.name} {trainer.state.step}")

        def on_train_end(self, trainer: Trainer) -> None:
            calls.append("end")

        def close(self) -> None:
            calls.append("closed")

    train(
        tiny_data.run_config(tmp_path / "run", phases=[{"name": "a", "steps": 2, "seq_len": 16, "batch_size": 2}]),
        [Recorder()],
    )
    assert calls == ["start 0", "a 1", "a 2", "end", "closed"]
