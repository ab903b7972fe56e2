"""Pipeline parallelism: the model's sections on different ranks, micro-batches flowing through them.

The schedules and the traffic between ranks are torch.distributed.pipelining's. The activations sent between stages are
the hidden states and, where MTP layers wait at the end, the embeddings of the tokens to come: a second tensor of the
same size, which keeps the embedding in one place. (The alternative is a copy of it on the last rank, with its gradients
exchanged and its norm counted once; at the 355B model's width the tensor costs less traffic than one layer's tensor
parallelism.)

Every section adds losses of its own, the routers' balance loss: `attach_loss` hangs it onto the hidden states, so that
its gradient joins in when theirs comes back.

Everything else a section needs (ids, documents, labels) every rank of the pipeline reads by itself: they are the same
batch on all of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from glmforge.config.pipeline import stages_of_rank
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.parallel.world import World

RunPart = Callable[[GlmMoe, int, Activations | None], tuple[Tensor, Activations | None]]
"""`run(part, micro_batch, activations)` gives the section's own loss (a scalar) and what the next section gets."""

_SCHEDULES: dict[str, type[Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


def schedule_class(schedule: str) -> type[Any]:
    """torch's class of a schedule of `parallel.pipeline_schedule`."""
    return _SCHEDULES[schedule]


class StageModule(nn.Module):
    """A section as the pipeline calls it: tensors in, tensors (or the loss, from the last one) out.

    A stage sees its micro-batches in order, regardless of the schedule, so counting calls tells which one it is.
    """

    def __init__(self, part: GlmMoe, index: int) -> None:
        super().__init__()
        self.part, self.index = part, index
        self._run: RunPart | None = None
        self._micro_batch = 0

    def begin(self, run: RunPart) -> None:
        """Take `run` for the micro-batches that follow, from number 0."""
        self._run, self._micro_batch = run, 0

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        assert self._run is not None, "begin() tells a stage what to run"
        received = Activations(tensors[0], tensors[1:]) if tensors else None
        loss, passed_on = self._run(self.part, self._micro_batch, received)
        self._micro_batch += 1
        if passed_on is None:
            return loss
        nothing = loss.detach()
        return attach_loss(passed_on.x_TD, loss), *(attach_loss(tensor, nothing) for tensor in passed_on.next_TD)


class Pipeline:
    """Runs this rank's stages, `num_stages` of them over all ranks, by the named schedule.

    A dry run, which has no peers, replaces torch's `schedule_class` and `stage_class`.
    """

    def __init__(self, stages: Sequence[StageModule], num_stages: int, schedule: str, world: World) -> None:
        self.stages, self.num_stages, self.world = stages, num_stages, world
        self.num_ranks = world.axis_size("pp")
        self._stages_of = functools.partial(
            stages_of_rank, schedule, pp=self.num_ranks, per_rank=num_stages // self.num_ranks
        )
        self.schedule_class = schedule_class(schedule)
        self.stage_class: type[PipelineStage] = PipelineStage
        self._schedules: dict[tuple[Any, ...], PipelineScheduleSingle | PipelineScheduleMulti] = {}

    def run(
        self, run: RunPart, num_micro_batches: int, activation: Tensor, num_activations: int, backward: bool
    ) -> None:
        """Send all micro-batches through; `activation` (on the meta device) is one of the tensors sent between stages,
        which are all alike."""
        for stage in self.stages:
            stage.begin(run)
        if not backward:
            for _ in range(num_micro_batches):
                self._forward(activation, num_activations)
            return
        key = (num_micro_batches, activation.shape, activation.dtype, num_activations)
        if key not in self._schedules:
            self._schedules[key] = self._make_schedule(num_micro_batches, (activation,) * num_activations)
        # The last stage gives the loss itself; the target only have to be there.
        target = torch.arange(num_micro_batches) if any(s.index == self.num_stages - 1 for s in self.stages) else None
        self._schedules[key].step(target=target, return_outputs=False)

    @torch.no_grad()
    def _forward(self, activation: Tensor, num_activations: int) -> None:
        """One micro-batch through this rank's stages without gradients. (Schedules ask for several at once.)"""
        rank_of = {index: rank for rank in range(self.num_ranks) for index in self._stages_of(rank)}
        group, here = self.world.group("pp"), self.world.axis_rank("pp")
        sent: dict[int, tuple[Tensor, ...]] = {}
        for stage in self.stages:
            received = sent.get(stage.index, ())
            if stage.index > 0 and rank_of[stage.index - 1] != here:
                received = tuple(torch.empty_like(activation, device=self.world.device) for _ in range(num_activations))
                for tensor in received:
                    dist.recv(tensor, group=group, group_src=rank_of[stage.index - 1])
            output = stage(*received)
            if stage.index == self.num_stages - 1:
                return
            if rank_of[stage.index + 1] == here:
                sent[stage.index + 1] = output
                continue
            for tensor in output:
                dist.send(tensor.contiguous(), group=group, group_dst=rank_of[stage.index + 1])

    def _make_schedule(self, num_micro_batches: int, activations: tuple[Tensor, ...]) -> Any:
        loss = torch.empty((), device="meta")
        stages = [
            self.stage_class(
                stage,
                stage.index,
                self.num_stages,
                self.world.device,
                input_args=activations if stage.index > 0 else (),
                output_args=activations if stage.index < self.num_stages - 1 else (loss,),
                group=self.world.group("pp"),
            )
            for stage in self.stages
        ]
        one = issubclass(self.schedule_class, PipelineScheduleSingle)
        return self.schedule_class(
            stages[0] if one else stages,
            num_micro_batches,
            loss_fn=lambda output, _: output,
            scale_grads=False,
        )


def attach_loss(x: Tensor, loss: Tensor) -> Tensor:
    """`x`, such that differentiating it also differentiates `loss`, with weight 1.

    A tensor of its own, although it shares memory: pipelining detaches a stage's outputs in place, which is forbidden
    for inputs and for views.
    """
    return _AttachLoss.apply(x, loss)


class _AttachLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss)
