"""What would make a step shorter: single changes to a run or its machine, and the seconds that each would save.

Every change is tried on its own by predicting the step again. What it costs in memory or in results is said, not
weighed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.parallel import ParallelConfig, PrecisionConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine
from glmforge.plan.time.pieces import Kernels
from glmforge.plan.time.step_time import predict_step

_LEAST = 0.005
"""Of a step: what saves less is not worth a line."""
_MORE_MEMORY = "more memory"


@dataclass(frozen=True)
class StepLever:
    """A change, the setting that makes it (None: none does), what it costs, and the seconds of a step it saves."""

    words: str
    setting: str | None
    costs: str | None
    seconds: float


@dataclass(frozen=True)
class _Change:
    words: str
    setting: str | None
    costs: str | None
    config: RunConfig
    layout: Layout
    machine: Machine
    kernels: Kernels


def step_levers(
    config: RunConfig, layout: Layout, machine: Machine, kernels: Kernels | None = None, **options: Any
) -> list[StepLever]:
    """The changes that help, the one that saves most first. `options` are those of `predict_step`."""
    kernels = kernels or Kernels.of(config)
    now = predict_step(config, layout, machine, kernels, **options).seconds
    found = []
    for change in _changes(config, layout, machine, kernels):
        then = predict_step(change.config, change.layout, change.machine, change.kernels, **options).seconds
        if now - then > _LEAST * now:
            found.append(StepLever(change.words, change.setting, change.costs, now - then))
    return sorted(found, key=lambda lever: -lever.seconds)


def _changes(config: RunConfig, layout: Layout, machine: Machine, kernels: Kernels) -> Iterator[_Change]:
    yield from _of_kernels(_Change("", None, None, config, layout, machine, kernels))
    yield from _of_machine(_Change("", None, None, config, layout, machine, kernels))
    for words, costs, settings in _settings(config, layout):
        changed = _with_parallel(config, layout, settings)
        if changed is not None:
            shown = " ".join(f"parallel.{key}={_as_yaml(value)}" for key, value in settings.items())
            yield _Change(words, shown, costs, *changed, machine, kernels)


def _of_kernels(now: _Change) -> Iterator[_Change]:
    kernels, device = now.kernels, now.machine.accelerator
    if kernels.implementation == "eager":
        yield replace(
            now,
            words="compiled layers",
            setting="parallel.compile=true",
            kernels=replace(kernels, implementation="compiled"),
        )
    if kernels.implementation != "triton":
        yield replace(
            now,
            words="Triton's kernels",
            setting="parallel.compile=true kernels.permute=triton kernels.rms_norm=triton kernels.swiglu=triton",
            kernels=replace(kernels, implementation="triton"),
        )
    if kernels.attention == "flash2" and device.fp8_flops is not None:
        yield replace(
            now,
            words="FlashAttention 3",
            setting="kernels.attention=flash3",
            kernels=replace(kernels, attention="flash3"),
        )
    if not kernels.fp8_maps and device.fp8_flops is not None:
        maps = frozenset(PrecisionConfig().low_precision_maps)
        yield replace(
            now,
            words="fp8 products",
            setting="precision.low_precision=fp8",
            costs="rounding of 8 bits",
            kernels=replace(kernels, fp8_maps=maps),
        )


def _of_machine(now: _Change) -> Iterator[_Change]:
    machine, device = now.machine, now.machine.accelerator
    if now.layout.world_size > machine.ranks_per_node:
        faster = machine.network._replace(bandwidth=2 * machine.network.bandwidth)
        yield replace(now, words="twice the network bandwidth", machine=replace(machine, network=faster))
    if device.nvlink_bandwidth is not None and now.layout.world_size > 1:
        nearer = device._replace(nvlink_bandwidth=2 * device.nvlink_bandwidth)
        yield replace(now, words="twice the NVLink bandwidth", machine=replace(machine, accelerator=nearer))


def _settings(config: RunConfig, layout: Layout) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(words, costs, keys of `parallel` with values)."""
    parallel = config.parallel
    if parallel.recompute != "none":
        yield "no recomputation", _MORE_MEMORY, {"recompute": "none"}
    if parallel.ep > 1 and parallel.ep_dispatch == "all_to_all":
        yield "DeepEP sends tokens once per node", None, {"ep_dispatch": "deepep"}
    if parallel.ep > 1 and not parallel.ep_overlap:
        yield "overlap half of a micro-batch with the other half's token exchange", None, {"ep_overlap": True}
    if parallel.micro_batch_size is not None:
        size = 2 * parallel.micro_batch_size
        yield f"micro-batches of {size} sequences", _MORE_MEMORY, {"micro_batch_size": size}
    if layout.pp == 1 and layout.fsdp > 1:
        yield "reduce gradients once per step", _MORE_MEMORY, {"reduce_gradients": "last_micro_batch"}
        if parallel.reshards_after_forward:
            yield "keep gathered weights between passes", _MORE_MEMORY, {"reshard_after_forward": False}
    if layout.pp > 1:
        for schedule in ("interleaved_1f1b", "interleaved_zero_bubble", "zbv"):
            if schedule != parallel.pipeline_schedule:
                keys = {"pipeline_schedule": schedule, "pipeline_stages_per_rank": None, "pipeline_layers": None}
                yield f"the {schedule} schedule", None, keys


def _with_parallel(config: RunConfig, layout: Layout, settings: dict[str, Any]) -> tuple[RunConfig, Layout] | None:
    """The run with other settings, and its layout; None where they do not go with the rest."""
    try:
        parallel = ParallelConfig.model_validate(config.parallel.model_dump() | settings)
        changed = config.model_copy(update={"parallel": parallel})
        return changed, resolve_layout(changed, layout.world_size, phase=config.phases[0].name)
    except (ConfigError, ValidationError):
        return None


def _as_yaml(value: object) -> str:
    return "null" if value is None else str(value).lower()
