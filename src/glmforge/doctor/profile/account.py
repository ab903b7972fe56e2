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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from glmforge.doctor.profile.ranges import BACKWARD, DATA, IDLE, MODEL_PHASES, OTHER, PREFIX, RECOMPUTE, STEP, WAIT
from glmforge.parallel.communication import MARKER, GroupAxes, spans_by_axis

Direction = Literal["forward", "backward"]
Event = Mapping[str, Any]
Span = tuple[float, float]

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
    start: float
    stop: float
    label: _Label


def account(events: Iterable[Event], axes: GroupAxes) -> StepParts:
    """The mean over the steps in a trace. Raises `ValueError` if it has none."""
    whole = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (float(e["ts"]), -float(e["dur"])))
    steps = [event for event in whole if event["name"] == STEP]
    if not steps:
        raise ValueError("the trace has no steps")
    main, phase_of = steps[0]["tid"], dict[int, str]()
    host = _Thread(axes, phase_of).segments([event for event in whole if event["tid"] == main])
    under_way = spans_by_axis(whole, axes)
    if any(event.get("cat") == "kernel" for event in whole):
        found = _on_device(whole, [_span(step) for step in steps], _threads(whole, main, host, axes, phase_of), axes)
    else:
        found = _on_host(host, under_way)
    parts, exposed = _added_up(found, len(steps))
    waits = [(start, stop) for start, stop, label in found if label.phase == "wait"]
    hidden = {a: (_length(s) - _length(_common(s, waits))) * 1e-6 / len(steps) for a, s in under_way.items()}
    return StepParts(parts, exposed, {axis: seconds for axis, seconds in hidden.items() if seconds > 0})


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


def _on_host(host: Iterable[_Segment], under_way: Mapping[str, list[Span]]) -> list[_Segment]:
    """A wait goes to the axis that was under way for most of it, of several threads of gloo that is the better guess."""
    merged = {axis: _merged(spans) for axis, spans in under_way.items()}
    found = []
    for segment in host:
        if segment.label.phase == "wait":
            overlap = {axis: _overlap(segment.start, segment.stop, spans) for axis, spans in merged.items()}
            axis = max(overlap, key=lambda axis: overlap[axis], default="")
            if overlap.get(axis):
                segment = segment._replace(label=segment.label._replace(axis=axis))
        found.append(segment)
    return found


def _on_device(
    events: Sequence[Event], steps: Sequence[Span], threads: Mapping[Any, list[_Segment]], axes: GroupAxes
) -> list[_Segment]:
    """What the device did from the first step to the last: computation before communication before nothing."""
    launched = {e["args"].get("correlation"): e for e in events if str(e.get("cat")).startswith("cuda_")}
    starts = {tid: [segment.start for segment in segments] for tid, segments in threads.items()}

    def label_at(tid: Any, time: float) -> _Label | None:
        index = bisect.bisect_right(starts.get(tid, []), time) - 1
        segment = threads[tid][index] if index >= 0 else None
        return segment.label if segment is not None and time < segment.stop else None

    collectives = spans_by_axis(events, axes)
    of_nccl = {start for spans in collectives.values() for start, _ in spans}
    busy = [_Segment(*span, _Label("wait", "forward", axis)) for axis, spans in collectives.items() for span in spans]
    for event in events:
        if event.get("cat") in _ON_DEVICE and float(event["ts"]) not in of_nccl:
            call = launched.get(event.get("args", {}).get("correlation"), event)
            label = label_at(call["tid"], float(call["ts"])) or _Label(OTHER, "backward")
            busy.append(_Segment(*_span(event), label if label.phase != "wait" else _Label(OTHER, label.direction)))
    main = next(iter(threads))
    found = []
    for step in steps:
        found += _swept(step, [one for one in busy if one.start < step[1] and one.stop > step[0]])
    waited = _Label(DATA, "forward")
    is_data = [(s.start, s.stop) for s in threads[main] if s.label.phase == DATA]
    idle = [(s.start, s.stop) for s in found if s.label.phase == IDLE]
    return [
        *(segment for segment in found if segment.label.phase != IDLE),
        *(_Segment(*span, waited) for span in _common(idle, is_data)),
        *(_Segment(*span, _Label(IDLE, "forward")) for span in _without(idle, is_data)),
    ]


def _swept(step: Span, busy: Sequence[_Segment]) -> Iterator[_Segment]:
    """The whole of a step, each moment once."""
    ends = sorted({*step, *(min(max(edge, step[0]), step[1]) for one in busy for edge in (one.start, one.stop))})
    waiting, active = sorted(busy, key=lambda one: one.start, reverse=True), list[_Segment]()
    for start, stop in zip(ends, ends[1:], strict=False):
        while waiting and waiting[-1].start <= start:
            active.append(waiting.pop())
        active = [one for one in active if one.stop > start]
        labels = sorted((one.label for one in active), key=lambda label: label.phase == "wait")
        yield _Segment(start, stop, labels[0] if labels else _Label(IDLE, "forward"))


def _added_up(
    segments: Iterable[_Segment], num_steps: int
) -> tuple[dict[str, dict[Direction, float]], dict[str, float]]:
    phases: dict[str, dict[Direction, float]] = defaultdict(lambda: {"forward": 0.0, "backward": 0.0})
    exposed: dict[str, float] = defaultdict(float)
    for start, stop, label in segments:
        seconds = (stop - start) * 1e-6 / num_steps
        if label.phase == "wait":
            exposed[label.axis] += seconds
        else:
            phases[label.phase][label.direction] += seconds
    return {name: dict(both) for name, both in phases.items()}, dict(exposed)


def _span(event: Event) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _overlap(start: float, stop: float, merged: Sequence[Span]) -> float:
    first = max(0, bisect.bisect_left(merged, (start, start)) - 1)
    total = 0.0
    for begin, end in merged[first:]:
        if begin >= stop:
            break
        total += max(0.0, min(stop, end) - max(start, begin))
    return total


def _common(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Where both are."""
    merged, found = _merged(others), []
    for start, stop in _merged(spans):
        first = max(0, bisect.bisect_left(merged, (start, start)) - 1)
        for begin, end in merged[first:]:
            if begin >= stop:
                break
            if min(stop, end) > max(start, begin):
                found.append((max(start, begin), min(stop, end)))
    return found


def _without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Where the first are and the others are not."""
    found = []
    for start, stop in _merged(spans):
        for begin, end in _common([(start, stop)], others):
            if begin > start:
                found.append((start, begin))
            start = end
        if stop > start:
            found.append((start, stop))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(stop - start for start, stop in _merged(spans))
