"""The helper that every distributed test stands on."""

import os
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

from helpers.distributed import RankFailure, run_ranks


def summed(value: float) -> torch.Tensor:
    total = torch.tensor([value * (dist.get_rank() + 1)])
    dist.all_reduce(total)
    return total


def fails_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise KeyError("the cause")
    dist.barrier()


def is_killed_on_rank_1() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hangs() -> None:
    time.sleep(1000)


def environment() -> dict[str, str]:
    assert not dist.is_initialized()
    return dict(os.environ)


def has_imported(name: str) -> bool:
    return name in sys.modules


def test_ranks_find_the_trainer_imported_whoever_came_first():
    """A dry run in the same process before would have the processes' server import less."""
    assert run_ranks(has_imported, 1, "glmforge.recipes.train", init_group=False) == [True]


def test_results_come_back_in_rank_order():
    assert torch.cat(run_ranks(summed, 3, 2.0)).tolist() == [12.0, 12.0, 12.0]


def test_the_cause_is_reported_before_its_consequences():
    with pytest.raises(RankFailure, match=r"\Arank 1 raised[\s\S]*KeyError: 'the cause'"):
        run_ranks(fails_on_rank_1, 2)


def test_a_killed_rank_is_reported():
    with pytest.raises(RankFailure, match="rank 1 ended with code -9"):
        run_ranks(is_killed_on_rank_1, 2)


def test_a_hanging_rank_is_killed():
    with pytest.raises(RankFailure, match="without a result"):
        run_ranks(hangs, 2, timeout_s=1.0)


def test_environment_is_torchruns():
    ranks = run_ranks(environment, 2, init_group=False)
    assert [rank["RANK"] for rank in ranks] == ["0", "1"]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {"2"}
    assert len({rank["MASTER_PORT"] for rank in ranks}) == 1


def test_local_functions_are_refused():
    with pytest.raises(ValueError, match="module-level function"):
        run_ranks(lambda: None, 1)
