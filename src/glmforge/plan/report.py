"""Everything that `glmforge plan` knows of a run on a machine, in one object and as JSON.

The terminal, the page and `--json` show the same `PlanReport`, so none of them can say what another does not. What a
plan was not requested is None in it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.plan.across_nodes import AcrossNodes, across_nodes
from glmforge.plan.cost.phase_time import predicted_phases
from glmforge.plan.cost.run_cost import RunCost, cost_as_json, run_cost
from glmforge.plan.cost.settings import CostSettings
from glmforge.plan.counts.stage_summary import RoleSummary, stage_as_json, summarise_stage
from glmforge.plan.layout import layout_as_json
from glmforge.plan.machine.machine import Machine
from glmforge.plan.memory.estimate import MemoryEstimate, estimate_memory
from glmforge.plan.memory.purposes import purposes_in
from glmforge.plan.search.search import SearchResult
from glmforge.plan.search.warnings import layout_warnings
from glmforge.plan.serving.on_shards import ShardRollout, rollout_on_shards, shard_rollout_as_json
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.levers import StepLever, step_levers
from glmforge.plan.time.step_time import LinkUse, StepTime, predict_step

RESERVE = 0.1
"""Share of a device that allocator, NCCL, workspaces and the CUDA context need beside what is planned."""


class PlannedMemory(NamedTuple):
    """Peaks of all places in the pipeline; `source` says where they come from."""

    estimate: MemoryEstimate
    source: str


@dataclass(frozen=True)
class PlanReport:
    """A plan of one phase of `run`.

    Attributes:
        run: the whole run.
        config: the run with the planned phase only.
        levers: single changes that would shorten a step, the best first.
        cost: of the whole run.
        nodes: what crosses the links between nodes as it is planned and as it could be; empty on one node.
        warnings: what is allowed but makes no sense.
        search: the layouts among which this one was found.
    """

    run: RunConfig
    config: RunConfig
    layout: Layout
    stage: TrainingStage
    step: StepTime
    levers: tuple[StepLever, ...]
    cost: RunCost
    memory: PlannedMemory
    nodes: tuple[AcrossNodes, ...]
    warnings: tuple[str, ...]
    search: SearchResult | None = None

    @property
    def machine(self) -> Machine:
        return self.step.machine

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks fill, the last one perhaps in part."""
        return -(-self.layout.world_size // self.machine.ranks_per_node)

    @property
    def phase_tokens(self) -> int:
        phase = self.config.phases[0]
        return phase.num_samples * phase.seq_len

    @property
    def phase_seconds(self) -> float:
        """Of the planned phase, if every step of it ran at the predicted rate: no failures, no evaluations."""
        return self.phase_tokens / self.step.tokens_per_second

    @property
    def rollout(self) -> ShardRollout | None:
        """Of a step, where the stage samples."""
        if self.stage.rollout is None:
            return None
        return rollout_on_shards(self.config, self.layout, self.machine, self.stage.rollout)

    @property
    def memory_share(self) -> float:
        """Of a device, at the fullest place."""
        return self.memory.estimate.peak / self.machine.accelerator.memory_bytes


def make_report(
    run: RunConfig,
    config: RunConfig,
    layout: Layout,
    machine: Machine,
    *,
    stage: TrainingStage = PRETRAINING,
    settings: CostSettings | None = None,
    memory: PlannedMemory | None = None,
    imbalance: float = 1.0,
) -> PlanReport:
    """Plan a step of `stage` in the only phase of `config`, which is one of `run`.

    `memory` are closed forms if None is given, and `imbalance` is as for `predict_step`. Raises `ConfigError` for what
    cannot be planned.
    """
    step = predict_step(config, layout, machine, stage=stage, imbalance=imbalance)
    levers = tuple(step_levers(config, layout, machine, stage=stage, imbalance=imbalance))
    phases = predicted_phases(run, layout.world_size, machine, stage, imbalance)
    cost = run_cost(run, layout.world_size, machine, phases, settings or CostSettings(), stage)
    if memory is None:
        more = "; --dry-run runs the trainer's own step" if stage.is_plain else ""
        memory = PlannedMemory(estimate_memory(config, layout, stage), f"closed forms{more}")
    nodes = tuple(across_nodes(config, layout, machine, stage, imbalance=imbalance))
    warnings = tuple(layout_warnings(config, layout, machine))
    return PlanReport(run, config, layout, stage, step, levers, cost, memory, nodes, warnings)


def as_json(report: PlanReport) -> dict[str, Any]:
    """All of it, ready for JSON; units are in the names."""
    step, machine = report.step, report.machine
    return {
        "run": report.run.name,
        "phase": report.config.phases[0].name,
        **stage_as_json(report.stage, stage_summary(report)),
        "machine": {
            "gpu": machine.accelerator.name,
            "memory_bytes": machine.accelerator.memory_bytes,
            "bf16_flops": machine.accelerator.bf16_flops,
            "network": machine.network.name,
            "gpus": report.layout.world_size,
            "nodes": report.num_nodes,
        },
        "layout": layout_as_json(report.config, report.layout),
        "step": {
            "seconds": step.seconds,
            "interval_80": interval_as_json(step),
            "parts": {
                name: {"seconds": seconds, "provenance": str(step.provenance[name])}
                for name, seconds in step.parts.items()
            },
            "tokens": step.tokens,
            "tokens_per_second": step.tokens_per_second,
            "mfu": step.utilisation,
            "bottleneck": step.bottleneck,
            "levers": [_lever_as_json(lever) for lever in report.levers],
            "links": [_link_as_json(link) for link in step.links],
        },
        "rollout": None if report.rollout is None else shard_rollout_as_json(report.rollout),
        "between_nodes": [_nodes_as_json(one) for one in report.nodes],
        "phase_tokens": report.phase_tokens,
        "phase_seconds": report.phase_seconds,
        "cost": cost_as_json(report.cost),
        "memory": _memory_as_json(report),
        "warnings": list(report.warnings),
    }


def interval_as_json(step: StepTime) -> dict[str, list[float]] | None:
    """Between what four of five steps are, from the spread of published runs."""
    if step.factor is None:
        return None
    return {
        "seconds": [step.seconds / step.factor, step.seconds * step.factor],
        "tokens_per_second": [step.tokens_per_second / step.factor, step.tokens_per_second * step.factor],
    }


def stage_summary(report: PlanReport) -> list[RoleSummary]:
    """The models of the planned stage."""
    config, phase = report.config, report.config.phases[0]
    return summarise_stage(config.model, config.optim, report.stage, phase.seq_len, phase.mtp_loss_weight > 0)


def _lever_as_json(lever: StepLever) -> dict[str, Any]:
    return {
        "words": lever.words,
        "setting": lever.setting,
        "costs": lever.costs,
        "saved_seconds": lever.seconds,
    }


def _link_as_json(link: LinkUse) -> dict[str, Any]:
    return {
        "axis": link.axis,
        "ranks": link.group.num_ranks,
        "bytes": link.bytes,
        "sent_in_node_bytes": link.sent.inside,
        "sent_between_nodes_bytes": link.sent.outside,
        "into_node_bytes": link.into_node,
        "seconds": link.seconds,
    }


def _nodes_as_json(one: AcrossNodes) -> dict[str, Any]:
    return {
        "way": one.words,
        "planned": one.is_planned,
        "settings": one.settings,
        "adapter_bytes": one.bytes,
        "adapter_seconds": one.seconds,
        "axes": {crossing.axis: crossing.bytes for crossing in one.crossings},
        "step_seconds": one.step.seconds,
        "peak_bytes": one.peak,
        "fits": one.fits,
    }


def _memory_as_json(report: PlanReport) -> dict[str, Any]:
    estimate = report.memory.estimate
    purposes = purposes_in(place.at_peak for place in estimate.places)
    return {
        "source": report.memory.source,
        "peak_bytes": estimate.peak,
        "share": report.memory_share,
        "places": [
            {
                "pp_rank": place.pp_rank,
                "at_peak_bytes": {str(purpose): place.at_peak[purpose] for purpose in purposes},
                "peak_in": place.moment,
                "held_bytes": dict(place.held),
                "host_bytes": place.host_bytes,
            }
            for place in estimate.places
        ],
    }
