"""Several ranks on one device: layouts compute what a single process computes.

NCCL serves each rank a GPU of its own and refuses two on the same; where it does, gloo carries the tensors (through the
host). Pipelines are left out: gloo sends no CUDA tensors from rank to rank.
"""

import functools
import os

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.config.layout import resolve_layout
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.sharded import ShardedModel
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World, join_world
from helpers.devices import on
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import Case, differences, rank_case, single_case

LAYOUTS = {
    "fsdp": Case({"dp_shard": 2}, 2),
    "ep": Case({"dp_shard": 4, "ep": 4}, 4),
    "tp": Case({"dp_shard": 1, "tp": 2, "sequence_parallel": True}, 2),
    "cp": Case({"dp_shard": 1, "cp": 2}, 2),
    "hsdp, ep, tp": Case({"dp_replicate": 2, "dp_shard": 2, "tp": 2, "ep": 2}, 8),
}


def all_on_the_first_gpu(case: Case, backend: str) -> dict[str, Tensor]:
    os.environ["LOCAL_RANK"] = "0"
    if backend == "nccl":
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    return rank_case(case)


def nccl_sum() -> float:
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    ones = torch.ones(1, device="cuda:0")
    dist.all_reduce(ones)
    return ones.item()


@functools.cache
def backend_of_one_gpu() -> str:
    try:
        run_ranks(nccl_sum, 2, timeout_s=60, init_group=False)
    except RankFailure:
        return "gloo"
    return "nccl"


@pytest.mark.parametrize("device", [on("cpu"), on("cuda")])
@pytest.mark.parametrize("case", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_equals_one_process(device: str, case: Case) -> None:
    if device == "cpu" and case.world_size > 2:
        pytest.skip("the layouts on the CPU have tests of their own; here the test is tested")
    backend = backend_of_one_gpu() if device == "cuda" else "gloo"
    actual = run_ranks(all_on_the_first_gpu, case.world_size, case, backend, init_group=backend == "gloo")[0]
    found = differences(actual, single_case(case, device))
    # fp32 in another order, three steps on: tests/distributed/parallel/test_equivalence.py sees 3e-6 on a CPU.
    wrong = {name: error for name, error in found.items() if not error < 1e-4}
    assert not wrong, wrong


PROMPTS = [[5, 6, 7], [1], list(range(100, 150)), [5, 6, 7, 8], list(range(100, 148))]


def answers(engine: Engine, mine: range) -> dict[int, list[int]]:
    samples = engine.generate([PROMPTS[index] for index in mine], SamplingParams(max_new_tokens=8))
    return {index: sample.tokens for index, (sample,) in zip(mine, samples, strict=True)}


def rank_answers(case: Case, backend: str) -> dict[int, list[int]]:
    os.environ["LOCAL_RANK"] = "0"
    if backend == "nccl":
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    config = case.config(single=False)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        with runner.session():
            engine = Engine(runner, EngineConfig(64 * runner.page_bytes(16)))
            return answers(engine, range(runner.share, len(PROMPTS), runner.num_shares))


@pytest.mark.parametrize("device", [on("cpu"), on("cuda")])
@pytest.mark.parametrize("case", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_generates_what_one_process_does(device: str, case: Case) -> None:
    if device == "cpu" and case.world_size > 2:
        pytest.skip("the layouts on the CPU have tests of their own; here the test is tested")
    backend = backend_of_one_gpu() if device == "cuda" else "gloo"
    results = run_ranks(rank_answers, case.world_size, case, backend, init_group=backend == "gloo")
    (model,) = build_model(case.config(single=True), World.single(device)).parts
    expected = answers(Engine(WholeModel(model.eval())), range(len(PROMPTS)))
    for found in results:
        assert found == {index: expected[index] for index in found}
    assert {index for found in results for index in found} == set(expected)
