"""How much of a step is run, and how the steps of all places of a content follow from it.

Every excerpt says how many micro-batches it takes, puts its schedule into the pipeline, and turns what was observed
into the step of each place in the pipeline.
"""

from collections import defaultdict
from typing import Protocol

from glmforge.config.layout import Layout
from glmforge.config.pipeline import SINGLE_STAGE_SCHEDULES, V_SCHEDULES, stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.dryrun.observe import Observation
from glmforge.dryrun.schedules import order_of_loop, orders_of, replace_order, shorten_loop
from glmforge.dryrun.steps import TRANSFERS, Context, StepResources, Task, compose, prolong, replay
from glmforge.dryrun.timeline import in_order, take_apart
from glmforge.dryrun.walk import Situation, shortest_walk, situation_of, wanted_of
from glmforge.parallel.pipeline import Pipeline
from glmforge.parallel.world import World
from glmforge.plan.layout import stages_of_pp_rank


class Excerpt(Protocol):
    """A part of a step that tells all of it."""

    @property
    def num_micro_batches(self) -> int:
        """How many micro-batches are run."""

    def adapt(self, pipeline: Pipeline) -> None:
        """Put the excerpt's schedule in the place of the run's."""

    def steps(self, seen: Observation) -> dict[int, StepResources]:
        """The step at each place in the pipeline."""


def excerpt_of(config: RunConfig, world: World, places: list[int], *, shorten: bool) -> Excerpt:
    """The shortest excerpt that tells the first phase's step at these places, or at as many as one excerpt can.

    The first place is always among them. Without `shorten` it is the whole step.
    """
    layout, parallel = world.layout, config.parallel
    number = layout.num_micro_batches(config.phases[0])
    if not shorten:
        return _WholeStep(number, places)
    if layout.pp == 1:
        sums_each = parallel.reduce_gradients == "every_micro_batch" and layout.dp_replicate == 1
        return _MicroBatchLoop(number, sums_each=sums_each)
    if parallel.pipeline_schedule in SINGLE_STAGE_SCHEDULES:
        return _OneStage(parallel.pipeline_schedule, number, layout, places)
    excerpt = _SeveralStages(config, world, places)
    return excerpt if excerpt.is_there else _WholeStep(number, places[:1])


class _WholeStep:
    """All micro-batches by the run's own schedule; it tells nothing of other places."""

    def __init__(self, number: int, places: list[int]) -> None:
        assert len(places) == 1, "a whole step is that of one place"
        self.num_micro_batches, self._places = number, places

    def adapt(self, pipeline: Pipeline) -> None:
        pass

    def steps(self, seen: Observation) -> dict[int, StepResources]:
        return {self._places[0]: replay(in_order(seen))}


class _MicroBatchLoop:
    """Without a pipeline: two micro-batches, or three where the last one alone reduces gradients, or sums them over
    copies of the model."""

    def __init__(self, number: int, *, sums_each: bool) -> None:
        self.num_micro_batches, self._number = min(number, 2 if sums_each else 3), number

    def adapt(self, pipeline: Pipeline) -> None:
        raise AssertionError("there is no pipeline")

    def steps(self, seen: Observation) -> dict[int, StepResources]:
        return {0: prolong(take_apart(seen, self.num_micro_batches), self._number)}


class _OneStage:
    """1F1B and GPipe: three micro-batches in the order F F B F B B, which has every kind of pass after every kind."""

    num_micro_batches = 3

    def __init__(self, schedule: str, number: int, layout: Layout, places: list[int]) -> None:
        self._number = number
        self._orders = {place: order_of_loop(schedule, number, layout.pp - place) for place in places}

    def adapt(self, pipeline: Pipeline) -> None:
        shorten_loop(pipeline)

    def steps(self, seen: Observation) -> dict[int, StepResources]:
        actions = take_apart(seen, self.num_micro_batches)
        return {
            place: compose(actions, order, self._number, with_previous=True, receives=True)
            for place, order in self._orders.items()
        }


