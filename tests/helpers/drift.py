"""How far apart the losses of two runs grow over tens of steps: the same training on a layout, on one process, and on
one process whose initial weights are wrong in their last bit.

Rounding moves a router's scores by 1e-7, and where two experts are as close as that a token goes another way. From then
on the two runs differ by that token's work, which later steps pass on. How much is a property of the model and of the
data, so that the measure of a layout is what the smallest change of the weights does on one process.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.optim.optimizer import build_optimizer
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World, join_world
from glmforge.training.step import train_step
from helpers.models import run_config

NUM_ROWS, SEQ_LEN = 8, 64
LR = 3e-3


@dataclass(frozen=True)
class Course:
    """What a run of `num_steps` steps went through: losses [steps] and tokens per router and expert [steps, L, E]."""

    losses: Tensor
    counts: Tensor

    def loss_apart(self, other: "Course") -> Tensor:
        """Relative difference of the losses of each step."""
        return ((self.losses - other.losses) / other.losses).abs()

    def moved(self, other: "Course") -> Tensor:
        """Tokens of each step that went to other experts, at least."""
        return (self.counts - other.counts).abs().sum((1, 2)) // 2


def config_of(parallel: dict[str, Any], seed: int, num_steps: int) -> RunConfig:
    phase = {"name": "main", "steps": num_steps, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS, "aux_loss_weight": 1e-3}
    model = run_config().model.model_dump()
    return run_config(model=model, phases=[phase], parallel=parallel, optim={"lr": LR}, seed=seed)


def batch_of(config: RunConfig, step: int) -> Batch:
    """Something to learn: rows that count on from a random number in random strides, one token in eight replaced."""
    phase, vocabulary = config.phases[0], config.model.vocab_size
    generator = torch.Generator().manual_seed(1000 * config.seed + step)
    shape = (phase.batch_size, phase.seq_len + 1)
    start_B1 = torch.randint(0, vocabulary, (phase.batch_size, 1), generator=generator)
    stride_B1 = torch.randint(1, 8, (phase.batch_size, 1), generator=generator)
    ids = (start_B1 + stride_B1 * torch.arange(phase.seq_len + 1)) % vocabulary
    is_noise = torch.rand(shape, generator=generator) < 1 / 8
    ids = torch.where(is_noise, torch.randint(0, vocabulary, shape, generator=generator), ids)
    lengths = ((phase.seq_len,),) * phase.batch_size
    return Batch(ids[:, :-1], ids[:, 1:].clone(), lengths, tuple(range(phase.batch_size)), (0,) * phase.batch_size)


def train(config: RunConfig, world: World, *, last_bit: int | None = None) -> Course:
    """All steps on this rank. `last_bit`: a seed, by which each initial weight goes one bit up, down, or stays."""
    phase = config.phases[0]
    model = build_model(config, world)
    if last_bit is not None:
        _move_last_bits(model, last_bit)
    optimizer = build_optimizer(
        model.named_parameters(),
        model.table,
        config.optim,
        world=world,
        compute_dtype=torch.float32,
    )
    model.set_balance(phase.balance)
    objective = NextTokenObjective(phase, config.model.num_nextn_predict_layers)
    losses, counts = [], []
    for step in range(config.num_steps):
        share = phase.batch_size // world.layout.data_ranks
        mine = batch_of(config, step).rows(world.data_rank * share, (world.data_rank + 1) * share)
        outcome = train_step(
            NativeBackend(model, optimizer),
            objective,
            mine.micro_batches(world.layout.micro_batch_size or share),
            lr=LR,
            grad_clip=1.0,
            router_bias_rate=phase.router_bias_rate,
        )
        losses.append(outcome.losses[objective.terms[0]])
        counts.append(outcome.counts_LE.clone())
    return Course(torch.tensor(losses, dtype=torch.float64), torch.stack(counts))


def course_of_layout(parallel: dict[str, Any], seed: int, num_steps: int) -> Course | None:
    """For `run_ranks`: the course on rank 0, nothing on the others."""
    config = config_of(parallel, seed, num_steps)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        course = train(config, world)
        return course if world.is_main else None


def course_alone(seed: int, num_steps: int, *, last_bit: int | None = None) -> Course:
    """The same run on this process."""
    config = config_of({}, seed, num_steps)
    world = World(0, 1, torch.device("cpu"), resolve_layout(config, 1))
    return train(config, world, last_bit=last_bit)


@torch.no_grad()
def _move_last_bits(model: ParallelModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        weights = local_chunk(parameter)[0]
        towards = torch.randint(-1, 2, weights.shape, generator=generator).to(weights) * torch.inf
        weights.copy_(torch.where(towards.isnan(), weights, torch.nextafter(weights, towards)))
