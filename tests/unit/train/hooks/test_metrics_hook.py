"""Model FLOPs, utilisation and communication in the records, with a made-up trainer: nothing is trained."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glmforge.config.schema import RunConfig
from glmforge.observe.sinks import read_jsonl
from glmforge.parallel.world import World
from glmforge.plan.flops import train_flops_per_token
from glmforge.train.hooks import metrics as metrics_hook
from glmforge.train.hooks.metrics import MetricsHook
from glmforge.train.state import TrainState
from helpers.models import run_config

TOKENS = 8 * 16  # per step


def records(folder: Path, config: RunConfig, steps: list[tuple[float, float]], communication: Any = None) -> list[dict]:
    """What the hook writes after steps of the given mean attended lengths and seconds."""
    trainer: Any = SimpleNamespace(config=config, world=World.single("cpu"), state=TrainState())
    hook = MetricsHook(folder, communication)
    hook.on_train_start(trainer)
    for length, seconds in steps:
        trainer.state.step += 1
        result = SimpleNamespace(
            losses={"loss": torch.tensor(1.0)},
            grad_norm=torch.tensor(1.0),
            counts_LE=torch.zeros(0, 8),
            dropped_LE=torch.zeros(0, 8),
            mean_attended_length=torch.tensor(length, dtype=torch.float64),
        )
        outcome: Any = SimpleNamespace(
            phase=config.phases[0], result=result, lr=1e-3, step_seconds=seconds, data_seconds=0.0
        )
        hook.on_step_end(trainer, outcome)
    hook.close()
    return read_jsonl(folder / "metrics.jsonl")


def quiet(log_every: int = 1, **sections: Any) -> RunConfig:
    observe = {"log_every": log_every, "tensorboard": False, "progress": False}
    return run_config(observe=observe, **sections)


def test_flops_are_those_of_every_step_since_the_last_record(tmp_path: Path) -> None:
    config = quiet(log_every=2)
    first, second = records(tmp_path, config, [(4.0, 0.5), (16.0, 1.5), (8.0, 1.0), (8.0, 1.0)])
    flops = [train_flops_per_token(config.model, length) * TOKENS for length in (4.0, 16.0, 8.0)]
    # fp64 throughout: only rounding of the last digits.
    assert first["model_tflops_per_second"] == pytest.approx((flops[0] + flops[1]) / 2.0 / 1e12, rel=1e-12)
    assert second["model_tflops_per_second"] == pytest.approx(2 * flops[2] / 2.0 / 1e12, rel=1e-12)


def test_mtp_counts_where_it_is_trained(tmp_path: Path) -> None:
    phase = {"name": "main", "steps": 4, "seq_len": 16, "batch_size": 8, "mtp_loss_weight": 0.0}
    (record,) = records(tmp_path, quiet(phases=[phase]), [(16.0, 1.0)])
    expected = train_flops_per_token(quiet().model, 16.0, with_mtp=False) * TOKENS / 1e12
    assert record["model_tflops_per_second"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("device_name", "compute", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 80GB HBM3", "fp32", None),
        ("NVIDIA Imagined GPU", "bf16", None),
    ],
)
def test_utilisation_only_of_known_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_name: str, compute: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: device_name)
    real = metrics_hook._peak_flops
    monkeypatch.setattr(metrics_hook, "_peak_flops", lambda _: real(torch.device("cuda", 0)))
    (record,) = records(tmp_path, quiet(precision={"compute": compute}), [(16.0, 0.25)])
    if peak is None:
        assert "mfu" not in record
    else:
        assert record["mfu"] == pytest.approx(record["model_tflops_per_second"] * 1e12 / peak)
        assert record["mfu"] == pytest.approx(train_flops_per_token(quiet().model, 16.0) * TOKENS / 0.25 / peak)


def test_a_cpu_has_no_utilisation(tmp_path: Path) -> None:
    (record,) = records(tmp_path, quiet(precision={"compute": "bf16"}), [(16.0, 1.0)])
    assert "mfu" not in record
    assert "model_tflops_per_second" in record


def test_measured_communication_goes_into_the_next_record(tmp_path: Path) -> None:
    pending = [{}, {"comm_seconds_tp": 0.5, "comm_bytes_tp": 64}]
    communication = SimpleNamespace(take_record=lambda: pending.pop(0))
    first, second = records(tmp_path, quiet(), [(16.0, 1.0)] * 2, communication)
    assert not [name for name in first if name.startswith("comm_")]
    assert (second["comm_seconds_tp"], second["comm_bytes_tp"]) == (0.5, 64)
