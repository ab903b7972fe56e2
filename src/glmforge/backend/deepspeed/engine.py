"""DeepSpeed's engine around our model.

The engine is given a module that runs one micro-batch, objective included, and returns the scalar to differentiate:
all that ZeRO-3 gathers is then used inside the module that it hooks. The language-model head is the exception, it is
used by the objective: it stays gathered from the beginning of a micro-batch's forward pass to its backward pass.

Under ZeRO-3 the parameters are cut one module at a time, so that no rank ever has the whole model. Weights are written
afterwards, through `ZeroState`, which also writes the fp32 masters: in bf16, ZeRO would make them of rounded weights.

DeepSpeed has no public door to some of what is needed here (gradients dropped without an update, optimizer state before
the first step), so this package is written for the version that `constraints.txt` pins.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.parameters import ParameterTable
from glmforge.config.schema import RunConfig
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.build import DTYPES, lay_out_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.pipeline import RunPart
from glmforge.parallel.world import World
from glmforge.runtime.launch import LaunchEnvironment

PARAMETERS_CUT = 3  # the ZeRO stage that cuts the parameters too


class MicroBatch(nn.Module):
    """Runs a micro-batch through the model; what the engine sees as its module."""

    def __init__(self, model: GlmMoe) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: RunPart, index: int) -> Tensor:
        loss, _ = run(self.model, index, None)
        return loss


class ZeroModel(ParallelModel):
    """`ParallelModel` whose micro-batches run through the engine: evaluations need what ZeRO-3 gathers on the way."""

    engine: Any = None

    def run(self, run: RunPart, num_micro_batches: int, rows: tuple[int, int], *, num_mtp: int, backward: bool) -> None:
        for index in range(num_micro_batches):
            if backward:
                self.engine.set_gradient_accumulation_boundary(index == num_micro_batches - 1)
            with torch.set_grad_enabled(backward):
                loss = self.engine(run, index)
            if backward:
                # The engine means gradients over data ranks; ours are sums, divided by global denominators already.
                self.engine.backward(loss * self.world.size, scale_wrt_gas=False)


def build_engine(config: RunConfig, world: World, settings: Mapping[str, Any]) -> ZeroModel:
    """The model of `config` under DeepSpeed's engine with `settings` (a DeepSpeed configuration); weights are zeros.

    All ranks call this together. A single process joins a process group of its own, which DeepSpeed needs.
    """
    _join(world)
    alone = lay_out_model(config, World.single(world.device))
    (part,) = alone.parts
    settings = {**settings, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    dtype = DTYPES[config.precision.compute]
    _freeze_idle_mtp(part, alone.table, config)
    module = MicroBatch(part)
    model = ZeroModel(config.model, world, config.parallel, [part], alone.table)
    if settings["zero_optimization"]["stage"] == PARAMETERS_CUT:
        _allocate_cut(part, dtype, world.device, settings)
        if part.lm_head is not None:
            deepspeed.zero.register_external_parameter(module, part.lm_head.weight)
    else:
        _allocate(part, dtype, world.device)
    groups = optimizer_groups(part, alone.table, config.optim)
    model.engine, *_ = deepspeed.initialize(model=module, model_parameters=groups, config=settings)
    return model


def optimizer_groups(part: GlmMoe, table: ParameterTable, config: OptimConfig) -> list[dict[str, Any]]:
    """DeepSpeed's parameter groups: our weight decay, and `lr_scale` to multiply the learning rate by.

    MTP layers have groups of their own: ZeRO counts the steps of a whole group.
    """
    parameters = dict(part.named_parameters())
    groups = []
    for group in parameter_groups(table, config):
        for is_mtp in (False, True):
            members = [parameters[row.name] for row in group.parameters if row.mtp == is_mtp]
            trained = [parameter for parameter in members if parameter.requires_grad]
            if trained:
                groups.append({"params": trained, "weight_decay": group.weight_decay, "lr_scale": group.lr_scale})
    return groups


def _join(world: World) -> None:
    _tell_ranks()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _tell_ranks() -> None:
    """DeepSpeed reads torchrun's variables whenever it looks for its device; Slurm and a single process have none."""
    launch = LaunchEnvironment.read()
    variables = {
        "RANK": launch.rank,
        "WORLD_SIZE": launch.world_size,
        "LOCAL_RANK": launch.local_rank,
        "LOCAL_WORLD_SIZE": launch.local_world_size,
        "GROUP_WORLD_SIZE": launch.num_nodes,
        "TORCHELASTIC_RESTART_COUNT": launch.attempt,
    }
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))


def _freeze_idle_mtp(part: GlmMoe, table: ParameterTable, config: RunConfig) -> None:
    """MTP layers that no phase trains: ZeRO would update them with gradients of zero."""
    if config.stage == "reward" or not any(phase.mtp_loss_weight for phase in config.phases):
        for name, parameter in part.named_parameters():
            if table[name].mtp:
                parameter.requires_grad_(False)


def _allocate(part: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    for module in part.modules():
        _give_memory(module, dtype, device)


def _allocate_cut(part: nn.Module, dtype: torch.dtype, device: torch.device, settings: Mapping[str, Any]) -> None:
    """Give memory to a module at a time, and leave this rank its part of it."""
    first: nn.Parameter | None = None
    for module in part.modules():
        own = _give_memory(module, dtype, device)
        if not own:
            continue
        if first is None:
            offload = settings["zero_optimization"].get("offload_param") or {}
            device_of_parts = offload.get("device")
            deepspeed.zero.Init(
                module=module,
                dtype=dtype,
                config_dict_or_path=dict(settings),
                remote_device=None if device_of_parts == "none" else device_of_parts,
                pin_memory=offload.get("pin_memory", False),
            )
            first = own[0]
        else:
            cast(Any, first).convert_to_zero_parameters(param_list=own)


def _give_memory(module: nn.Module, dtype: torch.dtype, device: torch.device) -> list[nn.Parameter]:
    """Zeros for the parameters and buffers of `module` itself; returns the parameters."""
    for name, buffer in module.named_buffers(recurse=False):
        setattr(module, name, torch.zeros_like(buffer, device=device))
    for name, parameter in module.named_parameters(recurse=False):
        memory = torch.zeros_like(parameter, dtype=dtype, device=device)
        setattr(module, name, nn.Parameter(memory, requires_grad=parameter.requires_grad))
    return list(module.parameters(recurse=False))


def set_lr(groups: Iterable[dict[str, Any]], lr: float) -> None:
    for group in groups:
        group["lr"] = lr * group["lr_scale"]
