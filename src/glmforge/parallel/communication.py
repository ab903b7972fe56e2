"""What a step communicates along each axis of the layout: calls, bytes, and the time it takes.

Two instruments, for two uses:

`CollectiveObserver` sees every collective that passes PyTorch's dispatcher and reports operation, axis and bytes.
It is all that a dry run needs: it sees calls from FSDP's hooks, from autograd, from compiled code and from DTensor, of
c10d as well as of the functional collectives, on any backend, `fake` and FakeTensorMode included.

`measure_communication` adds seconds, read from a trace of torch.profiler: on CUDA the run time of NCCL's kernels, which
name their process group; on gloo, whose events do not, the life of each operation, matched to the call it came from.
Both are the time a collective was under way, hidden behind computation or not, and waiting for a late peer is part of
it; collectives of one axis that overlap count once. A measured step is slower than others by a Python call per operator
and the trace, so measure one step in many, and on all ranks alike: otherwise the others wait for this one.

A collective belongs to the axis whose group it runs on. torch lets an axis that spans all ranks share the default group
with every other such axis, unless its mesh is made with a `backend_override`; `GroupAxes` tells what happens then.
"""

import bisect
import json
import re
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glmforge.parallel.world import World
from glmforge.runtime.traces import scratch_prefix

COMMUNICATION_AXES = ("pp", "dp_replicate", "fsdp", "efsdp", "ep", "cp", "tp", "other")
"""What communication is distinguished by; `other` is all groups that are no such axis: all ranks, `stage`, ..."""

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
_QUALIFIERS = re.compile("_|base|single|coalesced|into|tensor|out|autograd")
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sharddimalltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv",
    "batchp2pops": "send_recv",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
}
MARKER = "glmforge.communication:"
_Event = Mapping[str, Any]


class Collective(NamedTuple):
    """One call on this rank: `op` as torch.distributed calls it, `bytes` the larger of its input and its output."""

    op: str
    axis: str
    bytes: int


@dataclass
class Traffic:
    """What this rank communicated along one axis; `seconds` is None where nothing measured them."""

    calls: int = 0
    bytes: int = 0
    seconds: float | None = None


class GroupAxes:
    """The axis that a collective belongs to, by the name of its process group.

    The default group of all ranks may be several axes at once. Of these the first in the order of `_TYPICAL` that does
    such operations gets the call; what none of them does, a sum over all ranks for example, is `other`.

    Args:
        groups: the name of each axis's group, of axes that have one.
        default: the name of the group of all ranks.
    """

    _TYPICAL: Mapping[str, frozenset[str]] = {
        "tp": frozenset({"all_reduce", "all_gather", "reduce_scatter"}),
        "fsdp": frozenset({"all_gather", "reduce_scatter"}),
        "efsdp": frozenset({"all_gather", "reduce_scatter"}),
        "ep": frozenset({"all_to_all"}),
        "cp": frozenset({"all_gather", "reduce_scatter", "all_to_all"}),
        "dp_replicate": frozenset({"all_reduce"}),
        "pp": frozenset({"send", "recv", "send_recv"}),
    }

    def __init__(self, groups: Mapping[str, str], default: str = "0") -> None:
        self.default = default
        self._axes: dict[str, list[str]] = defaultdict(list)
        for axis in self._TYPICAL:
            if axis in groups:
                self._axes[groups[axis]].append(axis)

    @classmethod
    def of(cls, world: World) -> "GroupAxes":
        """The axes of this rank's groups in `world`."""
        groups = {axis: world.group(axis) for axis in cls._TYPICAL}
        names = {axis: group.group_name for axis, group in groups.items() if group is not None}
        return cls(names, default=dist.group.WORLD.group_name if dist.group.WORLD is not None else "")

    def axis(self, group: str, op: str) -> str:
        """The axis of a call of `op` (empty if unknown) on the group of that name; `other` if that is no axis."""
        axes = self._axes.get(group, [])
        if group == self.default and op:
            axes = [axis for axis in axes if op in self._TYPICAL[axis]]
        return axes[0] if axes else "other"


class CollectiveObserver(TorchDispatchMode):
    """While it is entered, hands each collective of this rank to `observe`; changes no result.

    Enter it inside a FakeTensorMode, not around it. `mark` also marks each call in a profiler's trace.
    """

    supports_higher_order_operators = True

    def __init__(self, axes: GroupAxes, observe: Callable[[Collective], object], *, mark: bool = False) -> None:
        super().__init__()
        self.axes, self.observe, self.mark = axes, observe, mark

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compilation goes on as without this mode; compiled code calls collectives through the dispatcher too."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor goes first: what it communicates comes back here as plain calls
        op = _operation(func.name().rpartition("::")[2].partition(".")[0]) if func.namespace in _NAMESPACES else None
        if op is None:
            return func(*args, **kwargs)
        group = _group_name(func, args, kwargs)
        with record_function(f"{MARKER}{group}|{op}") if self.mark else nullcontext():
            result = func(*args, **kwargs)
        axis = self.axes.axis(group, op)
        self.observe(Collective(op, axis, 0 if op == "barrier" else _num_bytes((*args, *kwargs.values(), result))))
        return result


def traffic_by_axis(calls: Iterable[Collective]) -> dict[str, Traffic]:
    """Calls and bytes of each axis that has any; no seconds."""
    traffic: dict[str, Traffic] = defaultdict(Traffic)
    for call in calls:
        traffic[call.axis].calls += 1
        traffic[call.axis].bytes += call.bytes
    return dict(traffic)


