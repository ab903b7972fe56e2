"""In which order each pipeline rank runs its passes: torch's schedules, without torch.

What a pipeline waits for follows from these orders and from how long passes take (`glmforge.plan.time.simulate`). They
are those of torch.distributed.pipelining; that they are is tested against its own lists, for every schedule. Its
`interleaved` orders go through the micro-batches in rounds of about as many as there are ranks.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

from glmforge.config.pipeline import stages_of_rank

Pass = Literal["forward", "backward", "input", "weight"]
"""`backward` is the whole of it; `input` and `weight` are its halves: gradients of activations, then of weights."""


class Task(NamedTuple):
    """A pass of a micro-batch through a stage."""

    kind: Pass
    stage: int
    micro_batch: int


Order = tuple[Task, ...]


@lru_cache(maxsize=64)
def pipeline_orders(schedule: str, num_ranks: int, per_rank: int, num_micro_batches: int) -> tuple[Order, ...]:
    """The tasks of each rank under a schedule of `parallel.pipeline_schedule`, with `per_rank` stages on each."""
    make = _SCHEDULES[schedule]
    return tuple(
        make(rank, stages_of_rank(schedule, rank, num_ranks, per_rank), num_ranks, num_micro_batches)
        for rank in range(num_ranks)
    )


def _gpipe(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    (stage,) = stages
    return tuple(Task(kind, stage, index) for kind in ("forward", "backward") for index in range(num))


def _1f1b(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    (stage,) = stages
    ahead = min(num, num_ranks - rank)
    tasks = [Task("forward", stage, index) for index in range(ahead)]
    for index in range(num):
        tasks.append(Task("backward", stage, index))
        if index + ahead < num:
            tasks.append(Task("forward", stage, index + ahead))
    return tuple(tasks)


def _looped_bfs(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    forward = [Task("forward", stage, index) for stage in stages for index in range(num)]
    backward = [Task("backward", stage, index) for stage in reversed(stages) for index in reversed(range(num))]
    return tuple(forward + backward)


def _interleaved_1f1b(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    return _in_rounds(rank, stages, num_ranks, num, ahead_per_rank=2, splits_backward=False)


def _interleaved_zero_bubble(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    return _in_rounds(rank, stages, num_ranks, num, ahead_per_rank=1, splits_backward=True)


def _in_rounds(
    rank: int, stages: list[int], num_ranks: int, num: int, *, ahead_per_rank: int, splits_backward: bool
) -> Order:
    """Rounds of micro-batches go through all the rank's stages; a backward pass follows each forward one in time.

    With the backward pass split, weights' gradients are computed `rank` backward passes later than inputs'.
    """
    per_round = num // max(1, num // num_ranks)
    total = num * len(stages)
    ahead = min(total, (len(stages) - 1) * per_round + ahead_per_rank * (num_ranks - 1 - rank))
    counts: Counter[tuple[Pass, int]] = Counter()
    pending: deque[int] = deque()
    tasks: list[Task] = []

    def add(kind: Pass, stage: int) -> None:
        tasks.append(Task(kind, stage, counts[kind, stage]))
        counts[kind, stage] += 1

    for step in range(total + ahead):
        if step < total:
            add("forward", stages[step // per_round % len(stages)])
        if step < ahead:
            continue
        stage = stages[-1 - (step - ahead) // per_round % len(stages)]
        add("input" if splits_backward else "backward", stage)
        if splits_backward:
            pending.append(stage)
            if step - ahead >= rank:
                add("weight", pending.popleft())
    for stage in pending:
        add("weight", stage)
    return tuple(tasks)


class _Tasks:
    """A list of tasks whose micro-batches are counted along: those of an `input` and a `backward` pass together."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self._counts: Counter[tuple[Pass, int]] = Counter()
        self._weights: deque[tuple[int, int]] = deque()

    def count(self, kind: Pass, stage: int) -> int:
        return self._counts[kind, stage]

    def add(self, kind: Pass, *stages: int) -> None:
        for stage in stages:
            key: tuple[Pass, int] = ("input" if kind == "backward" else kind, stage)
            self.tasks.append(Task(kind, stage, self._counts[key]))
            if kind == "input":
                self._weights.append((stage, self._counts[key]))
            self._counts[key] += 1

    def add_weight(self, stage: int | None = None) -> None:
        """The oldest weights' gradients that are missing, of `stage` if given; nothing if none are."""
        found = next((item for item in self._weights if stage in (None, item[0])), None)
        if found is not None:
            self._weights.remove(found)
            self.tasks.append(Task("weight", *found))


def _zbv(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    first, second = stages
    enough = max(2 * num_ranks - 1, num)
    order = _Tasks()
    order.add("forward", *[first] * (2 * (num_ranks - rank) - 1))
    order.add("forward", *[second, first] * rank)
    for _ in range(num_ranks - rank):
        _one_each(order, second)
    while order.count("forward", second) < order.count("forward", first) or order.count("forward", first) < enough:
        if order.count("forward", first) < enough:
            order.add("forward", first)
        order.add("input", first)
        order.add_weight(first)
        _one_each(order, second)
    order.add("input", *[first, second] * rank)
    for _ in range(num_ranks - rank):
        order.add("input", first)
        order.add_weight(first)
    for stage in (second, first):
        for _ in range(rank if stage == second else enough):
            order.add_weight(stage)
    return tuple(task for task in order.tasks if task.micro_batch < num)


def _one_each(order: _Tasks, stage: int) -> None:
    order.add("forward", stage)
    order.add("input", stage)
    order.add_weight(stage)


def _dualpipev(rank: int, stages: list[int], num_ranks: int, num: int) -> Order:
    """Pairs of passes that DualPipeV overlaps follow one another, which is how torch runs them."""
    first, second = stages
    behind = num_ranks - rank - 1
    order = _Tasks()
    order.add("forward", *[first] * (2 * behind))
    order.add("forward", *[first, second] * (rank + 1))
    for _ in range(behind):
        order.add("input", second)
        order.add_weight()
        order.add("forward", second)
    for _ in range(num - 2 * num_ranks + rank + 1):
        order.add("forward", first)
        order.add("backward", second)
        order.add("forward", second)
        order.add("backward", first)
    for _ in range(behind):
        order.add("backward", second)
        order.add("forward", second)
        order.add("backward", first)
    splits = False
    for index in range(rank + 1):
        splits = splits or (index == (rank + 1) // 2 and rank % 2 == 1)
        order.add("input" if splits else "backward", second)
        splits = splits or (index == (rank + 1) // 2 and rank % 2 == 0)
        order.add("input" if splits else "backward", first)
    for _ in range(behind):
        order.add_weight()
        order.add("input" if splits else "backward", first)
    for _ in range(rank + 1):
        order.add_weight()
    return tuple(order.tasks)


_SCHEDULES: dict[str, Callable[[int, list[int], int, int], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved_1f1b": _interleaved_1f1b,
    "looped_bfs": _looped_bfs,
    "interleaved_zero_bubble": _interleaved_zero_bubble,
    "zbv": _zbv,
    "dualpipev": _dualpipev,
}
