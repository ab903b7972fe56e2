"""The hooks in a real run: preempted, told things, spiking."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glmforge.checkpoint.format import shards
from glmforge.config.schema import RunConfig
from glmforge.observe.control import Command, send_command
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.errors import Preempted
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.hooks import events
from helpers.tiny_data import TinyData


class At(Hook):
    """Calls `act` before each step whose number is in `steps`, once each."""

    name = "at"

    def __init__(self, act: Callable[[], object], *steps: int) -> None:
        self.act, self.steps = act, set(steps)

    def on_step_start(self, trainer: Trainer) -> None:
        if trainer.state.step + 1 in self.steps:
            self.steps.remove(trainer.state.step + 1)
            self.act()


class Spike(Hook):
    """Ruins the weights for good before a step."""

    name = "ruin"

    def __init__(self, step: int) -> None:
        self.step: int | None = step

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.state.step == self.step:
            self.step = None
            for chunk in trainer.backend.local_chunks():
                chunk.weight.mul_(30)


def config_of(tiny_data: TinyData, root: Path, steps: int = 6, **sections: Any) -> RunConfig:
    phases = [{"name": "main", "steps": steps, "seq_len": 16, "batch_size": 2}]
    return tiny_data.run_config(root, phases=phases, **sections)


def losses(root: Path) -> list[float]:
    return [record["loss"] for record in read_jsonl(root / "metrics.jsonl")]


def test_a_preempted_run_goes_on_as_if_nothing_had_been(tiny_data: TinyData, tmp_path: Path) -> None:
    whole, root = tmp_path / "whole", tmp_path / "run"
    train(config_of(tiny_data, whole))
    config = config_of(tiny_data, root)
    with pytest.raises(Preempted) as ended:
        train(config, [At(lambda: os.kill(os.getpid(), signal.SIGUSR1), 3)])
    assert ended.value.exit_code == 75
    assert train(config).step == 6
    assert losses(root) == losses(whole)
    assert [(event, step) for event, step, _ in events(root) if event != "saved"] == [
        ("started", 0),
        ("preempted", 3),
        ("resumed", 3),
        ("finished", 6),
    ]


class Heard(Hook):
    """Notes what slow work says of itself."""

    name = "heard"

    def __init__(self) -> None:
        self.words: set[str] = set()

    def on_alive(self, trainer: Trainer, what: str) -> None:
        self.words.add(what)


def test_what_is_slow_between_two_steps_says_so(
    tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_WRITE_BACK_BYTES", 1 << 10)  # a piece is small, as the model is
    heard = Heard()
    observe = {
        "evaluate_every": 2,
        "evaluate_tokens": 64,
        "samples": {"prompts": ["A"], "max_new_tokens": 3},
        "needles": {"lengths": [160], "depths": [0.5], "answers": "scored"},
    }
    phases = [{"name": "main", "steps": 2, "seq_len": 160, "batch_size": 2}]
    train(tiny_data.run_config(tmp_path, phases=phases, observe=observe), [heard])
    expected = {
        "reading phase 'main'",
        "evaluation, batch 1 of",
        "generation, 1 answer to finish",
        "needles, forward 1 of",
    }
    expected |= {"saving a checkpoint"}
    assert {said for said in expected if not any(word.startswith(said) for word in heard.words)} == set()


def test_a_live_run_is_told_to_save_profile_and_stop(tiny_data: TinyData, tmp_path: Path) -> None:
    commands = iter((Command("save"), Command("profile", 1), Command("stop")))
    state = train(config_of(tiny_data, tmp_path), [At(lambda: send_command(tmp_path, next(commands)), 1, 3, 4)])
    assert state.step == 5  # a command is seen before the next step
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith("step-"))
    assert saved == ["step-00000002", "step-00000005"]
    assert {path.name for path in (tmp_path / "profile" / "step-00000004").iterdir()} == {
        "rank-00000.txt",
        "rank-00000.trace.json.gz",
    }
    assert [(event, detail) for event, _, detail in events(tmp_path) if event in ("control", "stopped")] == [
        ("control", "save"),
        ("control", "profile 1"),
        ("control", "stop"),
        ("stopped", "requested by the control file"),
    ]


def test_a_spiking_run_goes_back_and_leaves_the_batches_out(tiny_data: TinyData, tmp_path: Path) -> None:
    spikes = {"window": 16, "threshold": 10.0, "patience": 2}
    config = config_of(
        tiny_data,
        tmp_path,
        steps=16,
        checkpoint={"every_steps": 3},
        fault_tolerance={"spikes": spikes},
        observe={"anomalies": {"window": 16}},
    )
    state = train(config, [Spike(step=8)])
    # Ruined after step 8, seen in steps 9 and 10, back to the checkpoint of step 6, which knows nothing of it.
    assert state.skipped == {"main": [(16, 20)]}
    assert state.rollbacks == 1
    assert state.samples == {"main": 32}
    assert state.step == 14  # two batches fewer than planned
    assert max(losses(tmp_path)) < 2 * losses(tmp_path)[0]
    assert ("spike", 10) in [(event, step) for event, step, _ in events(tmp_path)]
    (first, *_) = read_jsonl(tmp_path / "anomalies.jsonl")
    assert (first["step"], first["first_sample"], first["stop_sample"]) == (9, 16, 18)
    assert [sample["sample"] for sample in first["samples"]] == [16, 17]


def test_debug_metrics_are_recorded(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_of(tiny_data, tmp_path, steps=2, observe={"debug": {"layer_grad_norms": True}})
    train(config)
    num_layers = config.model.num_hidden_layers + config.model.num_nextn_predict_layers
    for record in read_jsonl(tmp_path / "metrics.jsonl"):
        norms = record["layer_grad_norms"]
        assert len(norms) == num_layers
        assert all(norm > 0 for norm in norms)
        assert sum(norm**2 for norm in norms) < record["grad_norm"] ** 2  # embedding and head are in none