@contextmanager
def measure_communication(world: World) -> Iterator[dict[str, Traffic]]:
    """Fill the dictionary it gives, at the end of the block, with this rank's traffic on each axis that has any.

        with measure_communication(world) as traffic:
            step()
        print(traffic["fsdp"].seconds)

    Seconds stay None on an axis of which the trace shows nothing, as where profiling CUDA is not permitted. Sends
    nothing itself; waits for the device at the end. Uses torch.profiler, so no other profile may be running. A world
    of one rank stays empty and costs nothing.
    """
    traffic: dict[str, Traffic] = {}
    if world.size == 1:
        yield traffic
        return
    axes = GroupAxes.of(world)
    calls: list[Collective] = []
    on_cuda = world.device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]
    with profile(activities=activities) as trace, CollectiveObserver(axes, calls.append, mark=True):
        yield traffic
    traffic |= traffic_by_axis(calls)
    for axis, seconds in seconds_by_axis(trace_events(trace), axes).items():
        traffic.setdefault(axis, Traffic()).seconds = seconds


def seconds_by_axis(events: Iterable[Mapping[str, Any]], axes: GroupAxes) -> dict[str, float]:
    """Seconds in which a collective of each axis was in progress, from the `traceEvents` of a Chrome trace."""
    return {axis: _covered(spans) * 1e-6 for axis, spans in spans_by_axis(events, axes).items()}


def spans_by_axis(events: Iterable[Mapping[str, Any]], axes: GroupAxes) -> dict[str, list[tuple[float, float]]]:
    """Start and stop of each collective, in microseconds of the trace's clock."""
    whole = [event for event in events if event.get("ph") == "X"]
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for axis, event in (*_nccl_kernels(whole, axes), *_gloo_operations(whole, axes)):
        start = float(event["ts"])
        spans[axis].append((start, start + float(event["dur"])))
    return dict(spans)


def _nccl_kernels(events: Iterable[_Event], axes: GroupAxes) -> Iterator[tuple[str, _Event]]:
    """NCCL's (and RCCL's) kernels with their axes, which kineto notes in their arguments."""
    for event in events:
        if event.get("cat") == "kernel" and re.search("nccl|rccl", str(event["name"]).lower()):
            args = event.get("args", {})
            op = _operation(str(args.get("Collective name", ""))) or ""
            yield axes.axis(str(args.get("Process Group Name", "")), op), event


def _gloo_operations(events: Iterable[_Event], axes: GroupAxes) -> Iterator[tuple[str, _Event]]:
    """gloo's operations with their axes.

    An operation is that of the last marked call before it began. But a worker thread of gloo may begin late, after
    another call; as it serves one group only, it belongs to the group that most of its operations point to.
    Sends are omitted: they last until they are polled. Receives stand for them.
    """
    events = sorted(events, key=lambda event: float(event["ts"]))
    calls: dict[str | None, list[tuple[float, str, str]]] = defaultdict(list)  # by group; all of them under None
    callers = set()
    for event in events:
        if event.get("cat") == "user_annotation" and str(event["name"]).startswith(MARKER):
            group, op = str(event["name"]).removeprefix(MARKER).split("|")
            callers.add(event.get("tid"))
            call = (float(event["ts"]), group, axes.axis(group, op))
            calls[None].append(call)
            calls[group].append(call)
    operations = [e for e in events if str(e["name"]).startswith("gloo:") and e["name"] != "gloo:send"]
    votes: dict[Any, Counter[str]] = defaultdict(Counter)
    for event in operations:
        votes[event.get("tid")][_last_before(calls[None], event)[1]] += 1
    for event in operations:
        thread = event.get("tid")
        key = None if thread in callers else votes[thread].most_common(1)[0][0]
        yield _last_before(calls[key], event)[2], event


def _last_before(calls: list[tuple[float, str, str]], event: _Event) -> tuple[float, str, str]:
    index = bisect.bisect_right(calls, float(event["ts"]), key=lambda call: call[0])
    return calls[index - 1] if index else (0.0, "", "other")


def _operation(name: str) -> str | None:
    """The usual name of an operation that the dispatcher or NCCL's trace calls `name`; None if it sends nothing."""
    return _OPERATIONS.get(_QUALIFIERS.sub("", name))


def _group_name(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    names = [argument.name for argument in func._schema.arguments]
    name = "process_group" if "process_group" in names else "group_name"
    index = names.index(name)
    group = args[index] if index < len(args) else kwargs[name]
    if isinstance(group, str):
        return group
    if not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return str(group.group_name)


def _num_bytes(values: Iterable[Any]) -> int:
    """Bytes of the largest argument or result, of a list of tensors all together."""
    return max(
        sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
        for value in values
    )


def trace_events(trace: profile) -> list[dict[str, Any]]:
    """What a profile has seen, as `traceEvents` of a Chrome trace."""
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("communication")) as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        return parse_trace(path.read_bytes())


def parse_trace(text: bytes) -> list[dict[str, Any]]:
    """The events of a Chrome trace; none, with a warning, if it cannot be read: no reason to stop a training run.

    kineto leaves the value of an empty group description out, which is no JSON.
    """
    try:
        events: list[dict[str, Any]] = json.loads(re.sub(rb'":\s*(?=[,}])', b'": ""', text))["traceEvents"]
    except ValueError as error:
        warnings.warn(f"torch.profiler's trace is not valid JSON ({error}); communication is not timed", stacklevel=2)
        return []
    return events


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
