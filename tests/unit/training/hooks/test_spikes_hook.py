"""When the run goes back, to where, and what it leaves out."""

import math
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.fault_tolerance import SpikeConfig
from glmforge.training.errors import DivergedError, RollBack
from glmforge.training.hooks.spikes import SpikeHook
from helpers.hooks import FakeTrainer, events, fake_config

CONFIG = SpikeConfig(window=8, threshold=10.0, patience=3, max_rollbacks=2)
CALM = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0]
PHASES = [{"name": name, "steps": 100, "seq_len": 16, "batch_size": 8} for name in ("first", "second")]


def trainer_of(hook: SpikeHook, root: Path | None = None) -> FakeTrainer:
    return FakeTrainer(hook, config=fake_config(phases=PHASES), root=root)


def train(trainer: FakeTrainer, losses: list[float], **changes: Any) -> RollBack | None:
    try:
        for loss in losses:
            trainer.step(loss=loss, **changes)
    except RollBack as back:
        return back
    return None


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([9.0, 9.0], None),
        ([9.0, 9.0, 2.0, 9.0, 9.0], None),
        ([9.0, 9.0, 9.0, 9.0], 9),
        ([9.0, math.nan, math.inf, 2.0], 9),
        ([2.1, 9.0, 8.0, 7.0], 10),
        ([0.1, 0.1, 0.1], None),
    ],
    ids=["too short", "interrupted", "spike", "not finite", "after one more", "a drop"],
)
def test_patience(tmp_path: Path, losses: list[float], step: int | None) -> None:
    trainer = trainer_of(SpikeHook(CONFIG), tmp_path)
    back = train(trainer, CALM + losses)
    if step is None:
        assert back is None
        assert events(tmp_path) == []
        return
    assert back is not None
    assert trainer.state.step == step
    # 8 samples per step; the three steps of the spike and no more
    assert (back.phase, back.before_step) == ("first", step - 2)
    assert (back.first_sample, back.stop_sample) == (8 * (step - 3), 8 * step)
    ((event, at, detail),) = events(tmp_path)
    assert (event, at) == ("spike", step)
    assert f"samples [{8 * (step - 3)}, {8 * step}) of phase 'first'" in detail


def test_spiking_losses_do_not_become_the_normal() -> None:
    """Pairs of high losses, as many as the window is long: each is judged by the calm ones."""
    hook = SpikeHook(CONFIG)
    trainer = trainer_of(hook)
    assert train(trainer, CALM + [9.0, 9.0, 2.0] * 8) is None
    assert train(trainer, [9.0] * 3) is not None


def test_a_spike_does_not_reach_over_the_border_of_phases() -> None:
    trainer = trainer_of(SpikeHook(CONFIG))
    assert train(trainer, [*CALM, 9.0, 9.0]) is None
    assert train(trainer, [9.0, 9.2, 8.9, 9.1, 9.0], phase=1) is None  # the level of the new phase
    back = train(trainer, [30.0] * 3, phase=1)
    assert back is not None
    assert (back.phase, back.first_sample, back.stop_sample, back.before_step) == ("second", 40, 64, 14)


def test_a_spike_goes_on_after_a_resume() -> None:
    before = trainer_of(SpikeHook(CONFIG))
    assert train(before, [*CALM, 9.0, 9.0]) is None
    resumed = SpikeHook(CONFIG)
    resumed.load_state_dict(before.hooks[0].state_dict())
    trainer = trainer_of(resumed)
    trainer.state = before.state
    back = train(trainer, [9.0])
    assert back is not None
    assert (back.before_step, back.first_sample, back.stop_sample) == (7, 48, 72)


def test_going_back_forgets_the_spike_and_keeps_what_is_normal() -> None:
    hook = SpikeHook(CONFIG)
    trainer = trainer_of(hook)
    assert train(trainer, CALM + [9.0] * 3) is not None
    hook.on_rollback(trainer)  # type: ignore[arg-type]
    assert train(trainer, [9.0, 9.0]) is None
    assert train(trainer, [9.0]) is not None


@pytest.mark.parametrize("vote", ["preempt", "interrupt", "stop"])
def test_a_run_that_ends_goes_back_at_its_next_start(vote: str) -> None:
    hook = SpikeHook(CONFIG)
    trainer = trainer_of(hook)
    assert train(trainer, [*CALM, 9.0, 9.0]) is None
    assert train(trainer, [9.0], votes=frozenset({vote})) is None
    resumed = SpikeHook(CONFIG)
    resumed.load_state_dict(hook.state_dict())
    trainer.hooks = (resumed,)
    back = train(trainer, [2.0])  # whatever this step is like
    assert back is not None
    assert (back.before_step, back.first_sample, back.stop_sample) == (7, 48, 72)


def test_a_save_that_was_asked_for_is_not_lost() -> None:
    trainer = trainer_of(SpikeHook(CONFIG))
    assert train(trainer, [*CALM, 9.0, 9.0]) is None
    assert train(trainer, [9.0], votes=frozenset({"save"})) is not None
    assert trainer.votes == {"save"}


def test_one_spike_too_many_ends_the_run() -> None:
    trainer = trainer_of(SpikeHook(CONFIG))
    trainer.state.rollbacks = 1
    assert train(trainer, CALM + [9.0] * 3) is not None
    trainer.hooks[0].on_rollback(trainer)  # type: ignore[arg-type]
    trainer.state.rollbacks = 2
    with pytest.raises(DivergedError, match=r"rolled back 2 times already \(.*spikes.max_rollbacks = 2\)"):
        train(trainer, [9.0] * 3)
