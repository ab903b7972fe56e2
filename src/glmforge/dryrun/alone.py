"""One rank of a job, alone: the process group, the neighbours and the numbers that it would need are stood in for.

torch's `fake` process group answers every collective at once without data; FakeTensorMode runs every operator without
memory. Two parts of a step need real numbers: how many rows an expert-parallel rank sends and gets (here every
expert gets the same, and this rank `imbalance` times its share) and the vote by which pipeline stages agree how shapes
are found. Both enter the trainer's own code as parameters.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

# Registers what collectives do on tensors without data.
import torch.distributed._tools.fake_collectives
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from glmforge.config.layout import Layout
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.parallel.expert import Splits
from glmforge.parallel.pipeline import Pipeline
from glmforge.parallel.world import World


@contextmanager
def world_of_one(layout: Layout, rank: int) -> Iterator[World]:
    """The world as `rank` of `layout` sees it; once per process, torch does not make such a group twice."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        device = torch.device("cpu")
        yield World.join(layout, device) if layout.world_size > 1 else World(0, 1, device, layout)
    finally:
        dist.destroy_process_group()


def even_splits(config: RunConfig, layout: Layout, phase: PhaseConfig, imbalance: float) -> Splits:
    """Row counts of an exchange: equal parts to every rank, and `imbalance` times as many rows in return."""
    tokens = micro_batch_size(layout, phase) * phase.seq_len // (layout.cp * layout.tp)
    num_rows = tokens * config.model.num_experts_per_tok // (2 if config.parallel.ep_overlap else 1)

    def splits(counts_2R: Tensor) -> Callable[[], list[list[int]]]:
        num_ranks = counts_2R.shape[1]
        return lambda: [_parts(num_rows, num_ranks), _parts(round(num_rows * imbalance), num_ranks)]

    return splits


def micro_batch_size(layout: Layout, phase: PhaseConfig) -> int:
    return layout.micro_batch_size or layout.rank_batch_size(phase)


def isolate_pipeline(pipeline: Pipeline) -> None:
    """Let the stages do without their neighbours."""
    pipeline.stage_class = _SingleStage


class _SingleStage(PipelineStage):
    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        return torch.tensor(1)  # all agree that shapes are as given

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        return torch.tensor(1)


def _parts(total: int, num_parts: int) -> list[int]:
    whole, rest = divmod(total, num_parts)
    return [whole + (part < rest) for part in range(num_parts)]
