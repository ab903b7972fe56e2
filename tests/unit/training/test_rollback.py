"""Going back: the run takes up an earlier checkpoint, leaves the named samples out, and ends where the plan ends."""

from pathlib import Path

import pytest

from glmforge.checkpoint import latest_checkpoint
from glmforge.config.schema import RunConfig
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.errors import DivergedError, RollBack
from glmforge.training.skipped import recall_skipped, remember_skipped
from glmforge.training.source import Position
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.tiny_data import TinyData

NUM_STEPS = 12


class GoBack(Hook):
    """Finds a spike at the end of step `at`, over the batches of the last `length` steps, once."""

    name = "go_back"

    def __init__(self, at: int, length: int = 1) -> None:
        self.at, self.length = at, length
        self.seen: list[tuple[int, int]] = []
        self.went_back_to: list[int] = []

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.seen.append((trainer.state.step, result.samples.first))
        if trainer.state.step == self.at and not self.went_back_to:
            first = result.samples.first - (self.length - 1) * result.samples.size
            raise RollBack(
                phase=trainer.phase.name,
                first_sample=first,
                stop_sample=result.samples.stop,
                before_step=self.at - self.length + 1,
            )

    def on_rollback(self, trainer: Trainer) -> None:
        self.went_back_to.append(trainer.state.step)


def config_for(tiny_data: TinyData, output_dir: Path, every_steps: int = 4) -> RunConfig:
    return tiny_data.run_config(
        output_dir,
        phases=[{"name": "main", "steps": NUM_STEPS, "seq_len": 32, "batch_size": 2}],
        checkpoint={"every_steps": every_steps, "keep_last": 5},
    )


def test_the_spike_is_left_out_and_the_plan_stays(tiny_data: TinyData, tmp_path: Path) -> None:
    config, hook = config_for(tiny_data, tmp_path / "run"), GoBack(at=7, length=2)
    state = train(config, [hook])
    assert hook.went_back_to == [4]
    # Steps 6 and 7 had samples 10 to 13; after the return step 6 has the batch behind them.
    assert hook.seen == [(n, 2 * n - 2) for n in range(1, 8)] + [(5, 8)] + [(n, 2 * n + 2) for n in range(6, 11)]
    assert state.skipped == {"main": [(10, 14)]}
    assert (state.step, state.rollbacks, state.samples) == (NUM_STEPS - 2, 1, {"main": 2 * NUM_STEPS})
    assert state.tokens == config.num_tokens
    records = read_jsonl(config.output_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, NUM_STEPS - 1))
    assert recall_skipped(config.output_dir) == (state.skipped, 1)


def test_a_kill_before_the_next_checkpoint_does_not_forget_the_spike(tiny_data: TinyData, tmp_path: Path) -> None:
    class Kill(Exception):
        pass

    class KillAfterReturn(GoBack):
        def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
            super().on_step_end(trainer, result)
            if self.went_back_to:
                raise Kill

    config = config_for(tiny_data, tmp_path / "run")
    with pytest.raises(Kill):
        train(config, [KillAfterReturn(at=6)])
    hook = GoBack(at=-1)
    state = train(config, [hook])
    assert hook.seen == [(5, 8)] + [(n, 2 * n) for n in range(6, NUM_STEPS)]
    assert (state.skipped, state.rollbacks) == ({"main": [(10, 12)]}, 1)


@pytest.mark.parametrize(("length", "last_step"), [(4, 8), (2, 10)])
def test_a_spike_in_the_last_batches_ends_the_phase_early(
    tiny_data: TinyData, tmp_path: Path, length: int, last_step: int
) -> None:
    """Whether or not there are batches left between the checkpoint and the spike."""
    config, hook = config_for(tiny_data, tmp_path / "run"), GoBack(at=NUM_STEPS, length=length)
    state = train(config, [hook])
    assert hook.went_back_to == [8]
    assert (state.step, state.samples, state.tokens) == (last_step, {"main": 2 * NUM_STEPS}, config.num_tokens)
    assert state.is_done
    newest = latest_checkpoint(config.output_dir / "checkpoints")
    assert newest is not None
    assert newest.name == f"step-{last_step:08d}"


def test_without_an_earlier_checkpoint_the_run_ends(tiny_data: TinyData, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="step 3: the loss spiked before the first checkpoint to roll back to"):
        train(config_for(tiny_data, tmp_path / "run"), [GoBack(at=3)])


def test_left_out_ranges_are_merged_and_remembered(tmp_path: Path) -> None:
    position = Position()
    for samples in ((8, 12), (20, 24), (12, 16), (9, 10)):
        position = position.leaving_out({"main": [samples]})
    state = TrainState(rollbacks=3)
    state.move_to(position)
    assert state.skipped == {"main": [(8, 16), (20, 24)]}
    assert recall_skipped(tmp_path) == ({}, 0)
    remember_skipped(tmp_path, state)
    assert recall_skipped(tmp_path) == ({"main": [(8, 16), (20, 24)]}, 3)
