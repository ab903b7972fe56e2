"""One line of the table: a collective at one size, in nccl-tests' columns and units."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from glmforge_ops.health.collectives.kinds import DTYPES, KINDS, counted


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement.

    Attributes:
        kind: key of `KINDS`.
        size: bytes, the larger of a rank's input and output.
        count: elements, as nccl-tests counts them for the collective.
        type: of the elements, by nccl-tests' name.
        time_us: of one collective on the slowest rank.
        algbw, busbw: algorithm and bus bandwidth, GB/s (10^9 bytes).
        wrong: elements that differ from what they have to be, on all ranks together; None if nobody looked.
        in_place: whether the result took the place of the input.
    """

    kind: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None
    in_place: bool = False


def make_row(kind: str, num_elements: int, dtype: str, ranks: int, seconds: float, wrong: int | None) -> Row:
    """The row of a collective that took `seconds`."""
    name, itemsize = DTYPES[dtype]
    described = KINDS[kind]
    size = num_elements * itemsize
    algbw = size / seconds / 1e9
    return Row(
        kind=kind,
        size=size,
        count=counted(kind, num_elements, ranks),
        type=name,
        redop=described.redop,
        root=described.root,
        time_us=seconds * 1e6,
        algbw=algbw,
        busbw=algbw * described.bus_factor(ranks),
        wrong=wrong,
        in_place=kind in ("all_reduce", "broadcast"),
    )


HEADER = (
    f"{'':18}{'size':>13}{'count':>13}{'type':>10}{'redop':>7}{'root':>6}{'time':>11}{'algbw':>9}{'busbw':>9}{'#wrong':>8}",
    f"{'':18}{'(B)':>13}{'(elements)':>13}{'':>10}{'':>7}{'':>6}{'(us)':>11}{'(GB/s)':>9}{'(GB/s)':>9}{'':>8}",
)


def line_of(row: Row) -> str:
    """The row under `HEADER`."""
    wrong = "N/A" if row.wrong is None else f"{row.wrong}"
    return (
        f"{row.kind:18}{row.size:>13}{row.count:>13}{row.type:>10}{row.redop:>7}{row.root:>6}{_number(row.time_us):>11}"
        f"{_number(row.algbw):>9}{_number(row.busbw):>9}{wrong:>8}"
    )


def best_of(rows: Sequence[Row]) -> dict[str, Row]:
    """Kind -> its row of the highest bus bandwidth."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.kind not in best or row.busbw > best[row.kind].busbw:
            best[row.kind] = row
    return best


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def _number(value: float) -> str:
    """Two digits behind the point; below 1, enough of them that three figures are left."""
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"
