"""What a run with DeepSpeed keeps, in the form of every run's checkpoints: whole tensors under published names.

ZeRO keeps fp32 masters and moments as flat pieces that end anywhere in a tensor, on a disk perhaps. `tensors` gathers
one after the other and keeps this rank's rows, as FSDP2 would cut them, in host memory; `write` goes the other way. A
checkpoint needs memory for the rank's share of weights and moments, and for one whole tensor.

Moments are Adam's, with one number of steps for all parameters.
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

from glmforge.backend.deepspeed.engine import PARAMETERS_CUT, ZeroModel, set_lr
from glmforge.errors import CheckpointError
from glmforge.model.init import initial_chunk
from glmforge.optim.sharding import local_part

_MOMENTS = ("exp_avg", "exp_avg_sq")
_WEIGHT, _STATE = "model.", "optim."


class ZeroState:
    """Weights and optimizer state of `model`. All methods are collective."""

    def __init__(self, model: ZeroModel) -> None:
        self._model, self._engine, self._world = model, model.engine, model.world
        self._zero = model.engine.optimizer
        self._cuts_parameters = model.engine.zero_optimization_stage() == PARAMETERS_CUT
        self._make_optimizer_state()

    def initialize(self, seed: int) -> None:
        """Draw the initial weights: each rank its rows."""
        model, weights = self._model, dict[str, Tensor]()
        for name, parameter in model.named_parameters():
            shape = _shape(parameter)
            start, stop = self._rows(shape[0])
            sizes, offsets = (stop - start, *shape[1:]), (start,) + (0,) * (len(shape) - 1)
            rows = initial_chunk(model.table[name], offsets, sizes, seed=seed, std=model.config.initializer_range)
            weights[_WEIGHT + name] = self._sharded(rows, shape)
        self.write(weights)

    def weights(self) -> dict[str, Tensor]:
        """By published name: copies of the parameters in fp32, and the live buffers."""
        found = {name: self._own_rows(self._whole_weight(p)) for name, p in self._model.named_parameters()}
        return found | {name: buffer for part in self._model.parts for name, buffer in part.named_buffers()}

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, as `glmforge.backend.base.Backend.state_tensors` names it: copies."""
        found = {_WEIGHT + name: tensor for name, tensor in self.weights().items()}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad or self._model.table[name].mtp:
                found[f"{_STATE}step.{name}"] = torch.tensor(float(self.step if parameter.requires_grad else 0))
                for key in _MOMENTS:
                    found[f"{_STATE}{key}.{name}"] = self._own_rows(self._whole_moment(parameter, key))
        return found

    @torch.no_grad()
    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over those of `tensors` that are parameters and moments. Raises `CheckpointError` for states of Adam
        that have counted different numbers of steps."""
        for name, parameter in self._model.named_parameters():
            if _WEIGHT + name in tensors:
                self._write_weight(parameter, self._whole(tensors[_WEIGHT + name]))
            for key in _MOMENTS if parameter.requires_grad else ():
                moment = f"{_STATE}{key}.{name}"
                if moment in tensors:
                    safe_set_full_optimizer_state(parameter, self._whole(tensors[moment]), key)
        trained = {name for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        steps = {int(tensors[key]): key for name in trained if (key := f"{_STATE}step.{name}") in tensors}
        if len(steps) > 1:
            raise CheckpointError(
                f"backend: deepspeed counts the steps of all parameters together, but this checkpoint has {min(steps)} "
                f"for {steps[min(steps)]} and {max(steps)} for {steps[max(steps)]}; resume it with backend: native"
            )
        for step in steps:
            self.step = step
        self._renew_parameters()

    @property
    def step(self) -> int:
        """How often the optimizer has updated the parameters."""
        return int(next(iter(self._states()))["step"])

    @step.setter
    def step(self, step: int) -> None:
        for state in self._states():
            if isinstance(state["step"], Tensor):
                state["step"].fill_(step)
            else:
                state["step"] = step

    def held_bytes(self) -> tuple[int, int, int]:
        """Of this rank's weights, gradients and optimizer states, wherever these lie; fp32 but for the weights."""
        zero = self._zero
        weights = sum(getattr(p, "ds_tensor", p).nbytes for p in self._model.parameters())
        if self._cuts_parameters:
            num_trained = sum(int(numel) for numel in zero.fp16_partitioned_groups_flat_numel)
        else:
            num_trained = sum(masters.numel() for masters in zero.single_partition_of_fp32_groups)
        return weights, 4 * num_trained, 12 * num_trained

    def forget_gradients(self) -> None:
        """Drop the gradients as ZeRO does for a step that it omits itself."""
        zero = self._zero
        zero.zero_grad()
        zero.micro_step_id = 0 if self._cuts_parameters else -1
        if self._cuts_parameters or zero.cpu_offload:
            zero.reset_cpu_buffers()
        if not self._cuts_parameters:
            zero._release_preflattened_grad_buffers()
            for index in () if zero.cpu_offload else zero.averaged_gradients:
                zero.averaged_gradients[index] = zero.all_grad_tensors[index] = None

    def _make_optimizer_state(self) -> None:
        """ZeRO makes moments, and their files, in the first step: this one moves nothing and is not counted."""
        zero = self._zero
        set_lr(zero.param_groups, 0.0)
        if self._cuts_parameters:
            zero.independent_gradient_partition_epilogue()
            zero.step()
        else:
            for masters in zero.single_partition_of_fp32_groups:
                masters.grad = torch.zeros_like(masters) if masters.grad is None else masters.grad
            zero.optimizer.step()
            zero._lazy_init_hp_params_optimizer_state()
        zero.zero_grad()
        self.step = 0

    def _renew_parameters(self) -> None:
        """What the model computes with, from the masters."""
        zero = self._zero
        if not self._cuts_parameters:
            zero.update_lp_params()
            return
        zero._partition_all_parameters()
        for group in range(len(zero.fp16_groups)):
            is_swapped = zero._swappable_optimizer_subgroup(group)
            if is_swapped:
                zero._optimizer_states_and_gradient_swap_in(group)
            zero._reassign_or_swap_out_partitioned_parameters(group)
            if is_swapped:
                zero._release_swap_buffers(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def _states(self) -> Iterator[dict[str, Any]]:
        return (state for state in self._zero.optimizer.state.values() if "step" in state)

    def _whole_weight(self, parameter: nn.Parameter) -> Tensor:
        if parameter.requires_grad:
            return safe_get_full_fp32_param(parameter)
        with deepspeed.zero.GatheredParameters([parameter], enabled=self._cuts_parameters):
            return parameter.detach().float()

    def _whole_moment(self, parameter: nn.Parameter, key: str) -> Tensor:
        if parameter.requires_grad:
            return safe_get_full_optimizer_state(parameter, key)
        return torch.zeros(_shape(parameter))

    def _write_weight(self, parameter: nn.Parameter, whole: Tensor) -> None:
        if parameter.requires_grad:
            safe_set_full_fp32_param(parameter, whole)
            return
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self._cuts_parameters):
            parameter.data.copy_(whole)

    def _whole(self, tensor: Tensor) -> Tensor:
        rows = local_part(tensor)
        if rows.shape == tensor.shape and self._world.size == 1:
            return rows.to(self._world.device)
        start, stop = self._rows(tensor.shape[0])
        whole = torch.zeros(tensor.shape, device=self._world.device)
        whole[start:stop] = rows.to(self._world.device)
        return self._world.sum(whole)

    def _own_rows(self, whole: Tensor) -> Tensor:
        start, stop = self._rows(len(whole))
        return self._sharded(whole[start:stop].to("cpu", copy=True), tuple(whole.shape))

    def _sharded(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self._world.size == 1:
            return rows
        mesh = self._world.meshes["dense"]["fsdp"]
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

    def _rows(self, length: int) -> tuple[int, int]:
        """Those of this rank, by DTensor's rule."""
        block = -(-length // self._world.size)
        start = min(self._world.rank * block, length)
        return start, min(start + block, length)


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Of the whole parameter; ZeRO-3 leaves an empty one in its place."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
