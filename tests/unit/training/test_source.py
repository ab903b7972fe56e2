"""Any source of batches is trained on alike: here recorded rollouts, of which nobody knows how many there are.

They have named tensors and an objective of their own.
"""

import inspect
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.backend.base import Backend
from glmforge.backend.native import NativeBackend
from glmforge.checkpoint import latest_checkpoint, read_meta
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.bus import MetricsBus
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run_sinks import run_sinks
from glmforge.optim.optimizer import build_optimizer
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from glmforge.training.errors import RollBack
from glmforge.training.hooks import CheckpointHook, MetricsHook
from glmforge.training.source import BatchSource, Phase, Position, Range, StepInput
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.models import run_config
from helpers.objectives.policy_gradient import PolicyGradientObjective

ROWS, SEQ_LEN, NUM_ROLLOUTS = 2, 8, 14


class RecordedRollouts(BatchSource):
    """Rollouts in the order in which they were recorded, two at a time."""

    def __init__(self, recorded: Sequence[Batch], phase: Phase) -> None:
        self._recorded, self._phase, self._position = recorded, phase, Position()

    @property
    def position(self) -> Position:
        return self._position

    def next(self) -> StepInput | None:
        first, left_out = self._position.samples.get(self._phase.name, 0), self._position.skipped
        while any(start < first + ROWS and first < stop for start, stop in left_out.get(self._phase.name, ())):
            first += ROWS
        if first >= ROWS * len(self._recorded):
            return None
        batch = self._recorded[first // ROWS]
        self._position = self._position.after(self._phase.name, first + ROWS, batch.num_tokens)
        return StepInput(batch, self._phase, lr=1e-3, first_sample=first, position=self._position)

    def leave_out(self, skipped: Mapping[str, Sequence[Range]]) -> None:
        self._position = self._position.leaving_out(skipped)

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        self._position = position
        return ()


class RolloutObjective(PolicyGradientObjective):
    """Under the names that a run's records have."""

    terms = ("loss", "aux")


class Seen(Hook):
    """Notes what was trained on, and may ask for things at the end of a step."""

    def __init__(self, at: int = 0, error: Exception | None = None) -> None:
        self.at, self.error = at, error
        self.seen: list[tuple[int, int, float]] = []

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.seen.append((trainer.state.step, result.samples.first, result.losses["loss"]))
        if trainer.state.step == self.at and self.error is not None:
            error, self.error = self.error, None
            raise error


def config_for(output_dir: Path) -> RunConfig:
    return run_config(
        output_dir=str(output_dir),
        checkpoint={"every_steps": 2, "keep_last": 9},
        observe={"progress": False, "tensorboard": False},
    )


def backend_for(config: RunConfig) -> Backend:
    model = build_model(config, World.single("cpu"))
    table = parameter_table(config.model)
    return NativeBackend(model, build_optimizer(model.named_parameters(), table, config.optim))


def rollouts(config: RunConfig) -> list[Batch]:
    """With the advantage and the former log probability of every token."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(config.model.vocab_size, (NUM_ROLLOUTS, ROWS, SEQ_LEN + 1), generator=generator)
    advantages = torch.randn(NUM_ROLLOUTS, ROWS, SEQ_LEN, generator=generator)
    old_logprobs = torch.full((ROWS, SEQ_LEN), -math.log(config.model.vocab_size))
    return [
        Batch(
            ids_BS[:, :-1],
            ids_BS[:, 1:],
            document_lengths=((SEQ_LEN,),) * ROWS,
            sample_indices=(ROWS * i, ROWS * i + 1),
            source_B=(0,) * ROWS,
            per_token={"advantages": advantages[i], "old_logprobs": old_logprobs},
        )
        for i, ids_BS in enumerate(rows)
    ]


def train(config: RunConfig, hook: Hook) -> TrainState:
    """From the newest checkpoint on, if there is one."""
    phase = Phase("rollouts", RolloutObjective(), micro_batch_size=1)
    source = RecordedRollouts(rollouts(config), phase)
    checkpoints = CheckpointHook(config, {}, "none")
    hooks = [MetricsHook(), hook, checkpoints]
    trainer = Trainer(config, backend_for(config), source, hooks, MetricsBus(run_sinks(config, source.total)))
    checkpoints.resume(trainer)
    return trainer.fit()


def test_a_source_of_unknown_length_is_trained_on_to_its_end(tmp_path: Path) -> None:
    config, hook = config_for(tmp_path), Seen()
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"every_steps": 4})})
    state = train(config, hook)
    assert [(step, first) for step, first, _ in hook.seen] == [(n, ROWS * (n - 1)) for n in range(1, NUM_ROLLOUTS + 1)]
    assert (state.step, state.is_done, state.samples) == (NUM_ROLLOUTS, True, {"rollouts": ROWS * NUM_ROLLOUTS})
    assert state.tokens == NUM_ROLLOUTS * ROWS * SEQ_LEN
    assert [record["loss"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [loss for *_, loss in hook.seen]
    newest = latest_checkpoint(tmp_path / "checkpoints")  # saved once the end was known
    assert newest is not None
    meta = read_meta(newest)
    assert (meta.step, meta.phase, meta.samples_consumed) == (NUM_ROLLOUTS, "rollouts", {"rollouts": 28})
    assert train(config, Seen()) == state


def test_it_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    whole, before, after = Seen(), Seen(at=7, error=InterruptedError()), Seen()
    train(config_for(tmp_path / "whole"), whole)
    with pytest.raises(InterruptedError):
        train(config_for(tmp_path / "parts"), before)
    train(config_for(tmp_path / "parts"), after)
    assert before.seen[:6] + after.seen == whole.seen


def test_it_goes_back_and_leaves_out(tmp_path: Path) -> None:
    back = RollBack(phase="rollouts", first_sample=8, stop_sample=10, before_step=5)
    hook = Seen(at=5, error=back)
    state = train(config_for(tmp_path), hook)
    assert [first for _, first, _ in hook.seen] == [0, 2, 4, 6, 8, *range(10, ROWS * NUM_ROLLOUTS, ROWS)]
    assert (state.step, state.rollbacks, state.skipped) == (NUM_ROLLOUTS - 1, 1, {"rollouts": [(8, 10)]})


def test_the_example_of_a_loop_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The block in the trainer's docstring is run as it stands there."""
    documentation = inspect.getdoc(Trainer) or ""
    start = documentation.index("    trainer = Trainer(config, backend)")
    example = documentation[start : documentation.index("\n\n", start)]
    config = config_for(tmp_path)
    names = globals() | {"config": config, "backend": backend_for(config)}
    exec(textwrap.dedent(example), names)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.1  # it learns its four rows by heart
    trainer = names["trainer"]
    assert (trainer.state.step, trainer.state.samples, trainer.state.tokens) == (8, {"notebook": 32}, 8 * 4 * 16)


def test_hooks_and_checkpoints_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    """Without a source the position is what was counted, also after a resume."""
    config = config_for(tmp_path)
    phase = Phase("mine", NextTokenObjective(config.phases[0], num_mtp_layers=0))

    def take_steps(batches: Sequence[Batch]) -> tuple[list[float], TrainState]:
        checkpoints = CheckpointHook(config, {}, "none")
        trainer = Trainer(config, backend_for(config), hooks=[checkpoints])
        checkpoints.resume(trainer)
        with trainer.running():
            losses = [trainer.step(StepInput(batch, phase, lr=1e-3)).losses["loss"] for batch in batches]
        return losses, trainer.state

    batches = rollouts(config)
    first, _ = take_steps(batches[:4])
    second, state = take_steps(batches[4:6])
    assert (state.step, state.samples) == (6, {"mine": 12})
    other = tmp_path / "other"
    config = config_for(other)
    assert take_steps(batches[:6])[0] == first + second
