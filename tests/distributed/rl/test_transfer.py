"""Weights and adapters written from the shards of any layout, and what a transfer takes of a rank's memory."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.checkpoint.adapter.from_peft import read_peft
from glmforge.config.layout import resolve_layout
from glmforge.parallel.world import join_world
from glmforge.rl.engines.base import EngineError, EngineLostError, together
from glmforge.rl.transfer.directory import write_adapter
from helpers.distributed import run_ranks
from helpers.rl_engines import Policy, noise, run_config

LORA = {"rank": 2, "targets": ["q_proj", "o_proj", "experts"]}


def write_on_ranks(directory: Path, parallel: dict[str, Any]) -> None:
    config = run_config(directory, directory, parallel, lora=LORA, init_from="base")
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        policy = Policy(config, world, {"urls": ["http://127.0.0.1:1"]})
        for seed in (1, 2):
            policy.perturb(seed)
            assert config.lora is not None
            write_adapter(directory / "adapter", policy.backend.model.state_dict(), config.model, config.lora, "base")
        policy.fleet.close()


@pytest.mark.parametrize(("num_ranks", "parallel"), [(2, {"tp": 2}), (2, {"pp": 2}), (2, {"dp_shard": 2, "ep": 2})])
def test_adapters_are_written_from_shards(num_ranks: int, parallel: dict[str, Any], tmp_path: Path) -> None:
    run_ranks(write_on_ranks, num_ranks, tmp_path, parallel)
    config = run_config(tmp_path, tmp_path, {}, lora=LORA, init_from="base")
    assert config.lora is not None
    found = dict(read_peft(tmp_path / "adapter", config.model, config.lora))
    assert len(found) == 2 * (4 + 4 + 3 * 3)  # A and B of two maps in four layers, of three in three layers of experts
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, noise(name, tensor.shape, 2), rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def fail_on_ranks(failures: list[type[EngineError] | None]) -> tuple[str, str, bool]:
    """What each rank raises of what these do, and whether it was alive meanwhile."""
    heard: list[str] = []

    def act() -> int:
        time.sleep(0.3 * dist.get_rank())
        if (failure := failures[dist.get_rank()]) is not None:
            raise failure(f"rank {dist.get_rank()}")
        return dist.get_rank()

    try:
        return "", str(together(act, heard.append, "here")), heard == ["here"] * len(heard) != []
    except EngineError as error:
        return type(error).__name__, str(error), bool(heard)


def test_a_failure_on_one_rank_is_one_on_all() -> None:
    assert run_ranks(fail_on_ranks, 2, [None, None]) == [("", "0", True), ("", "1", True)]
    assert run_ranks(fail_on_ranks, 2, [EngineLostError, None]) == [("EngineLostError", "rank 0", True)] * 2
    assert run_ranks(fail_on_ranks, 2, [EngineLostError, EngineError]) == [("EngineError", "rank 1", True)] * 2
