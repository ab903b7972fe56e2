"""What a node said of itself, read without trusting it: a probe there may be of another version, or not be ours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.files import shown

_MAX_TEXT = 2000
_MAX_ITEMS = 4096


class FactError(Exception):
    """A fact is missing or of another type than it should be; the check that wanted it says so."""


@dataclass(frozen=True)
class Times:
    """When a node was asked and when it answered, in seconds since 1970: by our clock, and by its own in between.

    `asked` <= `started` <= `ended` <= `answered` in the order in which they happened, whatever the clocks say.
    """

    asked: float
    started: float
    ended: float
    answered: float


class Facts:
    """Facts of one probe of one node: a JSON object. Every getter raises `FactError` for another type."""

    def __init__(self, values: Mapping[str, Any], times: Times | None = None) -> None:
        self._values = values
        self.times = times

    def number(self, name: str, least: float | None = None) -> float | None:
        """A finite number, not below `least`; None if the node could not find it out."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise FactError(f"{name} is {shown(value)}, not a number")
        if least is not None and value < least:
            raise FactError(f"{name} is {shown(value)}, which is below {least:g}")
        return value

    def count(self, name: str) -> int | None:
        """A whole number from 0; None if the node could not find it out."""
        value = self.number(name, least=0)
        if value is None or value == int(value):
            return None if value is None else int(value)
        raise FactError(f"{name} is {shown(value)}, not a whole number")

    def text(self, name: str) -> str | None:
        """A text in one line; None if the node could not find it out."""
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, str) and len(value) <= _MAX_TEXT:
            return shown(value)
        raise FactError(f"{name} is {shown(value)}, not a short text")

    def flag(self, name: str) -> bool | None:
        """Yes, no, or None if the node could not find it out."""
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return value
        raise FactError(f"{name} is {shown(value)}, neither true nor false")

    def texts(self, name: str) -> list[str]:
        """A list of texts; an empty one if the node could not find it out."""
        values = self._get(name)
        if values is None:
            return []
        _check_length(name, values)
        if isinstance(values, list) and all(isinstance(value, str) for value in values):
            return [shown(value) for value in values]
        raise FactError(f"{name} is {shown(values)}, not a list of texts")

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers; an empty one if the node could not find it out."""
        values = self._get(name)
        if values is None:
            return []
        _check_length(name, values)
        if isinstance(values, list):
            return [number for value in values if (number := Facts({name: value}).number(name)) is not None]
        raise FactError(f"{name} is {shown(values)}, not a list of numbers")

    def inner(self, name: str) -> "Facts | None":
        """Facts within these; None if the node could not find them out."""
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, dict):
            return Facts(value)
        raise FactError(f"{name} is {shown(value)}, not an object")

    def each(self, name: str) -> "list[Facts]":
        """A list of facts: of each GPU, each disk."""
        values = self._get(name)
        if values is None:
            return []
        _check_length(name, values)
        if isinstance(values, list) and all(isinstance(value, dict) for value in values):
            return [Facts(value) for value in values]
        raise FactError(f"{name} is {shown(values)}, not a list of objects")

    def is_unknown(self, name: str) -> bool:
        """Whether the node could not find it out."""
        return self._get(name) is None

    def names(self) -> list[str]:
        """Names of all facts."""
        return [shown(name) for name in self._values]

    def plain(self) -> dict[str, Any]:
        """Everything as it came, for JSON."""
        return dict(self._values)

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise FactError(f"{name} is missing")
        return self._values[name]


def _check_length(name: str, values: Any) -> None:
    if isinstance(values, list) and len(values) > _MAX_ITEMS:
        raise FactError(f"{name} has {len(values):,} entries, more than {_MAX_ITEMS:,}")
