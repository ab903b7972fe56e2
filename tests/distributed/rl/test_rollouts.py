"""Rollouts and the steps on them are those of one process, on every layout."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.optimizers import OPTIMIZERS
from glmforge.parallel.world import World, join_world
from glmforge.training.trainer import Hook, Trainer
from helpers.distributed import run_ranks
from helpers.rollouts import config_of, settings_of, source_of
from helpers.sgd import SGD

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp ep": (2, {"dp_shard": 2, "ep": 2}),
    "tp": (2, {"tp": 2}),
    "cp": (2, {"cp": 2}),
    "pp": (2, {"pp": 2}),
    "dp tp": (4, {"dp_replicate": 2, "tp": 2}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two steps": {"steps_per_rollout": 2, "surrogate": {"level": "sequence", "low": 0.1, "high": 0.1}},
    "tokens": {"advantage": {"kind": "reinforce++"}},
    "some wait": {"rollout": {"over_sampling": 1.8}},
}


class Notes(Hook):
    name = "notes"

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_step_end(self, trainer: Trainer, result: Any) -> None:
        values: dict[str, Any] = dict(trainer.phase.objective.metric_values(result.metrics))
        measured = {name: x for name, x in trainer.source.metrics().items() if not name.endswith("_seconds")}
        self.values.append(values | measured | result.losses | {"grad_norm": result.grad_norm})


def run(world: World, parallel: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, float]]:
    notes, source = Notes(), source_of(config_of(parallel, steps=3), settings_of(**settings), world)
    Trainer(source.config, source.backend, source, [notes]).fit()
    return notes.values


def run_rank(parallel: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, float]]:
    OPTIMIZERS["sgd"] = SGD
    config = config_of(parallel)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        return run(world, parallel, settings)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[dict[str, float]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPTIMIZERS, "sgd", SGD)
        world = World(0, 1, torch.device("cpu"), resolve_layout(config_of({}), 1))
        return {name: run(world, {}, settings) for name, settings in SETTINGS.items()}


def assert_small_gap(values: dict[str, float]) -> None:
    """Of answers that were sampled with the weights that were trained then."""
    if not values.get("stale_share"):
        assert values["gap_mean"] < 1e-6
        assert values["gap_max"] < 1e-4


CASES = [(layout, "plain") for layout in ("fsdp ep", "pp", "cp")] + [("dp tp", "two steps"), ("dp tp", "tokens")]
CASES += [("fsdp ep", "some wait")]
CASES += [
    pytest.param(layout, name, marks=pytest.mark.full)
    for layout, name in (("tp", "plain"), ("dp tp", "plain"), ("cp", "two steps"), ("fsdp ep", "two steps"))
]


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_a_run_is_that_of_one_process(layout: str, name: str, expected: dict[str, list[dict[str, float]]]) -> None:
    num_ranks, parallel = LAYOUTS[layout]
    for found in run_ranks(run_rank, num_ranks, parallel, SETTINGS[name]):
        assert len(found) == 3
        for step, (one, other) in enumerate(zip(found, expected[name], strict=True)):
            assert_small_gap(one)
            for metric, value in other.items():
                if not metric.startswith("gap_"):
                    # Sums in another order; nothing that is sampled differs.
                    assert one[metric] == pytest.approx(value, rel=1e-4, abs=1e-6), (step, metric)


def test_one_process_learns_and_its_engine_is_the_trainer(expected: dict[str, list[dict[str, float]]]) -> None:
    for values in expected.values():
        for one in values:
            assert_small_gap(one)
        assert all(one["grad_norm"] > 0 for one in values)
        assert values[-1]["entropy"] != values[0]["entropy"]
