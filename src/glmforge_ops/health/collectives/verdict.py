"""Is what was reached what the link should give?

Bus bandwidth is compared, which is that of a link in one direction: an H800's NVLink carries 400 GB/s in both together,
200 GB/s in one, so no collective on it can reach more, and "more than 300 GB/s" would fail every one. What is expected
stands with the thresholds of the cluster's checks, or is given by the user; here it is an argument.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from glmforge.errors import ConfigError
from glmforge_ops.health.collectives.rows import Row, best_of

REACHED = 0.8
"""Of the expected bandwidth, from which on a collective passes."""
_OVER = 1.05
"""Of a link's bandwidth that a measurement cannot exceed: what is beyond was not sent over that link."""


class Expected(NamedTuple):
    """What a collective should reach.

    Attributes:
        busbw: GB/s.
        ceiling: GB/s that the link carries in one direction; None if it is not known.
        source: where the figures come from.
    """

    busbw: float
    ceiling: float | None = None
    source: str = "given"


class Verdict(NamedTuple):
    """The judgement on one collective, by its size with the highest bus bandwidth."""

    kind: str
    status: Literal["pass", "fail"]
    value: float
    threshold: float
    message: str


def expect(busbw: float) -> Expected:
    """What the user expects, in GB/s. Raises `ConfigError`."""
    if not (math.isfinite(busbw) and busbw > 0):
        raise ConfigError(f"--expect {busbw:g}: give the bus bandwidth in GB/s, more than 0")
    return Expected(busbw, source="--expect")


def judge(rows: Sequence[Row], expected: Expected, *, reached: float = REACHED) -> list[Verdict]:
    """One verdict for each collective: it fails below `reached` of what is expected, above what the link carries, and
    if an element is wrong."""
    return [
        _judge(best, wrong_elements([row for row in rows if row.kind == kind]), expected, reached)
        for kind, best in best_of(rows).items()
    ]


def wrong_elements(rows: Sequence[Row]) -> int:
    """Over all rows."""
    return sum(row.wrong or 0 for row in rows)


def _judge(best: Row, wrong: int, expected: Expected, reached: float) -> Verdict:
    threshold = reached * expected.busbw
    told = f"{best.kind}: bus bandwidth {best.busbw:.4g} GB/s at {best.size:,} bytes"
    if wrong:
        message = f"{best.kind}: {wrong:,} elements are wrong: do not train here; run it host by host to find which"
        return Verdict(best.kind, "fail", best.busbw, threshold, message)
    if expected.ceiling is not None and best.busbw > _OVER * expected.ceiling:
        message = f"{told} is more than the link's {expected.ceiling:g} GB/s: the device or link is another one"
        return Verdict(best.kind, "fail", best.busbw, threshold, message)
    if best.busbw < threshold:
        message = (
            f"{told} is less than {threshold:.4g} ({reached:g} of {expected.busbw:g}, {expected.source}): search with "
            "--find-slow, or measure larger messages"
        )
        return Verdict(best.kind, "fail", best.busbw, threshold, message)
    return Verdict(best.kind, "pass", best.busbw, threshold, f"{told}, {expected.busbw:g} expected")
