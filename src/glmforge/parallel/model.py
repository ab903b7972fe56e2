"""The model as a rank has it: one or more sections, sharded, with the one way to run micro-batches through them.

Without pipeline parallelism there is one section, the whole model, and running it is a loop. The trainer, evaluation
and checkpoints see this object and know of no axis.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from glmforge.config.model import ModelConfig
from glmforge.config.parallel import ParallelConfig
from glmforge.config.parameters import ParameterTable, parameter_table
from glmforge.model.moe import MoE
from glmforge.model.router import Balance
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.fsdp import needs_fsdp, prefetch
from glmforge.parallel.gradients import sum_partial_gradients
from glmforge.parallel.pipeline import Pipeline, RunPart
from glmforge.parallel.world import World


class ParallelModel:
    """This rank's `parts` of the model.

    Args:
        parts: sections in ascending order.
        table: declares their parameters; None is the model's own.
        pipeline: what runs the parts, None for a single whole one.
    """

    def __init__(
        self,
        config: ModelConfig,
        world: World,
        parallel: ParallelConfig,
        parts: Sequence[GlmMoe],
        table: ParameterTable | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.config, self.world, self.parts, self.pipeline = config, world, list(parts), pipeline
        self.parallel = parallel
        self.table = table or parameter_table(config)
        self._gathers_mtp = True

    def run(self, run: RunPart, num_micro_batches: int, rows: tuple[int, int], *, num_mtp: int, backward: bool) -> None:
        """Call `run` for every section of this rank and micro-batch, and differentiate what it returns if `backward`.

        `rows` is (B, S) of every micro-batch, `num_mtp` the MTP depths that will be requested. Gradients accumulate;
        call `finish_gradients` when all are there. All ranks call this together.
        """
        self._gather_ahead(with_mtp=num_mtp > 0)
        if self.pipeline is not None:
            self.pipeline.run(run, num_micro_batches, self._activation(rows), 1 + num_mtp, backward)
            return
        (model,) = self.parts
        for index in range(num_micro_batches):
            self._sync_gradients(model, is_last=index == num_micro_batches - 1)
            with torch.set_grad_enabled(backward):
                loss, _ = run(model, index, None)
            if backward:
                loss.backward()

    def finish_gradients(self) -> None:
        """Make every gradient the whole one, after the last backward pass of a step."""
        sequence_parallel = self.parallel.sequence_parallel
        sum_partial_gradients(self.named_parameters(), self.table, self.world, sequence_parallel=sequence_parallel)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for part in self.parts:
            yield from part.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Published name -> live parameter or buffer of this rank's sections."""
        return {name: tensor for part in self.parts for name, tensor in part.state_dict().items()}

    def moe_layers(self) -> dict[int, MoE]:
        """This rank's MoE blocks by their number among all of the model, MTP layers last."""
        return {number: moe for part in self.parts for number, moe in part.moe_layers.items()}

    def set_rope_theta(self, theta: float) -> None:
        for part in self.parts:
            part.rope_theta = theta

    def set_capacity_factor(self, factor: float | None) -> None:
        for part in self.parts:
            part.set_capacity_factor(factor)

    def set_balance(self, balance: Balance) -> None:
        """What levels the experts in training from now on."""
        for part in self.parts:
            part.set_balance(balance)

    def train(self, mode: bool = True) -> None:
        for part in self.parts:
            part.train(mode)

    def eval(self) -> None:
        self.train(False)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In evaluation mode and without a capacity factor; afterwards as before. Dropped tokens would make what the
        model says depend on which rows it is given together, and on how many ranks."""
        training = [part.training for part in self.parts]
        experts = [moe.experts for moe in self.moe_layers().values()]
        capacities = [each.capacity_factor for each in experts]
        self.eval()
        self.set_capacity_factor(None)
        try:
            yield
        finally:
            for part, mode in zip(self.parts, training, strict=True):
                part.train(mode)
            for each, capacity in zip(experts, capacities, strict=True):
                each.capacity_factor = capacity

    def _gather_ahead(self, *, with_mtp: bool) -> None:
        """Leave out MTP layers that are not run: gathered ahead, their weights would stay gathered."""
        if with_mtp != self._gathers_mtp and needs_fsdp(self.world):
            for part in self.parts:
                prefetch(part, self.parallel.prefetch_layers, with_mtp=with_mtp)
        self._gathers_mtp = with_mtp

    def _sync_gradients(self, model: GlmMoe, *, is_last: bool) -> None:
        """What FSDP does after the next backward pass. Copies of the model sum their shards once a step in any case."""
        if not isinstance(model, FSDPModule):
            return
        if self.parallel.reduce_gradients == "last_micro_batch":
            model.set_requires_gradient_sync(is_last)
        else:
            model.set_requires_all_reduce(is_last)

    def _activation(self, rows: tuple[int, int]) -> Tensor:
        world, (num_rows, seq_len) = self.world, rows
        sharing = world.axis_size("cp") * (world.axis_size("tp") if self.parallel.sequence_parallel else 1)
        shape = (num_rows * seq_len // sharing, self.config.hidden_size)
        return torch.empty(shape, dtype=self.parts[0].compute_dtype, device="meta", requires_grad=True)
