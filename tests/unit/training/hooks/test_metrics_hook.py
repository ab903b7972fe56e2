"""What goes into the records, with a made-up trainer: nothing is trained."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glmforge.config.schema import RunConfig
from glmforge.data.stream.plan import BatchRange
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.metric_table import SUM, Metric
from glmforge.observe.record_files import read_jsonl
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.training.hooks import MetricsHook, RoutersHook, SourcesHook, SpeedHook, speed
from glmforge.training.order import in_order
from glmforge.training.source import Total
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from helpers.hooks import FakeTrainer
from helpers.models import run_config

TOKENS = 8 * 16  # per step


def recording_trainer(folder: Path, config: RunConfig) -> Any:
    """With the hooks that fill records; no model to speak of, and a source that eight samples take once through."""
    hooks = in_order([MetricsHook(), SpeedHook(), SourcesHook(), RoutersHook()])
    trainer: Any = FakeTrainer(*hooks, config=config, root=folder)
    trainer.backend = SimpleNamespace(world=trainer.world, router_biases=dict)
    trainer.source = SimpleNamespace(
        total=Total(config.num_steps, config.num_tokens),
        metrics=lambda: {"source_epochs": {"text": sum(trainer.state.samples.values()) / 8}},
    )
    return trainer


def result_of(trainer: Any, *, length: float = 16.0, **changes: Any) -> StepResult:
    """The result of a step that `trainer` has just taken."""
    none, sums_S = torch.zeros(0, 8, dtype=torch.int64), torch.zeros(len(trainer.config.data.sources))
    result = StepResult(
        losses={"loss": 1.0},
        grad_norm=1.0,
        finite=True,
        counts_LE=none,
        dropped_LE=none,
        mean_attended_length=torch.tensor(length, dtype=torch.float64),
        metrics=sources(sums_S, sums_S),
        votes=frozenset(),
        lr=1e-3,
        samples=BatchRange(0, trainer.config.phases[0].batch_size),
        tokens=trainer.config.phases[0].tokens_per_step,
        seconds=1.0,
    )
    return replace(result, **changes)


def sources(tokens: torch.Tensor, nll: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"source_tokens": tokens, "source_nll": nll}


def step(trainer: Any, **changes: Any) -> None:
    trainer.state.step += 1
    result = result_of(trainer, **changes)
    for hook in trainer.hooks:
        hook.on_step_end(trainer, result)


def records(folder: Path, config: RunConfig, steps: list[tuple[float, float]]) -> list[dict]:
    """What is written after steps of the given mean attended lengths and seconds."""
    trainer = recording_trainer(folder, config)
    trainer.start()
    for length, seconds in steps:
        step(trainer, length=length, seconds=seconds)
    trainer.close()
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


def test_frozen_weights_count_without_their_gradients(tmp_path: Path) -> None:
    config = quiet(optim={"rules": [{"match": "*experts*", "lr_scale": 0.0}]})
    (record,) = records(tmp_path, config, [(16.0, 1.0)])
    flops = train_flops_per_token(config.model, 16.0, optim=config.optim) * TOKENS
    assert record["model_tflops_per_second"] == pytest.approx(flops / 1e12, rel=1e-12)
    assert flops < train_flops_per_token(config.model, 16.0) * TOKENS


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
    real = speed._peak_flops
    monkeypatch.setattr(speed, "_peak_flops", lambda _: real(torch.device("cuda", 0)))
    (record,) = records(tmp_path, quiet(precision={"compute": compute}), [(16.0, 0.25)])
    if peak is None:
        assert "mfu" not in record
    else:
        assert record["mfu"] == pytest.approx(record["model_tflops_per_second"] * 1e12 / peak)
        assert record["mfu"] == pytest.approx(train_flops_per_token(quiet().model, 16.0) * TOKENS / 0.25 / peak)


def test_measured_communication_goes_into_the_next_record(tmp_path: Path) -> None:
    trainer = recording_trainer(tmp_path, quiet(log_every=2))
    trainer.start()
    for number in range(1, 7):
        if number == 3:
            trainer.record(comm_seconds_tp=0.5, comm_bytes_tp=torch.tensor(64))
        step(trainer)
    first, second, third = read_jsonl(tmp_path / "metrics.jsonl")
    assert (second["comm_seconds_tp"], second["comm_bytes_tp"]) == (0.5, 64)
    assert not [name for name in first | third if name.startswith("comm_")]


def sums(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


TWO_SOURCES = {"tokenizer": "t", "sources": [{"name": "web", "path": "web"}, {"name": "code", "path": "code"}]}


def test_sources_have_their_tokens_since_the_start_and_their_loss_since_the_last_record(tmp_path: Path) -> None:
    trainer = recording_trainer(tmp_path, quiet(log_every=2, data=TWO_SOURCES))
    trainer.start()
    step(trainer, metrics=sources(sums(30, 0), sums(60, 0)))
    step(trainer, metrics=sources(sums(10, 0), sums(40, 0)))
    step(trainer, metrics=sources(sums(0, 40), sums(0, 20)))
    # Not taken: its tokens are consumed, its loss is no number.
    step(trainer, metrics=sources(sums(20, 20), sums(float("nan"), 1)), finite=False)
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    assert (first["source_tokens"], first["source_loss"]) == ({"web": 40}, {"web": 2.5})
    assert (second["source_tokens"], second["source_loss"]) == ({"web": 60, "code": 60}, {"code": 0.5})


def test_sources_survive_a_resume_between_two_records(tmp_path: Path) -> None:
    steps = [(sums(n, 3 * n), sums(0.1 * n, 0.7 / n)) for n in (1, 2, 3, 4)]

    def written(folder: Path, resumed_after: int | None) -> list[dict]:
        config = quiet(log_every=4, data=TWO_SOURCES)
        trainer = recording_trainer(folder, config)
        trainer.start()
        for number, (tokens_S, nll_S) in enumerate(steps):
            if number == resumed_after:
                trainer.close()
                states = json.loads(json.dumps([hook.state_dict() for hook in trainer.hooks]))
                resumed = recording_trainer(folder, config)
                resumed.state = trainer.state
                for hook, state in zip(resumed.hooks, states, strict=True):
                    hook.load_state_dict(state)
                resumed.start()
                trainer = resumed
            step(trainer, metrics=sources(tokens_S, nll_S))
        trainer.close()
        return read_jsonl(folder / "metrics.jsonl")

    (whole,), (resumed,) = written(tmp_path / "whole", None), written(tmp_path / "resumed", 3)
    for name in ("source_tokens", "source_loss"):
        assert resumed[name] == whole[name]
    assert whole["source_tokens"] == {"web": 10, "code": 30}


def test_a_source_that_is_no_longer_configured_keeps_its_tokens() -> None:
    trainer: Any = FakeTrainer(config=quiet(data=TWO_SOURCES))
    result = result_of(trainer, metrics=sources(sums(2, 0), sums(1, 0)))
    hook = SourcesHook()

    def recorded() -> tuple[Any, Any]:
        hook.on_record(trainer, result)
        return trainer.recorded()["source_tokens"], trainer.recorded().get("source_loss")

    hook.load_state_dict({"sources": {"total": {"gone": 7.0, "web": 1.0}, "tokens": {}, "nll": {}}})
    assert hook.state_key == "metrics"  # where it lies in checkpoints
    assert hook.state_dict()["sources"]["total"] == {"gone": 7, "web": 1}  # before the first step
    hook.on_step_end(trainer, result)
    assert recorded() == ({"gone": 7, "web": 3}, {"web": 0.5})
    hook.load_state_dict({})
    hook.on_step_end(trainer, result)
    assert recorded() == ({"web": 2}, {"web": 0.5})


def test_records_tell_what_phases_change_and_what_went_wrong(tmp_path: Path) -> None:
    trainer = recording_trainer(tmp_path, quiet(log_every=4))
    trainer.state = TrainState(
        step=3, samples={"main": 32}, skipped={"main": [(8, 16), (24, 28)]}, rollbacks=2, total_nonfinite_steps=5
    )
    trainer.start()
    step(trainer)
    (record,) = read_jsonl(tmp_path / "metrics.jsonl")
    expected = {"batch_size": 8, "seq_len": 16, "rope_theta": 1e6, "skipped_samples": 12, "rollbacks": 2,
                "nonfinite_steps_total": 5, "source_epochs": {"text": 4.0}}  # fmt: skip
    assert {name: record[name] for name in expected} == expected


def test_a_run_that_is_stopped_has_a_record_of_its_last_step(tmp_path: Path) -> None:
    trainer = recording_trainer(tmp_path, quiet(log_every=4))
    trainer.start()
    step(trainer)
    for _ in range(2):  # and only one
        for hook in trainer.hooks:
            hook.on_train_end(trainer)
    assert [record["step"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [1]


@pytest.mark.parametrize(("num_steps", "log_every", "num_lists"), [(40, 1, 40), (40_000, 1, 10), (40_000, 10, 4)])
def test_lists_come_in_so_many_records_whatever_the_length(
    tmp_path: Path, num_steps: int, log_every: int, num_lists: int
) -> None:
    phase = {"name": "main", "steps": num_steps, "seq_len": 16, "batch_size": 8}
    trainer = recording_trainer(tmp_path, quiet(log_every=log_every, phases=[phase]))
    trainer.start()
    for _ in range(40):
        step(trainer, counts_LE=torch.ones(3, 8, dtype=torch.int64))
    written = read_jsonl(tmp_path / "metrics.jsonl")
    assert len(written) == 40 // log_every
    assert sum("layer_max_violation" in record for record in written) == num_lists
    assert sum("expert_load" in record for record in written) == (20 if num_steps == 40 else 0)


def test_a_record_of_the_largest_model_is_small(tmp_path: Path) -> None:
    trainer = recording_trainer(tmp_path, quiet())
    generator = torch.Generator().manual_seed(0)
    biases = dict(enumerate(torch.zeros(90, 160)))
    trainer.backend.router_biases = lambda: biases
    trainer.start()
    for bias_E in biases.values():
        bias_E.uniform_(-0.1, 0.1, generator=generator)
    step(trainer, counts_LE=torch.randint(1, 99_999, (90, 160), generator=generator))
    step(trainer, counts_LE=torch.randint(1, 99_999, (90, 160), generator=generator))
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    kinds = {name for name in json.loads(lines[0]) if name.startswith("layer_")}
    assert len(kinds) == 6
    table = len(json.dumps(json.loads(lines[0])["expert_load"]))
    # Six lists of 90 numbers of at most 8 characters, and a few dozen scalars.
    assert len(lines[0]) - table < 6000


def test_what_an_objective_tells_is_of_steps_that_were_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Metric("asked", "tokens", "run", "labels", SUM)
    monkeypatch.setattr(NextTokenObjective, "metric_rows", (row,))
    monkeypatch.setattr(NextTokenObjective, "metric_values", lambda self, sums: {"asked": sums["source_tokens"].sum()})
    trainer = recording_trainer(tmp_path, run_config(observe={"log_every": 3}))
    trainer.start()
    for finite in (True, False, True):
        step(trainer, finite=finite, metrics=sources(torch.tensor([2.0]), torch.tensor([1.0])))
    trainer.close()
    assert [record["asked"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [4]
