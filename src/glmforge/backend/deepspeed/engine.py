"""DeepSpeed's engine around our model.

The engine is given a module that runs one micro-batch, objective included, and returns the scalar to differentiate:
all that ZeRO-3 gathers is then used inside the module that it hooks. The language-model head, which the objective uses,
stays gathered for all of a micro-batch. Under ZeRO-3 the parameters are cut one module at a time, so that no rank ever
has the whole model; weights are written afterwards by `ZeroOptimizer`, since ZeRO would round masters to bf16.

DeepSpeed has no public door to some of what is needed (gradients dropped without an update, optimizer state before the
first step), so this package is written for the version that `pyproject.toml` pins.
"""

import logging
import os
from collections.abc import Mapping, Set
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


class MicroBatch(nn.Module):
    """Runs a micro-batch through the model; what the engine sees as its module."""

    def __init__(self, model: GlmMoe) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: RunPart, index: int) -> Tensor:
        loss, _ = run(self.model, index, None)
        return loss


class ZeroModel(ParallelModel):
    """`ParallelModel` whose micro-batches run through `engine`: evaluations need what ZeRO-3 gathers on the way."""

    engine: Any = None
    idle: Set[str] = frozenset()  # of MTP layers that the run does not train: ZeRO would apply gradients of zero

    def run(self, run: RunPart, num_micro_batches: int, rows: tuple[int, int], *, num_mtp: int, backward: bool) -> None:
        for index in range(num_micro_batches):
            if backward:
                self.engine.set_gradient_accumulation_boundary(index == num_micro_batches - 1)
            with torch.set_grad_enabled(backward):
                loss = self.engine(run, index)
            if backward:
                # The engine means gradients over data ranks; ours are sums, divided by global denominators already.
                self.engine.backward(loss * self.world.size, scale_wrt_gas=False)


def build_model(config: RunConfig, world: World, settings: Mapping[str, Any]) -> ZeroModel:
    """The model of `config`, all weights zero, under an engine with `settings` (a DeepSpeed configuration). Collective.

    A single process joins a process group of its own, which DeepSpeed needs.
    """
    _join(world)
    alone = lay_out_model(config, World.single(world.device))
    (part,), table = alone.parts, alone.table
    settings = {**settings, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    model, module = ZeroModel(config.model, world, config.parallel, [part], table), MicroBatch(part)
    if config.stage == "reward" or not any(phase.mtp_loss_weight for phase in config.phases):
        model.idle = {name for name, p in part.named_parameters() if p.requires_grad and table[name].mtp}
    for name in model.idle:
        part.get_parameter(name).requires_grad_(False)
    _allocate(part, DTYPES[config.precision.compute], world.device, settings)
    if hasattr(next(part.parameters()), "ds_id") and part.lm_head is not None:
        deepspeed.zero.register_external_parameter(module, part.lm_head.weight)
    groups = optimizer_groups(part, table, config.optim)
    model.engine, *_ = deepspeed.initialize(model=module, model_parameters=groups, config=settings)
    return model


def optimizer_groups(part: GlmMoe, table: ParameterTable, config: OptimConfig) -> list[dict[str, Any]]:
    """DeepSpeed's parameter groups: our weight decay, and `lr_scale` to multiply the learning rate by."""
    parameters, groups = dict(part.named_parameters()), []
    for group in parameter_groups(table, config):
        trained = [p for row in group.parameters if (p := parameters[row.name]).requires_grad]
        if trained:
            groups.append({"params": trained, "weight_decay": group.weight_decay, "lr_scale": group.lr_scale})
    return groups


def _join(world: World) -> None:
    """DeepSpeed reads torchrun's variables whenever it looks for its device; Slurm and a single process have none."""
    launch = LaunchEnvironment.read()
    names = ("rank", "world_size", "local_rank", "local_world_size")
    variables = {name.upper(): getattr(launch, name) for name in names}
    variables |= {"GROUP_WORLD_SIZE": launch.num_nodes, "TORCHELASTIC_RESTART_COUNT": launch.attempt}
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _allocate(part: GlmMoe, dtype: torch.dtype, device: torch.device, settings: Mapping[str, Any]) -> None:
    """Zeros for all parameters and buffers; under ZeRO-3 a module at a time, of which this rank keeps its part."""
    stage, first = settings["zero_optimization"]["stage"], None
    for module in part.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros_like(buffer, device=device))
        for name, parameter in module.named_parameters(recurse=False):
            memory = torch.zeros_like(parameter, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(memory, requires_grad=parameter.requires_grad))
        own = list(module.parameters(recurse=False))
        if stage < 3 or not own:
            continue
        if first is not None:
            cast(Any, first).convert_to_zero_parameters(param_list=own)
            continue
        deepspeed.zero.Init(module, config_dict_or_path=dict(settings), dtype=dtype)
        first = own[0]
