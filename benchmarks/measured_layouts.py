"""Steps of a small model on the ranks of this machine, laid out in one way or another: the trainer's own step, timed.

`measure` and `watch_memory` are called on every rank of `gloo_ranks.Ranks`. Rows are random and one document each, of
which every rank takes its own share; weights are those of the run's seed.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.dryrun.observe import StandIns, observe_step
from glmforge.dryrun.steps import replay
from glmforge.dryrun.timeline import in_order
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.build import initialize_shards
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World
from glmforge.training.step import train_step


class Timed(NamedTuple):
    """Seconds of each step, of wall time until all ranks were done and of this rank's processor time."""

    wall: list[float]
    processor: list[float]


def measure(config: RunConfig, num_steps: int, longest_s: float, warm_up: int = 1) -> Timed:
    """Take so many steps of the first phase after some to warm up; fewer, but two, if they take longer than that."""
    phase = config.phases[0]
    with joined(config) as world:
        backend = NativeBackend.build(config, world)
        backend.model.train()
        objective = NextTokenObjective(phase, config.model.num_nextn_predict_layers)
        batch = _rows(config, world)
        micro_batches = batch.micro_batches(world.layout.micro_batch_size or len(batch.ids_BS))
        timed = Timed([], [])
        for number in range(warm_up + num_steps):
            dist.barrier()
            start, processor_start = time.perf_counter(), time.process_time()
            train_step(
                backend,
                objective,
                micro_batches,
                lr=config.optim.lr,
                grad_clip=config.optim.grad_clip,
                router_bias_rate=phase.router_bias_rate,
            )
            processor = time.process_time() - processor_start
            wall = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(wall, dist.ReduceOp.MAX)
            if number >= warm_up:
                timed.wall.append(wall.item())
                timed.processor.append(processor)
            if len(timed.wall) > 1 and sum(timed.wall) > longest_s:
                break
        del backend, objective
    return timed


def watch_memory(config: RunConfig) -> int:
    """The most bytes that live at once in a step, weights and optimizer state among them."""
    with joined(config) as world:
        seen, model = observe_step(config, world, partial(_rows, config, world), StandIns(), _initialize)
        del model
    return replay(in_order(seen)).peak


@contextmanager
def joined(config: RunConfig) -> Iterator[World]:
    """The ranks of this job laid out as `config` says; the groups that this needs are given up at the end."""
    layout = resolve_layout(config, dist.get_world_size())
    device = torch.device("cpu")
    world = World.join(layout, device) if layout.world_size > 1 else World(0, 1, device, layout)
    yield world  # after a failure others may still wait for this rank: the groups end with the processes
    gc.collect()
    groups = [mesh.get_group(axis) for mesh in world.meshes.values() for axis in mesh.mesh_dim_names or ()]
    own = {group.group_name: group for group in [*groups, *world.groups.values()]}
    dist.barrier()
    for group in own.values():
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def _rows(config: RunConfig, world: World) -> Batch:
    """This rank's rows of the global batch."""
    phase, vocab_size = config.phases[0], config.model.vocab_size
    number = world.layout.rank_batch_size(phase)
    generator = torch.Generator().manual_seed(world.data_rank)
    ids_BS = torch.randint(0, vocab_size, (number, phase.seq_len), generator=generator)
    return Batch(ids_BS, ids_BS.clone(), ((phase.seq_len,),) * number, (0,) * number, (0,) * number)


def _initialize(model: ParallelModel) -> None:
    for part in model.parts:
        initialize_shards(part, model.table, 0)
