"""Whether a run fits the memory at hand, before anything is loaded: what the plan says cannot fit is not begun.

The plan counts tensors. What it omits (the allocator, buffers of collectives, the CUDA context) takes about a
tenth of a GPU, more than its closed forms err, so a run that is planned for more than there is has no chance. The first
phase decides; a later one may be meant for another layout, and is warned of.
"""

import logging

import torch

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.fit import Capacity, fits
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.hardware import find_accelerator
from glmforge.plan.machine.machine import Machine
from glmforge.plan.machine.network import find_network
from glmforge.plan.search.propose import with_proposal
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.memory import usable_memory

logger = logging.getLogger(__name__)


def check_fit(
    config: RunConfig, layout: Layout, launch: LaunchEnvironment, device: torch.device, *, force: bool
) -> None:
    """Compare the plan with the memory of this rank's device, or of its machine if it trains on a CPU.

    Raises `ConfigError` if the first phase cannot fit, unless it is to be tried by `force`; the plan counts FSDP, so a
    run with DeepSpeed, which may offload to disks, is only warned.
    """
    capacity = capacity_at_hand(launch, device)
    for index, phase in enumerate(config.phases):
        missing = fits(select_phase(config, phase.name), layout, capacity).missing
        if missing is None:
            continue
        if index == 0 and not force and config.backend == "native":
            raise ConfigError(f"{missing}; pass --force to start anyway")
        if launch.is_main:
            logger.warning("%s", missing)


def layout_at_hand(config: RunConfig, launch: LaunchEnvironment, device: torch.device) -> Layout:
    """The layout of `config` on the processes at hand.

    Raises `ConfigError` with the settings of a layout that works, on a known GPU of one that fits it.
    """
    try:
        return resolve_layout(config, launch.world_size)
    except ConfigError as error:
        raise with_proposal(error, config, launch.world_size, _machine(launch, device)) from None


def _machine(launch: LaunchEnvironment, device: torch.device) -> Machine | None:
    """The GPUs at hand, None if they are not known. The network between nodes is taken to be the usual one."""
    known = find_accelerator(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if known is None else Machine(known, find_network("ib400"), launch.local_world_size)


def capacity_at_hand(launch: LaunchEnvironment, device: torch.device) -> Capacity:
    """The memory of this rank's GPU, or of its machine for all ranks there."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return Capacity(total, f"{torch.cuda.get_device_name(device)} has")
    first = launch.rank - launch.local_rank
    ranks = range(first, first + launch.local_world_size)
    return Capacity(usable_memory(), "its processes may use", [ranks], "of this machine")
