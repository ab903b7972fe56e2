"""How far a figure of the planner can be relied on."""

from collections.abc import Iterable
from enum import StrEnum


class Provenance(StrEnum):
    """Where a figure comes from, the surest first."""

    MEASURED = "measured"
    """It was measured itself, in this very case."""
    CALIBRATED = "calibrated"
    """It is computed from measurements of other cases on the same kind of device or link."""
    ASSUMED = "assumed"
    """It is computed from a data sheet, or from what other devices reach of theirs."""


def least_sure(provenances: Iterable[Provenance]) -> Provenance:
    """Of a figure that is made of several; of nothing it is measured."""
    order = list(Provenance)
    return max(provenances, key=order.index, default=Provenance.MEASURED)
