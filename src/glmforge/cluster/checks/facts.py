"""What a node said of itself, read without trusting it: a probe there may be of another version, or not be ours."""

from collections.abc import Mapping
from typing import Any

from glmforge.files import shown

_MAX_TEXT = 2000


class FactError(Exception):
    """A fact is missing or of another type than it should be; the check that wanted it says so."""


class Facts:
    """Facts of one probe of one node: a JSON object. Every getter raises `FactError` for another type."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def number(self, name: str) -> float | None:
        """A number; None if the node could not find it out."""
        value = self._get(name)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        raise FactError(f"{name} is {shown(value)}, not a number")

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
        if isinstance(values, list) and all(isinstance(value, str) for value in values):
            return [shown(value) for value in values]
        raise FactError(f"{name} is {shown(values)}, not a list of texts")

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
        if isinstance(values, list) and all(isinstance(value, dict) for value in values):
            return [Facts(value) for value in values]
        raise FactError(f"{name} is {shown(values)}, not a list of objects")

    def names(self) -> list[str]:
        """Names of all facts."""
        return [shown(name) for name in self._values]

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise FactError(f"{name} is missing")
        return self._values[name]
