"""What is wrong with several variables of one file together."""

from collections.abc import Iterator

from glmforge_ops.environment.lint.assignment import Assignment, Reading
from glmforge_ops.environment.lint.facts import RENAMED
from glmforge_ops.environment.lint.known import KNOWN
from glmforge_ops.environment.lint.problem import Problem

_MOST_SOCKETS = 64
"""Of a connection of NCCL: threads x sockets per thread."""


def contradictions(reading: Reading) -> Iterator[Problem]:
    """Values that exclude each other, and variables that are set for nobody."""
    last: dict[str, Assignment] = {}
    for assignment in reading.assignments:
        if assignment.value is not None:
            last[assignment.name] = assignment
    yield from _set_twice(reading)
    yield from _not_exported(reading)
    yield from _too_many_sockets(last)
    yield from _transports(last)
    yield from _interfaces(last)
    yield from _different_names(last)
    yield from _threads(last)


def _set_twice(reading: Reading) -> Iterator[Problem]:
    """Two values for good, of which only the later one holds: what somebody changed in one place only."""
    before: dict[str, Assignment] = {}
    for assignment in reading.assignments:
        if assignment.for_one_command or assignment.conditional or assignment.only_if_unset:
            continue
        earlier = before.get(assignment.name)
        if earlier is not None and assignment.name in KNOWN and _differ(earlier, assignment):
            says = f"line {earlier.line} sets it to another value"
            yield Problem(assignment, "error", "contradiction", says, "one of the two")
        before[assignment.name] = assignment


def _differ(one: Assignment, other: Assignment) -> bool:
    return one.value is not None and other.value is not None and one.value != other.value


def _not_exported(reading: Reading) -> Iterator[Problem]:
    exported = reading.exported_names | {one.name for one in reading.assignments if one.exported}
    for assignment in reading.assignments:
        name = assignment.name
        if name in KNOWN and name not in exported and name not in reading.used_names and not assignment.only_if_unset:
            yield Problem(assignment, "error", "not exported", "set for the shell alone", f"export {name}=...")


def _too_many_sockets(last: dict[str, Assignment]) -> Iterator[Problem]:
    threads, sockets = last.get("NCCL_SOCKET_NTHREADS"), last.get("NCCL_NSOCKS_PERTHREAD")
    if threads is None or sockets is None:
        return
    numbers = [
        int(one.value) for one in (threads, sockets) if one.value and one.value.isdecimal() and len(one.value) < 9
    ]
    if len(numbers) == 2 and (product := numbers[0] * numbers[1]) > _MOST_SOCKETS:
        later = max(threads, sockets, key=lambda one: one.line)
        says = f"NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD = {product}, of at most {_MOST_SOCKETS}"
        yield Problem(later, "error", "value", says, "4 and 4 on 100 Gbit/s")


def _transports(last: dict[str, Assignment]) -> Iterator[Problem]:
    """InfiniBand off, and set up; sockets, and RDMA devices."""
    net = (_value(last, "NCCL_NET") or "").lower()
    disabled = last.get("NCCL_IB_DISABLE")
    devices = last.get("NCCL_IB_HCA") or last.get("NCCL_IB_GID_INDEX")
    if disabled is not None and disabled.value == "1":
        if net == "ib" or devices is not None:
            says = f"{devices.name if devices else 'NCCL_NET=IB'} sets up the RDMA that this switches off"
            yield Problem(disabled, "error", "contradiction", says, "one of the two")
        elif net != "socket":
            says = "no InfiniBand and no RoCE: many times slower where there is one"
            yield Problem(disabled, "warning", "harmful", says, "leave it out; NCCL_NET=Socket where sockets are meant")
    elif net == "socket" and devices is not None:
        yield Problem(devices, "warning", "contradiction", "NCCL_NET=Socket uses no RDMA device", "one of the two")


def _interfaces(last: dict[str, Assignment]) -> Iterator[Problem]:
    """NCCL excludes the very interface that gloo uses."""
    nccl, gloo = _value(last, "NCCL_SOCKET_IFNAME") or "", _value(last, "GLOO_SOCKET_IFNAME")
    if not nccl.startswith("^") or not gloo:
        return
    exact = nccl.startswith("^=")
    for name in nccl.lstrip("^=").split(","):
        if gloo == name or (name and not exact and gloo.startswith(name)):
            says = f"gloo uses {gloo}, which NCCL_SOCKET_IFNAME={nccl} excludes"
            yield Problem(last["GLOO_SOCKET_IFNAME"], "error", "contradiction", says, "one interface for both")
            return


def _different_names(last: dict[str, Assignment]) -> Iterator[Problem]:
    """The old name and the new one, with different values."""
    for old, new in RENAMED.items():
        if old in last and new in last and last[old].value != last[new].value:
            says = f"{new} has another value"
            yield Problem(last[old], "error", "contradiction", says, f"{new} alone")


def _threads(last: dict[str, Assignment]) -> Iterator[Problem]:
    mkl, omp = _value(last, "MKL_NUM_THREADS"), _value(last, "OMP_NUM_THREADS")
    if mkl and omp and mkl != omp:
        says = f"wins over OMP_NUM_THREADS={omp} in matrix products"
        yield Problem(last["MKL_NUM_THREADS"], "warning", "contradiction", says, "OMP_NUM_THREADS alone")


def _value(last: dict[str, Assignment], name: str) -> str | None:
    return last[name].value if name in last else None
