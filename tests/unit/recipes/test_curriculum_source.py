"""The curriculum as a source: phases in order, one learning rate over all, and on from any position."""

from functools import partial
from pathlib import Path

import pytest
import torch

from glmforge.config.schema import RunConfig
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.world import World
from glmforge.recipes.curriculum_source import CurriculumSource
from glmforge.recipes.run_data import open_data
from glmforge.training.source import Position, StepInput
from helpers.tiny_data import TinyData

WORLD = World.single("cpu")
RAMP = {"start": 2, "increment": 2, "tokens": 64}
PHASES = [
    {"name": "short", "steps": 3, "seq_len": 16, "batch_size": 4, "batch_ramp": RAMP},
    {"name": "long", "steps": 2, "seq_len": 32, "batch_size": 2, "rope_theta": 2e6},
]


@pytest.fixture
def config(tiny_data: TinyData, tmp_path: Path) -> RunConfig:
    return tiny_data.run_config(tmp_path, phases=PHASES, optim={"lr": 1.0, "min_lr": 0.5, "schedule": "linear"})


def make(config: RunConfig) -> CurriculumSource:
    curriculum = open_data(config, WORLD).curriculum
    return CurriculumSource(config, curriculum, WORLD, partial(NextTokenObjective, num_mtp_layers=1))


def rest(source: CurriculumSource) -> list[StepInput]:
    return list(iter(source.next, None))


def test_phases_come_in_order_and_the_last_batch_is_known(config: RunConfig) -> None:
    source = make(config)
    given = rest(source)
    assert [(one.phase.name, one.first_sample, len(one.batch.ids_BS)) for one in given] == [
        ("short", 0, 2),
        ("short", 2, 2),
        ("short", 4, 4),
        ("long", 0, 2),
        ("long", 2, 2),
    ]
    assert [one.is_last for one in given] == [False] * 4 + [True]
    assert [one.phase.rope_theta for one in given] == [None] * 3 + [2e6] * 2
    tokens = [one.position.tokens for one in given if one.position is not None]
    assert tokens == [32, 64, 128, 192, 256] == [32, 64, 128, 192, source.total.tokens]
    assert [one.lr for one in given] == [1.0 - 0.5 * n / 256 for n in tokens]
    assert source.next() is None


@pytest.mark.parametrize("num_taken", range(5))
def test_it_goes_on_from_its_state(config: RunConfig, num_taken: int) -> None:
    whole, source = rest(make(config)), make(config)
    for _ in range(num_taken):
        source.next()
    other = make(config)
    assert other.load_state_dict(source.state_dict(), source.position) == []
    for ours, theirs in zip(rest(other), whole[num_taken:], strict=True):
        assert torch.equal(ours.batch.ids_BS, theirs.batch.ids_BS)
        assert (ours.position, ours.lr, ours.first_sample) == (theirs.position, theirs.lr, theirs.first_sample)


def test_a_schedule_of_steps_counts_those_that_are_behind(config: RunConfig) -> None:
    optim = config.optim.model_copy(update={"schedule_unit": "steps", "warmup_steps": 1})
    config = config.model_copy(update={"optim": optim})
    rates = [1.0, 1.0 - 0.5 / 4, 1.0 - 1.0 / 4, 1.0 - 1.5 / 4, 0.5]
    source = make(config)
    assert [one.lr for one in rest(source)] == rates
    for num_taken in range(5):
        first, second = make(config), make(config)
        for _ in range(num_taken):
            first.next()
        second.load_state_dict(first.state_dict(), first.position)
        assert [one.lr for one in rest(second)] == rates[num_taken:]
    left = make(config)
    left.leave_out({"short": [(2, 8)]})
    assert [one.lr for one in rest(left)] == [rates[2], *rates[3:]]  # as if they had been trained on


def test_what_is_left_out_counts_as_if_it_had_been_trained_on(config: RunConfig) -> None:
    source = make(config)
    source.next()
    source.leave_out({"short": [(3, 4)], "long": [(0, 4)], "gone": [(0, 1)]})
    (given,) = rest(source)
    assert (given.phase.name, given.first_sample, given.is_last) == ("short", 4, True)
    assert source.position == Position(
        tokens=256, samples={"short": 8, "long": 4}, skipped={"short": [(3, 4)], "long": [(0, 4)]}
    )
