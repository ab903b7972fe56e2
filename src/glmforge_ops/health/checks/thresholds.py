"""Limits by name, from `thresholds.toml` with the user's own laid over them."""

import difflib
import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from glmforge.errors import ConfigError
from glmforge.files import shown


@dataclass(frozen=True)
class Threshold:
    """A limit.

    Attributes:
        of: pattern of the devices or links that it holds for; "*" for all.
        source: where it comes from; "cluster.yaml" for a user's own.
    """

    name: str
    value: float
    unit: str
    about: str
    source: str
    of: str = "*"


class Thresholds:
    """All limits. Raises `ConfigError` for a user's limit that no check knows."""

    def __init__(self, own: Mapping[str, float] | None = None) -> None:
        rows = threshold_table()
        for name in own or {}:
            if name not in rows:
                near = difflib.get_close_matches(name, rows, 1)
                hint = f"; did you mean '{near[0]}'?" if near else "; 'glmforge cluster check --list' lists them"
                raise ConfigError(f"thresholds: unknown limit '{shown(name)}'{hint}")
        self._own = dict(own or {})

    def find(self, name: str, device: str = "") -> Threshold | None:
        """The limit for a device or link; None if nothing is known of it."""
        rows = threshold_table()[name]
        row = next((row for row in rows if fnmatch.fnmatchcase(device.lower(), row.of.lower())), None)
        if name in self._own:
            kind = row or rows[0]
            return Threshold(name, self._own[name], kind.unit, kind.about, "cluster.yaml")
        return row


@cache
def threshold_table() -> dict[str, list[Threshold]]:
    """The rows of `thresholds.toml` by name."""
    text = files("glmforge_ops.health.checks").joinpath("thresholds.toml").read_text(encoding="utf-8")
    return {name: [Threshold(name, **row) for row in rows] for name, rows in tomllib.loads(text).items()}
