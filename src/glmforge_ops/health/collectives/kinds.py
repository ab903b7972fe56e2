"""The collectives that are measured, as nccl-tests defines them, so that figures can be compared with its figures.

Size is the larger of a rank's input and output in bytes. Algorithm bandwidth is size over time; bus bandwidth is that
times the share of the size that each rank has to send at least, and so is to be compared with the link's bandwidth in
one direction, whatever the number of ranks (nccl-tests, doc/PERFORMANCE.md).

nccl-tests has no uneven exchange. Ours: rank r sends to rank r + d as many units as d is, and nothing to itself, so
that every rank sends and receives as much as the others, in parts of all sizes.
"""

from collections.abc import Callable
from typing import NamedTuple

from glmforge.errors import ConfigError


class Kind(NamedTuple):
    """A collective.

    Attributes:
        bus_factor: bus over algorithm bandwidth, by the number of ranks.
        parts: into how many equal parts the size is divided, by the number of ranks.
        counted_parts: how many parts the column `count` tells the elements of, by the number of ranks.
        redop, root: what nccl-tests writes into these columns.
        binary: the name of nccl-tests' program; empty if it has none.
    """

    bus_factor: Callable[[int], float]
    parts: Callable[[int], int]
    counted_parts: Callable[[int], int]
    redop: str
    root: int
    binary: str


def _whole(ranks: int) -> int:
    return 1


def _each(ranks: int) -> int:
    return ranks


def _offsets(ranks: int) -> int:
    """0 + 1 + ... + (ranks - 1)."""
    return ranks * (ranks - 1) // 2


def _others_share(ranks: int) -> float:
    return (ranks - 1) / ranks


KINDS: dict[str, Kind] = {
    "all_reduce": Kind(lambda ranks: 2 * _others_share(ranks), _whole, _whole, "sum", -1, "all_reduce_perf"),
    "all_gather": Kind(_others_share, _each, _whole, "none", -1, "all_gather_perf"),
    "reduce_scatter": Kind(_others_share, _each, _whole, "sum", -1, "reduce_scatter_perf"),
    "all_to_all": Kind(_others_share, _each, _whole, "none", -1, "alltoall_perf"),
    "all_to_all_uneven": Kind(lambda ranks: 1.0, _offsets, _offsets, "none", -1, ""),
    "broadcast": Kind(lambda ranks: 1.0, _whole, _whole, "none", 0, "broadcast_perf"),
    "send_recv": Kind(lambda ranks: 1.0, _whole, _whole, "none", -1, "sendrecv_perf"),
}

DTYPES = {
    "float32": ("float", 4),
    "bfloat16": ("bfloat16", 2),
    "float16": ("half", 2),
    "float64": ("double", 8),
    "int32": ("int32", 4),
    "int8": ("int8", 1),
}
"""torch's name -> nccl-tests' name, bytes of an element."""


def find_kinds(names: list[str]) -> list[str]:
    """The collectives that were asked for, all if none was. Raises `ConfigError` for what is none."""
    for name in names:
        if name not in KINDS:
            raise ConfigError(f"--collective: {name!r} is none; give one or more of {', '.join(KINDS)}")
    return list(dict.fromkeys(names)) or list(KINDS)


def elements(kind: str, size: int, itemsize: int, ranks: int) -> int:
    """Elements of a message of at most `size` bytes that can be divided as the collective needs; at least one part."""
    parts = KINDS[kind].parts(ranks)
    return max(1, size // itemsize // parts) * parts


def counted(kind: str, num_elements: int, ranks: int) -> int:
    """What nccl-tests writes into the column `count` for a message of `num_elements`."""
    return num_elements // KINDS[kind].parts(ranks) * KINDS[kind].counted_parts(ranks)
