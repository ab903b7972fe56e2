"""One training step of one rank, watched: every storage and every collective, by the trainer's own code.

The same function watches a rank of a real job and one that stands alone (`glmforge.dryrun.alone`).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glmforge.adapt.lora import adapters_of
from glmforge.backend.native import NativeBackend
from glmforge.backend.objective import Objective
from glmforge.config.preferences import DpoConfig, RewardConfig
from glmforge.config.rl import RlConfig
from glmforge.config.rl_models import models_beside
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.dryrun.schedules import observe_pipeline
from glmforge.dryrun.steps import BACKWARD, FORWARD, Task, label_of
from glmforge.dryrun.tracker import MemoryTracker, Storage
from glmforge.errors import ConfigError
from glmforge.kernels.choice import choose
from glmforge.model.transformer import ForwardOutput
from glmforge.objectives.dpo import DpoObjective
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.objectives.policy import PolicyObjective
from glmforge.objectives.reward import RewardObjective
from glmforge.optim.elastic import ElasticPenalty
from glmforge.optim.optimizer import Optimizer, build_optimizer
from glmforge.optim.sharding import chunks_of
from glmforge.parallel.build import DTYPES, allocate, lay_out_model
from glmforge.parallel.communication import Collective, CollectiveObserver, GroupAxes
from glmforge.parallel.expert import Splits, SplitsFromDevice
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.pipeline import Pipeline
from glmforge.parallel.world import World
from glmforge.plan.memory.purposes import Purpose
from glmforge.training.step import train_step


@dataclass(frozen=True)
class Mark:
    """Where the log of storages and the list of collectives had come to when `label` began; `task` if it is one."""

    label: str
    log: int
    calls: int
    task: Task | None = None


@dataclass
class Observation:
    """What was seen. `held` are the bytes of weights, gradients and optimizer state on this rank, as allocated."""

    log: list[tuple[Storage, int]]
    calls: list[Collective] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    held: dict[Purpose, int] = field(default_factory=dict)

    def mark(self, what: str | Task) -> None:
        task = what if isinstance(what, Task) else None
        label = what if isinstance(what, str) else label_of(what)
        self.marks.append(Mark(label, len(self.log), len(self.calls), task))


@dataclass(frozen=True)
class StandIns:
    """What a rank that stands alone has instead of numbers and neighbours; the defaults are those of a real one."""

    splits: Splits = SplitsFromDevice
    adapt_pipeline: Callable[[Pipeline], None] = lambda pipeline: None
    to_host: Callable[[Tensor], list[float]] = Tensor.tolist
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext


def observe_step(
    config: RunConfig,
    world: World,
    make_batch: Callable[[], Batch],
    stand_ins: StandIns,
    initialize: Callable[[ParallelModel], None] = lambda model: None,
) -> tuple[Observation, ParallelModel]:
    """Lay out the model, make its optimizer and take one step of the first phase on this rank's share of a batch.

    In stage `rl` it is the policy's, the largest one, beside the other models and what their optimizers hold.
    `initialize` gives the allocated weights values, where there are any.
    """
    if not config.model.lm_head and config.stage != "reward":
        raise ConfigError("the dry run trains on next tokens, but model.lm_head is false; plan without --dry-run")
    phase = config.phases[0]
    tracker = MemoryTracker()
    seen = Observation(tracker.log)
    model = lay_out_model(config, world, splits=stand_ins.splits, extend=adapters_of(config))
    of_others = models_beside(config).values() if config.stage == "rl" else ()
    beside = [(one, lay_out_model(one, world, splits=stand_ins.splits)) for one in of_others]
    if model.pipeline is not None:
        stand_ins.adapt_pipeline(model.pipeline)
        observe_pipeline(model.pipeline, seen.mark)
    objective = _objective(config)
    if world.layout.pp == 1:
        _mark_forwards(objective, seen.mark)

    def to_host(numbers: Tensor) -> list[float]:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        tracker.give_purpose(gradients, Purpose.GRADIENTS)
        seen.held[Purpose.GRADIENTS] = tracker.bytes_of(gradients)
        seen.mark("update")
        return stand_ins.to_host(numbers)

    with stand_ins.mode(), tracker, CollectiveObserver(GroupAxes.of(world), seen.calls.append):
        allocate(model, config)
        initialize(model)
        optimizer = _optimizer(model, config, world)
        held = [_held(of_one, one, world) for of_one, one in beside]
        ewc = config.regularization.ewc
        penalty = None if ewc is None else ElasticPenalty(_trained(model), ewc.strength, world)

        def on_gradients() -> None:
            if penalty is not None:
                seen.mark("update")
                penalty.add_gradients(chunks_of(model.named_parameters(), world.layout))

        model.train()
        seen.mark("prepare")
        batch = make_batch()
        micro_batches = batch.micro_batches(world.layout.micro_batch_size or len(batch.ids_BS))
        for micro_batch in micro_batches:
            micro_batch.documents()  # kept with it; otherwise made when the denominators are requested
        seen.mark("share")
        train_step(
            NativeBackend(model, optimizer),
            objective,
            micro_batches,
            lr=config.optim.lr,
            grad_clip=config.optim.grad_clip,
            router_bias_rate=phase.router_bias_rate,
            on_gradients=on_gradients,
            to_host=to_host,
        )
        seen.mark("end")
        for purpose, tensors in _lasting(model, optimizer, penalty).items():
            everything = [*tensors, *(tensor for of_one in held for tensor in of_one[purpose])]
            tracker.give_purpose(everything, purpose)
            seen.held[purpose] = tracker.bytes_of(everything)
    return seen, model


def _held(config: RunConfig, model: ParallelModel, world: World) -> dict[Purpose, Sequence[Tensor]]:
    """What a model that does nothing in this step lays into memory."""
    allocate(model, config)
    return _lasting(model, _optimizer(model, config, world), None)


def _optimizer(model: ParallelModel, config: RunConfig, world: World) -> Optimizer:
    dtype = DTYPES[config.precision.compute]
    kernels = choose(config.kernels, world.device, dtype)
    parameters = model.named_parameters()
    return build_optimizer(parameters, model.table, config.optim, world=world, compute_dtype=dtype, kernels=kernels)


def _trained(model: ParallelModel) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _lasting(
    model: ParallelModel, optimizer: Optimizer, penalty: ElasticPenalty | None
) -> dict[Purpose, Sequence[Tensor]]:
    buffers = [buffer for part in model.parts for buffer in part.buffers()]
    return {
        Purpose.WEIGHTS: [*model.parameters(), *buffers],
        Purpose.OPTIMIZER: [*optimizer.state_dict().values(), *(penalty.tensors.values() if penalty else ())],
    }


def _objective(config: RunConfig) -> Objective:
    """The run's own."""
    phase, num_mtp = config.phases[0], config.model.num_nextn_predict_layers
    if config.stage == "reward":
        return RewardObjective(phase, ["pairs"], config.stage_settings(RewardConfig))
    if config.stage == "dpo":
        return DpoObjective(phase, num_mtp, ["pairs"], config.stage_settings(DpoConfig))
    if config.stage == "rl":
        return PolicyObjective(config.stage_settings(RlConfig))
    return NextTokenObjective(phase, num_mtp)


def _mark_forwards(objective: Objective, mark: Callable[[str | Task], None]) -> None:
    """Have it mark where forward passes begin and end, as no pipeline stage does."""
    head, numerators = objective.head, objective.numerators

    def marked_head(batch: Batch, share: TokenShare) -> Any:
        mark(FORWARD)
        return head(batch, share)

    def marked_numerators(output: ForwardOutput[Any], batch: Batch, share: TokenShare) -> Tensor:
        result = numerators(output, batch, share)
        mark("forward done")
        mark(BACKWARD)
        return result

    objective.head, objective.numerators = marked_head, marked_numerators  # type: ignore[method-assign]
