"""DeepSpeed's optimizer as ours is used, and what a checkpoint keeps of it: whole tensors under published names.

ZeRO keeps fp32 masters and moments as flat pieces that end anywhere in a tensor, on a disk perhaps. Here one tensor
after the other is gathered, and this rank's rows of it kept in host memory, cut as by FSDP2; `write` does the reverse.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from glmforge.backend.deepspeed.engine import ZeroModel
from glmforge.errors import CheckpointError
from glmforge.model.init import initial_chunk
from glmforge.optim.sharding import local_part

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroOptimizer:
    """Trains `model`, all ranks together. `zero` is DeepSpeed's own optimizer."""

    def __init__(self, model: ZeroModel) -> None:
        self._model, self._engine, self._world = model, model.engine, model.world
        self.zero = model.engine.optimizer
        self.cuts_parameters = model.engine.zero_optimization_stage() == 3
        by_stage = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
        self._masters = getattr(self.zero, by_stage[self.cuts_parameters])
        self._make_states()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next steps."""
        for group in self.zero.param_groups:
            group["lr"] = lr * group["lr_scale"]

    def step(self) -> None:
        """Clip by `zero.clip_grad` and update the parameters."""
        self._engine.step()

    def zero_grad(self) -> None:
        """Drop gradients that no step has used, as ZeRO does for a step that it omits itself."""
        zero = self.zero
        zero.zero_grad()
        zero.micro_step_id = 0 if self.cuts_parameters else -1
        if self.cuts_parameters or zero.cpu_offload:
            zero.reset_cpu_buffers()
        if not self.cuts_parameters:
            zero._release_preflattened_grad_buffers()
            for index in () if zero.cpu_offload else zero.averaged_gradients:
                zero.averaged_gradients[index] = zero.all_grad_tensors[index] = None

    def initialize(self, seed: int) -> None:
        """Draw the initial weights: each rank its rows."""
        model, weights = self._model, dict[str, Tensor]()
        for name, parameter in model.named_parameters():
            shape = _shape(parameter)
            rows = self._rows(shape[0])
            sizes, offsets = (len(rows), *shape[1:]), (rows.start,) + (0,) * (len(shape) - 1)
            drawn = initial_chunk(model.table[name], offsets, sizes, seed=seed, std=model.config.initializer_range)
            weights[name] = self._sharded(drawn, shape)
        self.write(weights, {})

    def weights(self) -> dict[str, Tensor]:
        """By published name: copies of the parameters in fp32, and the live buffers."""
        found = {name: self._own_rows(self._weight(p)) for name, p in self._model.named_parameters()}
        return found | {name: buffer for part in self._model.parts for name, buffer in part.named_buffers()}

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the state, as `glmforge.optim.optimizer.Optimizer` names it. Idle MTP layers have zeros."""
        found = {}
        for name, parameter in self._model.named_parameters():
            trained = parameter.requires_grad
            if trained or name in self._model.idle:
                found[f"step.{name}"] = torch.tensor(float(next(iter(self._states()))["step"] if trained else 0))
                for key in _MOMENTS:
                    whole = safe_get_full_optimizer_state(parameter, key) if trained else torch.zeros(_shape(parameter))
                    found[f"{key}.{name}"] = self._own_rows(whole)
        return found

    @torch.no_grad()
    def write(self, weights: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> None:
        """Take over parameters and states. Raises `CheckpointError` where states differ in their steps."""
        steps: dict[int, str] = {}
        for name, parameter in self._model.named_parameters():
            if name in weights:
                self._write_weight(parameter, self._whole(weights[name]))
            if parameter.requires_grad and f"step.{name}" in states:
                steps[int(states[f"step.{name}"])] = name
                for key in _MOMENTS:
                    safe_set_full_optimizer_state(parameter, self._whole(states[f"{key}.{name}"]), key)
        if len(steps) > 1:
            (least, one), *_, (most, other) = sorted(steps.items())
            raise CheckpointError(
                f"deepspeed counts the same steps for all parameters, but the checkpoint has {least} for {one} and "
                f"{most} for {other}; resume it with backend: native"
            )
        if steps:
            self._set_step(*steps)
        self._renew_parameters()

    def _make_states(self) -> None:
        """ZeRO makes moments, and their files, in the first step: this one moves nothing and is not counted."""
        self.set_lr(0.0)
        for group in self._groups():
            masters, given = self._masters[group], self._masters[group].grad
            masters.grad = torch.zeros_like(masters) if given is None else given
            self.zero._optimizer_step(group)
            masters.grad = given
        if not self.cuts_parameters:  # of several groups, ZeRO has linked the first one's
            self.zero._hp_optimizer_states_linked = False
            self.zero._lazy_init_hp_params_optimizer_state()
        self._set_step(0)

    def _set_step(self, step: int) -> None:
        for state in self._states():
            state["step"] = torch.full_like(state["step"], step) if isinstance(state["step"], Tensor) else step

    def _states(self) -> list[dict[str, Any]]:
        return [state for state in self.zero.optimizer.state.values() if "step" in state]

    def _renew_parameters(self) -> None:
        """What the model computes with, from the masters."""
        zero = self.zero
        if not self.cuts_parameters:
            zero.update_lp_params()
            return
        zero._partition_all_parameters()
        for group in self._groups():
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def _groups(self) -> Iterator[int]:
        """ZeRO's groups of masters and moments, each in memory when it is its turn."""
        for group in range(len(self._masters)):
            is_swapped = self.cuts_parameters and self.zero._swappable_optimizer_subgroup(group)
            if is_swapped:
                self.zero._optimizer_states_and_gradient_swap_in(group)
            yield group
            if is_swapped:
                self.zero._optimizer_states_and_gradient_swap_out(group)

    def _weight(self, parameter: nn.Parameter) -> Tensor:
        if parameter.requires_grad:
            return safe_get_full_fp32_param(parameter)
        with deepspeed.zero.GatheredParameters([parameter], enabled=self.cuts_parameters):
            return parameter.detach().float().clone()

    def _write_weight(self, parameter: nn.Parameter, whole: Tensor) -> None:
        if parameter.requires_grad:
            safe_set_full_fp32_param(parameter, whole)
            return
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self.cuts_parameters):
            parameter.data.copy_(whole)

    def _whole(self, tensor: Tensor) -> Tensor:
        rows = self._rows(len(tensor))
        whole = torch.zeros(tensor.shape, device=self._world.device)
        whole[rows.start : rows.stop] = local_part(tensor).to(whole.device)
        return self._world.sum(whole)

    def _own_rows(self, whole: Tensor) -> Tensor:
        rows = self._rows(len(whole))
        return self._sharded(whole[rows.start : rows.stop].to("cpu", copy=True), tuple(whole.shape))

    def _sharded(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self._world.size == 1:
            return rows
        mesh, stride = self._world.meshes["dense"]["fsdp"], torch.empty(shape, device="meta").stride()
        return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

    def _rows(self, length: int) -> range:
        """Those of this rank, by DTensor's rule."""
        block = -(-length // self._world.size)
        return range(length)[self._world.rank * block :][:block]


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Of the whole parameter; ZeRO-3 leaves an empty one in its place."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
