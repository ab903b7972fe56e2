"""torch's pipeline schedules as lists of tasks: reading them, marking them while they run, and running shorter ones.

Schedules of several stages per rank are lists of actions to torch as well (`pipeline_order_with_comms`), which one
runtime carries out: reading such a list tells the tasks of every rank, a list that marks as it is passed through
observes them, and another list in its place is another schedule. 1F1B and GPipe are loops; their order is put down
here, and what is marked are the stages' passes.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)

from glmforge.config.pipeline import stages_of_rank
from glmforge.dryrun.steps import BACKWARD, FORWARD, Task
from glmforge.parallel.pipeline import Pipeline, schedule_class
from glmforge.parallel.world import World

Marker = Callable[[str | Task], None]


def orders_of(
    schedule: str, world: World, per_rank: int, num_micro_batches: int
) -> tuple[dict[int, list[Task]], dict[int, int]]:
    """What torch's schedule of several stages per rank lets each pipeline rank do, and the rank of each stage."""
    num_ranks = world.axis_size("pp")
    stages = [
        PipelineStage(nn.Identity(), index, num_ranks * per_rank, world.device, (), (), group=world.group("pp"))
        for index in stages_of_rank(schedule, world.axis_rank("pp"), num_ranks, per_rank)
    ]
    made = schedule_class(schedule)(stages, num_micro_batches, loss_fn=lambda output, _: output, scale_grads=False)
    orders = {}
    for rank, actions in made.pipeline_order_with_comms.items():
        slots = {index: slot for slot, index in enumerate(stages_of_rank(schedule, rank, num_ranks, per_rank))}
        orders[rank] = [Task(action.computation_type.name, slots[action.stage_index]) for action in _flat(actions)]
    return orders, dict(made.stage_index_to_group_rank)


def order_of_loop(schedule: str, num_micro_batches: int, num_in_flight: int) -> list[Task]:
    """The passes of a rank with one stage under 1F1B with `num_in_flight` micro-batches in flight, or under GPipe."""
    held = num_micro_batches if schedule == "gpipe" else min(num_in_flight, num_micro_batches)
    return [FORWARD] * held + [BACKWARD, FORWARD] * (num_micro_batches - held) + [BACKWARD] * held


def observe_pipeline(pipeline: Pipeline, mark: Marker) -> None:
    """Let the pipeline mark where it makes its receive buffers, "receive", and where its tasks begin."""
    if issubclass(pipeline.schedule_class, PipelineScheduleSingle):
        pipeline.stage_class = _marking_stage(pipeline.stage_class, mark)

        class MarkedLoop(pipeline.schedule_class):  # type: ignore[name-defined]
            def __init__(self, *args: Any, **options: Any) -> None:
                mark("receive")
                super().__init__(*args, **options)

        pipeline.schedule_class = MarkedLoop
        return
    slots = {stage.index: slot for slot, stage in enumerate(pipeline.stages)}

    class MarkedSchedule(pipeline.schedule_class):  # type: ignore[name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            mark("receive")
            super().__init__(*args, **options)
            order = _flat(self.pipeline_order_with_comms[self.rank])
            self.pipeline_order_with_comms[self.rank] = _MarkedOrder(order, slots, mark)

    pipeline.schedule_class = MarkedSchedule


def shorten_loop(pipeline: Pipeline) -> None:
    """Let a rank with one stage run 1F1B with two micro-batches in flight, on any stage."""
    pipeline.schedule_class = _ShortLoop


def replace_order(pipeline: Pipeline, order: Sequence[Task], rank_of_stage: dict[int, int]) -> None:
    """Let a rank of several stages carry out `order` instead of its schedule."""
    indices = [stage.index for stage in pipeline.stages]
    actions = [
        _Action(indices[task.slot], _ComputationType[task.kind], number)
        for task, number in zip(order, _micro_batches_of(order), strict=True)
    ]

    class GivenOrder(_PipelineScheduleRuntime):
        def __init__(self, stages: list[PipelineStage], n_microbatches: int, **options: Any) -> None:
            super().__init__(stages, n_microbatches, **options)
            self.stage_index_to_group_rank = rank_of_stage
            for stage in stages:
                stage.stage_index_to_group_rank = rank_of_stage
            self.pipeline_order_with_comms = {self.rank: actions}

    pipeline.schedule_class = GivenOrder


_GOES_THROUGH_BACKWARD = ("FULL_BACKWARD", "BACKWARD_INPUT")
_WITHOUT_MICRO_BATCH = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


def _micro_batches_of(order: Sequence[Task]) -> Iterator[int | None]:
    """The micro-batch of each task: they come in order, and weights get their gradients in the order of the inputs."""
    counts: Counter[tuple[str, int]] = Counter()
    inputs: dict[int, deque[int]] = defaultdict(deque)
    for kind, slot in order:
        if kind in _WITHOUT_MICRO_BATCH:
            yield None
        elif kind == "BACKWARD_WEIGHT":
            yield inputs[slot].popleft()
        else:
            key = ("backward" if kind in _GOES_THROUGH_BACKWARD else kind, slot)
            if kind == "BACKWARD_INPUT":
                inputs[slot].append(counts[key])
            yield counts[key]
            counts[key] += 1


def _flat(actions: Sequence[_Action]) -> list[_Action]:
    """With the two passes of an overlapped pair one after the other, which is how torch carries them out."""
    return [single for action in actions for single in (action.sub_actions or (action,))]


class _MarkedOrder(list[_Action]):
    """Actions of a schedule that are marked as they are passed through."""

    def __init__(self, actions: Sequence[_Action], slots: dict[int, int], mark: Marker) -> None:
        super().__init__(actions)
        self._slots, self._mark = slots, mark

    def __iter__(self) -> Iterator[_Action]:
        for action in super().__iter__():
            self._mark(Task(action.computation_type.name, self._slots[action.stage_index]))
            yield action
        self._mark("reduction")


def _marking_stage(stage_class: type[PipelineStage], mark: Marker) -> type[PipelineStage]:
    class MarkingStage(stage_class):  # type: ignore[misc, valid-type]
        def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
            mark(FORWARD)
            result = super().forward_one_chunk(*args, **kwargs)
            mark("forward done")
            return result

        def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
            mark(BACKWARD)
            super().backward_one_chunk(*args, **kwargs)
            mark("backward done")

    return MarkingStage


class _ShortLoop(Schedule1F1B):
    """torch's 1F1B of the last but one stage, on any stage, and of fewer micro-batches than there are stages.

    With three micro-batches its order F F B F B B has every kind of pass after every kind.
    """

    def __init__(self, stage: PipelineStage, n_microbatches: int, **options: Any) -> None:
        PipelineScheduleSingle.__init__(self, stage, n_microbatches, **options)
        self._num_stages = stage.stage_index + 2
