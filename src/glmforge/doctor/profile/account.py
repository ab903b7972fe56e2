"""From a trace of a few steps to where their time went: every moment of a step belongs to exactly one part.

On a CPU a step is what its main thread does, one thing after another. A forward operation belongs to the innermost
range that it lies in (`glmforge.doctor.profile.ranges`); a backward one to the range of the forward operation whose
sequence number it has; a range of the model within the backward pass is recomputation. Time in which the thread waits
for a collective is exposed communication of its axis. What a collective takes beside that is hidden.

On a GPU a step is what its streams do. A kernel belongs to the part in which it was launched; a kernel of NCCL is
exposed where no other runs; where none runs the device waits for data, or is idle.

Times in the trace are microseconds, results are seconds of one step.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from glmforge.doctor.profile.ranges import BACKWARD, DATA, IDLE, MODEL_PHASES, OTHER, PREFIX, RECOMPUTE, STEP, WAIT
from glmforge.parallel.communication import MARKER, GroupAxes, spans_by_axis

Direction = Literal["forward", "backward"]
Event = Mapping[str, Any]

_NODE = "autograd::engine::evaluate_function"
_WAITS = (WAIT, "_c10d_functional::wait_tensor")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class StepParts:
    """Seconds of one step on one rank; all but `hidden` add up to it.

    Attributes:
        phases: by name (`ranges.PHASES`) and direction; what is done once a step counts as forward.
        exposed: by axis, what the step waits for communication, late peers included.
        hidden: by axis, communication beside computation.
    """

    phases: dict[str, dict[Direction, float]] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)

    def of(self, *names: str) -> float:
        """Of these phases, both directions."""
        return sum(sum(self.phases.get(name, {}).values()) for name in names)

    @property
    def total(self) -> float:
        return self.of(*self.phases) + sum(self.exposed.values())


class _Label(NamedTuple):
    """What runs: a phase, or "wait" with the axis of the call that was made last."""

    phase: str
    direction: Direction
    axis: str = ""


class _Segment(NamedTuple):
    """`tag`: a label of the host, one of a kernel, or the axis of a collective under way."""

    start: float
    stop: float
    tag: "_Label | _Kernel | str"


class _Kernel(NamedTuple):
    label: _Label


def account(events: Iterable[Event], axes: GroupAxes) -> StepParts:
    """The mean over the steps in a trace. Raises `ValueError` if it has none."""
    whole = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (float(e["ts"]), -float(e["dur"])))
    steps = [event for event in whole if event["name"] == STEP]
    if not steps:
        raise ValueError("the trace has no steps")
    main, phase_of = steps[0]["tid"], dict[int, str]()
    host = _Thread(axes, phase_of).segments([event for event in whole if event["tid"] == main])
    on_device = any(event.get("cat") == "kernel" for event in whole)
    sent = [_Segment(*span, axis) for axis, spans in spans_by_axis(whole, axes).items() for span in spans]
    kernels = _kernels(whole, _threads(whole, main, host, axes, phase_of), sent) if on_device else []
    found = StepParts({}, defaultdict(float), defaultdict(float))
    for duration, tags in _moments([*host, *sent, *kernels]):
        _add(found, duration * 1e-6 / len(steps), tags, on_device=on_device)
    return StepParts(found.phases, dict(found.exposed), dict(found.hidden))


def _add(found: StepParts, seconds: float, tags: Sequence[Any], *, on_device: bool) -> None:
    """Give a moment to the one part that it belongs to."""
    of_host = next((tag for tag in tags if isinstance(tag, _Label)), None)
    if of_host is None:  # outside of a step
        return
    sent = [tag for tag in tags if isinstance(tag, str)]
    kernel = next((tag.label for tag in tags if isinstance(tag, _Kernel)), None)
    work = kernel if on_device else of_host if of_host.phase != "wait" else None
    if work is None and (sent or not on_device):
        found.exposed[sent[0] if sent and of_host.axis not in sent else of_host.axis] += seconds
        return
    if work is None:
        work = _Label(DATA if of_host.phase == DATA else IDLE, "forward")
    found.phases.setdefault(work.phase, {"forward": 0.0, "backward": 0.0})[work.direction] += seconds
    for axis in sent:
        found.hidden[axis] += seconds


def _moments(segments: Iterable[_Segment]) -> Iterator[tuple[float, list[Any]]]:
    """Durations, and all tags that are there meanwhile."""
    there = [segment for segment in segments if segment.stop > segment.start]
    edges = [(one.start, 1, one.tag) for one in there] + [(one.stop, -1, one.tag) for one in there]
    edges.sort(key=lambda edge: edge[:2])
    active: Counter[Any] = Counter()
    for (time, change, tag), (following, *_) in pairwise(edges):
        active[tag] += change
        if not active[tag]:
            del active[tag]
        if following > time and active:
            yield following - time, list(active)


class _Thread:
    """Cuts what a thread of the host did into segments. `phase_of` is by sequence number, of all threads."""

    def __init__(self, axes: GroupAxes, phase_of: dict[int, str]) -> None:
        self._axes, self._phase_of = axes, phase_of
        self._stack: list[tuple[float, _Label]] = []
        self._last_axis, self._last_phase = "other", OTHER

    def segments(self, events: Iterable[Event]) -> list[_Segment]:
        """Of events in the order of their starts, outer ones first."""
        found: list[_Segment] = []
        reached = float("-inf")
        for event in events:
            start, stop = _span(event)
            found += self._until(reached, start)
            reached = max(reached, start)
            above = self._stack[-1][1] if self._stack else None
            label = self._label(str(event["name"]), event.get("args", {}), above)
            if label is not None:
                self._stack.append((stop, label))
        return [*found, *self._until(reached, float("inf"))]

    def _until(self, start: float, stop: float) -> Iterator[_Segment]:
        """What ran from `start` to `stop`."""
        while self._stack and start < stop:
            end, label = self._stack[-1]
            if min(end, stop) > start:
                yield _Segment(start, min(end, stop), label)
                start = min(end, stop)
            if end <= stop:
                self._stack.pop()

    def _label(self, name: str, args: Mapping[str, Any], above: _Label | None) -> _Label | None:
        """Of an event within what is `above`; None if it belongs to that."""
        direction: Direction = above.direction if above is not None else "forward"
        if name == STEP:
            return _Label(IDLE, "forward")
        if name == BACKWARD:
            return _Label(OTHER, "backward")
        if name.startswith(_NODE):
            self._last_phase = self._phase_of.get(args.get("Sequence number", -1), self._last_phase)
            return _Label(self._last_phase, "backward")
        if name.startswith(PREFIX):
            if above is not None and above.phase == DATA:  # a source that asks the model: rollouts, references
                return None
            phase = name.removeprefix(PREFIX)
            return _Label(RECOMPUTE if phase in MODEL_PHASES and direction == "backward" else phase, direction)
        if name.startswith(MARKER):
            self._last_axis = self._axes.axis(*name.removeprefix(MARKER).split("|"))
            return _Label("wait", direction, self._last_axis)
        if name in _WAITS:
            return _Label("wait", direction, self._last_axis)
        if above is not None and direction == "forward" and "Sequence number" in args:
            self._phase_of[args["Sequence number"]] = above.phase
        return None


def _threads(
    events: Sequence[Event], main: Any, host: list[_Segment], axes: GroupAxes, phase_of: dict[int, str]
) -> dict[Any, list[_Segment]]:
    """The segments of every thread that may launch kernels: autograd has one of its own for each GPU."""
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event["tid"] != main and event.get("cat") in ("cpu_op", "user_annotation"):
            by_thread[event["tid"]].append(event)
    return {main: host} | {tid: _Thread(axes, phase_of).segments(mine) for tid, mine in by_thread.items()}


def _kernels(
    events: Sequence[Event], threads: Mapping[Any, list[_Segment]], sent: Iterable[_Segment]
) -> Iterator[_Segment]:
    """What ran on the device beside communication, each kernel with the part in which it was launched."""
    launched = {e["args"].get("correlation"): e for e in events if str(e.get("cat")).startswith("cuda_")}
    starts = {tid: [segment.start for segment in segments] for tid, segments in threads.items()}
    collectives = {segment.start for segment in sent}
    for event in events:
        if event.get("cat") not in _ON_DEVICE or float(event["ts"]) in collectives:
            continue
        call = launched.get(event.get("args", {}).get("correlation"), event)
        index = bisect.bisect_right(starts.get(call["tid"], []), float(call["ts"])) - 1
        tag = threads[call["tid"]][index].tag if index >= 0 else None
        known = isinstance(tag, _Label) and tag.phase != "wait"
        yield _Segment(*_span(event), _Kernel(tag if known else _Label(OTHER, "backward")))  # type: ignore[arg-type]


def _span(event: Event) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])
