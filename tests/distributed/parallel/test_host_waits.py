"""How often a training step makes the host wait for the device, on one rank and under expert parallelism."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge import load_config
from glmforge.backend.native import NativeBackend
from glmforge.config import RunConfig
from glmforge.config.layout import resolve_layout
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.world import World, join_world
from glmforge.training.step import train_step
from helpers.distributed import run_ranks
from helpers.host_waits import HostWaits

SEQ_LEN, NUM_ROWS, MICRO_BATCH = 32, 4, 2
NUM_LAYERS, NUM_MTP = 3, 1
NUM_MOE = NUM_LAYERS - 1 + NUM_MTP
NUM_MICRO_BATCHES = NUM_ROWS // MICRO_BATCH


def run_config(ranks: int, compute: str = "fp32", **parallel: object) -> RunConfig:
    """With the kernels that a GPU would take, or plain ones: those of the CPU read numbers of their own accord."""
    fields = "".join(f", {name}: {value}" for name, value in parallel.items())
    return load_config(f"""
name: waits
model: {{preset: tiny, num_hidden_layers: {NUM_LAYERS}, num_nextn_predict_layers: {NUM_MTP}}}
data: {{tokenizer: none, sources: [{{name: text, path: none}}]}}
phases: [{{name: main, steps: 3, seq_len: {SEQ_LEN}, batch_size: {NUM_ROWS * ranks}}}]
optim: {{lr: 1e-2, warmup_steps: 0}}
parallel: {{micro_batch_size: {MICRO_BATCH}{fields}}}
precision: {{compute: {compute}}}
kernels: {{experts: grouped, attention: dense}}
""")


def random_batch(config: RunConfig) -> Batch:
    ids = torch.randint(0, config.model.vocab_size, (NUM_ROWS, SEQ_LEN + 1))
    return Batch(ids[:, :-1], ids[:, 1:], ((20, 12),) * NUM_ROWS, tuple(range(NUM_ROWS)), (0,) * NUM_ROWS)


def waits_of_step(
    backend: NativeBackend, config: RunConfig, batch: Batch, to_host: Callable[[Tensor], list[float]]
) -> HostWaits:
    objective = NextTokenObjective(config.phases[0], NUM_MTP)
    with HostWaits() as waits:
        micro_batches = batch.micro_batches(MICRO_BATCH)
        train_step(backend, objective, micro_batches, lr=1e-2, grad_clip=1.0, router_bias_rate=0.1, to_host=to_host)
    return waits


def rank_waits(parallel: dict[str, object]) -> Counter[str]:
    """The waits of a second step by the file that waits."""
    ranks = dist.get_world_size()
    config = run_config(ranks, **parallel)
    with join_world(resolve_layout(config, ranks), timeout_s=60) as world:
        backend = NativeBackend.build(config, world)
        for _ in range(2):
            waits = waits_of_step(backend, config, random_batch(config), lambda numbers: numbers.tolist())
    return Counter(place.partition(":")[0] for _, place in waits)


@pytest.mark.parametrize("parallel", [{}, {"recompute": "full"}], ids=str)
def test_without_expert_parallelism_a_step_waits_once(parallel: dict[str, object]) -> None:
    (waits,) = run_ranks(rank_waits, 1, parallel)
    assert waits == {"reducer.py": 1}


def test_nothing_is_copied_to_the_device_in_a_way_that_waits() -> None:
    """The meta device stands in for a GPU: what lies on the host is copied as for one."""
    config = run_config(1, "bf16")
    backend = NativeBackend.build(config, World.single("meta"))

    def to_host(numbers: Tensor) -> list[float]:
        return [1.0] + [0.0] * (len(numbers) - 1)

    assert waits_of_step(backend, config, random_batch(config).to("meta"), to_host) == []


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_expert_parallelism_waits_once_in_every_routed_forward_pass(recompute: str) -> None:
    for waits in run_ranks(rank_waits, 2, {"ep": 2, "recompute": recompute}):
        assert waits == {"reducer.py": 1, "expert.py": NUM_MOE * NUM_MICRO_BATCHES}


def test_halves_wait_once_each() -> None:
    for waits in run_ranks(rank_waits, 2, {"ep": 2, "ep_overlap": True}):
        assert waits == {"reducer.py": 1, "expert.py": 2 * NUM_MOE * NUM_MICRO_BATCHES}


def reads(x: torch.Tensor) -> None:
    x.sum().item()
    bool(x.any())
    x.tolist()


def sizes(x: torch.Tensor) -> None:
    x[x > 0]
    x.nonzero()
    x.masked_select(x > 0)


@pytest.mark.parametrize("wait", [reads, sizes])
def test_the_instrument_sees_what_waits(wait: object) -> None:
    with HostWaits() as waits:
        wait(torch.tensor([0, 3]))  # type: ignore[operator]
        torch.arange(3).repeat_interleave(torch.tensor([1, 2, 0]), output_size=3)[torch.tensor([0, 2])].to("cpu")
    assert len(waits) == 3, waits


def test_the_instrument_sees_copies_between_host_and_device() -> None:
    with HostWaits() as waits:
        torch.ones(3).to("meta", non_blocking=True)
        assert waits == []
        torch.ones(3).to("meta")
        torch.empty(3, device="meta").copy_(torch.ones(3))
        torch.tensor([1, 2], device="meta")
    assert len(waits) == 3, waits
