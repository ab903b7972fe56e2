"""From a configuration to this rank's part of the model.

Order: modules on the meta device, compared with the table of parameters, cut over tp and ep by it, recompute, compile
each layer, shard with FSDP2, allocate this rank's shards, fill them. The initial weights are those of a single process:
each rank draws just the part it keeps (see `model.init`).
"""

from collections.abc import Callable

import torch
from torch import nn

from glmforge.config.adapters import table_with
from glmforge.config.alignment import check_cuda_widths
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.parameters import ParameterTable
from glmforge.config.pipeline import stages_of_rank, stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.kernels.choice import choose
from glmforge.kernels.nf4 import levels
from glmforge.model.init import initial_chunk
from glmforge.model.low_precision import check_device, lower_precision
from glmforge.model.quantised import quantise_maps
from glmforge.model.transformer import GlmMoe, Section
from glmforge.parallel.async_tp import async_tp_options
from glmforge.parallel.compile import compile_parts
from glmforge.parallel.declared import check_declared
from glmforge.parallel.expert import Splits, SplitsFromDevice, expert_dispatcher, parallelize_experts
from glmforge.parallel.fsdp import apply_fsdp, needs_fsdp
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.offload import apply_offload
from glmforge.parallel.pipeline import Pipeline, StageModule
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.recompute import apply_recompute
from glmforge.parallel.tensor import parallelize_tensors
from glmforge.parallel.world import World

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

Extend = Callable[[GlmMoe], None]
"""Puts further parameters (adapters, heads) into a section, whole and without memory; the table says how they are cut.
It runs where tensors are made on the meta device."""


def build_model(
    config: RunConfig, world: World, *, table: ParameterTable | None = None, extend: Extend | None = None
) -> ParallelModel:
    """The model with initial weights, computing in `precision.compute`, laid out on `world`.

    Masters are fp32, of frozen parameters in `precision.frozen`. Quantised weights are zeros until they are loaded
    (`checkpoint.initial_weights`). Raises `MissingPackageError` where the extra for them is missing.

    `table` declares the parameters, those that `extend` puts into the model among them; None is that of `config`, whose
    adapters `extend` has to put in (`glmforge.adapt`).
    """
    if config.precision.frozen == "nf4":
        levels(world.device)
    model = lay_out_model(config, world, table=table, extend=extend)
    allocate(model, config)
    for part in model.parts:
        initialize_shards(part, model.table, config.seed)
    return model


def lay_out_model(
    config: RunConfig,
    world: World,
    *,
    splits: Splits = SplitsFromDevice,
    table: ParameterTable | None = None,
    extend: Extend | None = None,
) -> ParallelModel:
    """The sharded model still on the meta device; `splits` stands in for row counts where there are no real numbers.

    Raises `UndeclaredParameterError` or `WrongRowError` if the model is not what the table declares, and `ConfigError`
    for an implementation (`config.kernels`, `parallel.ep_dispatch`) that cannot be used here, or widths that it cannot
    work on.
    """
    parallel = config.parallel
    table = table or table_with(config.model, config.lora, quantises=config.precision.frozen == "nf4")
    check_device(world.device, config.precision)
    dtype = DTYPES[config.precision.compute]
    kernels = choose(config.kernels, world.device, dtype)
    if world.device.type == "cuda":
        check_cuda_widths(config.model, config.precision.compute, kernels, config.lora)
    dispatcher = expert_dispatcher(config, world, splits)
    parts: list[GlmMoe] = []
    for section in sections_of_rank(config, world):
        with torch.device("meta"):
            part = GlmMoe(config.model, section)
            for layer in part.layers:
                lower_precision(layer, config.precision)
            quantise_maps(part, table)
            if extend is not None:
                extend(part)
        part.compute_dtype = dtype
        part.set_kernels(kernels)
        check_declared(part, table)
        _freeze(part, table, config)
        parallelize_tensors(part, world, table, sequence_parallel=parallel.sequence_parallel)
        if dispatcher is not None:
            parallelize_experts(part, world, table, dispatcher)
        apply_recompute(part, parallel.recompute, parallel.recompute_budget)
        if parallel.activation_offload:
            apply_offload(part, world.device)
        if parallel.compile:
            compile_parts(part, tensor_parallel=async_tp_options(world) if parallel.async_tp else None)
        parts.append(part)
    pipeline, roots = _connect(config, world, parts)
    if needs_fsdp(world):
        for root, part in zip(roots, parts, strict=True):
            apply_fsdp(root, part, world, parallel, compute_dtype=part.compute_dtype)
    return ParallelModel(config.model, world, parallel, parts, table, pipeline)


def sections_of_rank(config: RunConfig, world: World) -> list[Section]:
    """The sections of the model that this rank holds, in ascending order."""
    layout = world.layout
    if layout.pp == 1:
        return [Section.whole(config.model)]
    stops = [sum(layout.stage_layers[: i + 1]) for i in range(len(layout.stage_layers))]
    starts, last = [0, *stops[:-1]], len(stops) - 1
    return [Section(starts[i], stops[i], first=i == 0, last=i == last) for i in _stage_indices(config, world)]


def allocate(model: ParallelModel, config: RunConfig) -> None:
    """Give every parameter and buffer memory on the device it is to live on, without values."""
    device = model.world.device
    for part in model.parts:
        part.to_empty(device="cpu" if config.parallel.cpu_offload else device)
        for module in part.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))


@torch.no_grad()
def initialize_shards(model: GlmMoe, table: ParameterTable, seed: int) -> None:
    """Fill this rank's part of every parameter, and every buffer whole."""
    std = model.config.initializer_range
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        local, offsets = local_chunk(tensor)
        if local.numel():
            local.copy_(initial_chunk(table[name], offsets, local.shape, seed=seed, std=std))


def _freeze(part: GlmMoe, table: ParameterTable, config: RunConfig) -> None:
    """Take the gradient from what the table or rules freeze, and hold it as `precision` says; before there is memory.

    Each map casts its weight to the type it computes in, so bf16 compute is bit-equal either way; only routers, which
    compute in fp32, see rounded weights.
    """
    groups = parameter_groups(table, config.optim)
    frozen = {row.name for group in groups if group.is_frozen for row in group.parameters}
    for name, parameter in part.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
            if table[name].dtype is None:
                parameter.data = parameter.data.to(DTYPES[config.precision.frozen_float])


def _stage_indices(config: RunConfig, world: World) -> list[int]:
    parallel = config.parallel
    return stages_of_rank(parallel.pipeline_schedule, world.axis_rank("pp"), parallel.pp, stages_per_rank(parallel))


def _connect(config: RunConfig, world: World, parts: list[GlmMoe]) -> tuple[Pipeline | None, list[nn.Module]]:
    """The pipeline over this rank's parts, if there is one, and the module of each part that is called."""
    if world.layout.pp == 1:
        return None, list(parts)
    stages = [StageModule(part, index) for part, index in zip(parts, _stage_indices(config, world), strict=True)]
    pipeline = Pipeline(stages, len(world.layout.stage_layers), config.parallel.pipeline_schedule, world)
    return pipeline, list(stages)
