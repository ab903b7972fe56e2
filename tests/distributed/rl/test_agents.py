"""Conversations and the steps on them are those of one process, on every layout."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.optimizers import OPTIMIZERS
from glmforge.parallel.world import World, join_world
from glmforge.training.trainer import Hook, Trainer
from helpers.agents import agents_of
from helpers.distributed import run_ranks
from helpers.rollouts import config_of
from helpers.sgd import SGD
from helpers.tiny_data import TinyData

LAYOUTS: dict[str, dict[str, Any]] = {"fsdp ep": {"dp_shard": 2, "ep": 2}, "tp": {"tp": 2}}


class Notes(Hook):
    name = "notes"

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_step_end(self, trainer: Trainer, result: Any) -> None:
        values = dict(trainer.phase.objective.metric_values(result.metrics)) | result.losses
        measured = trainer.source.metrics()
        self.values.append(values | {name: measured[name] for name in ("reward", "answer_tokens", "answers_cut_share")})


def run(world: World, tokenizer: Path, parallel: dict[str, Any]) -> list[dict[str, float]]:
    notes, source = Notes(), agents_of(world, tokenizer, parallel)
    Trainer(source.config, source.backend, source, [notes]).fit()
    return notes.values


def run_rank(tokenizer: Path, parallel: dict[str, Any]) -> list[dict[str, float]]:
    OPTIMIZERS["sgd"] = SGD
    with join_world(resolve_layout(config_of(parallel), dist.get_world_size()), timeout_s=60) as world:
        return run(world, tokenizer, parallel)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_is_that_of_one_process(layout: str, tiny_data: TinyData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "sgd", SGD)
    single = World(0, 1, torch.device("cpu"), resolve_layout(config_of({}), 1))
    expected = run(single, tiny_data.tokenizer, {})
    assert all(0 < one["reward"] < 1 and one["gap_max"] < 1e-4 for one in expected)
    for found in run_ranks(run_rank, 2, tiny_data.tokenizer, LAYOUTS[layout]):
        for one, other in zip(found, expected, strict=True):
            assert one["gap_max"] < 1e-4
            for name, value in other.items():
                if not name.startswith("gap_"):
                    assert one[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name  # sums in another order