class _SeveralStages:
    """Schedules of several stages per rank: an order of tasks with every situation of every place, as short as can be.

    `places` are as many of those requested as one order can serve.
    """

    def __init__(self, config: RunConfig, world: World, places: list[int]) -> None:
        parallel = config.parallel
        per_rank = stages_per_rank(parallel)
        self._number = world.layout.num_micro_batches(config.phases[0])
        self._with_previous = parallel.reshards_after_forward
        orders, self._rank_of_stage = orders_of(parallel.pipeline_schedule, world, per_rank, self._number)
        self._orders: dict[int, list[Task]] = {}
        self._order: list[Task] | None = None
        self._is_turn = parallel.pipeline_schedule in V_SCHEDULES and places == [world.layout.pp - 1]
        contents = [stage.content for stage in stages_of_pp_rank(config, world.layout, places[0])]
        self._like = [] if self._is_turn else [contents.index(content) for content in contents]
        wanted: list[set[Context]] = [set() for _ in range(per_rank)]
        for place in places:
            more = [
                contexts | wanted_of([orders[place]], slot, with_previous=self._with_previous)
                for slot, contexts in enumerate(wanted)
            ]
            order = self._order if more == wanted else self._shortest_order(more, _transfers(orders[place]))
            if order is not None:
                self._orders[place], self._order, wanted = orders[place], order, more

    def _shortest_order(self, wanted: list[set[Context]], transfers: set[Task]) -> list[Task] | None:
        if self._is_turn:
            return order_of_turn(wanted, transfers, with_previous=self._with_previous)
        return order_of_slots(wanted, transfers, self._like, with_previous=self._with_previous)

    @property
    def is_there(self) -> bool:
        """Whether the steps follow from such an order."""
        return self._order is not None

    @property
    def num_micro_batches(self) -> int:
        assert self._order is not None
        return max(self._order.count(Task("FORWARD", slot)) for _, slot in self._order)

    def adapt(self, pipeline: Pipeline) -> None:
        assert self._order is not None
        replace_order(pipeline, self._order, self._rank_of_stage)

    def steps(self, seen: Observation) -> dict[int, StepResources]:
        actions = take_apart(seen, self.num_micro_batches)
        return {
            place: compose(actions, order, self._number, with_previous=self._with_previous, like=self._like)
            for place, order in self._orders.items()
        }


def order_of_slots(
    wanted: list[set[Context]], transfers: set[Task], like: list[int], *, with_previous: bool
) -> list[Task] | None:
    """A short order of all stages' tasks, one stage after the other, with all contexts that are `wanted` of each; None
    if one order cannot have them.

    `transfers` is what a stage receives and sends. `like[slot]` is the first slot that holds the same: what its tasks
    show, those of the later one need not.
    """
    known: dict[int, set[Situation]] = defaultdict(set)
    order: list[Task] = []
    for slot, (contexts, first) in enumerate(zip(wanted, like, strict=True)):
        walk = shortest_walk(contexts, with_previous=with_previous, known=known[first])
        if walk is None:
            return None
        tasks = [task for kind in walk for task in _sent(kind, slot, transfers)]
        known[first] |= {situation_of(c) for c in wanted_of([tasks], slot, with_previous=with_previous)}
        order += tasks
    return order


def order_of_turn(wanted: list[set[Context]], transfers: set[Task], *, with_previous: bool) -> list[Task] | None:
    """The same where the stages follow each other, and what one makes the other takes: they take turns, forward passes
    go up the stages one micro-batch at a time, and backward passes down."""
    walk = shortest_walk(set().union(*wanted), with_previous=with_previous)
    if walk is None:
        return None
    slots_of = {kind: range(len(wanted))[:: 1 if kind == "FORWARD" else -1] for kind in walk}
    return [task for kind in walk for slot in slots_of[kind] for task in _sent(kind, slot, transfers)]


def _transfers(order: list[Task]) -> set[Task]:
    return {task for task in order if task.kind in TRANSFERS}


def _sent(kind: str, slot: int, transfers: set[Task]) -> list[Task]:
    """A task between the receiving of what it needs and the sending of what it makes, where there is any of either."""
    letter = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "B"}.get(kind, "-")
    around = [Task(f"RECV_{letter}", slot), Task(kind, slot), Task(f"SEND_{letter}", slot)]
    return [task for task in around if task.kind == kind or task in transfers]
