"""Limits by name, from `thresholds.toml` with the user's own in place of them."""

import difflib
import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from glmforge.errors import ConfigError
from glmforge.files import shown


@dataclass(frozen=True)
class Threshold:
    """A limit. `of`: pattern of the devices or links that it holds for; `source`: where it comes from."""

    name: str
    value: float
    unit: str
    about: str
    source: str
    of: str = "*"


class Thresholds:
    """All limits. Raises `ConfigError` for a user's limit that no check knows."""

    def __init__(self, own: Mapping[str, float] | None = None) -> None:
        self._own = dict(own or {})
        for name in self._own:
            refuse_unknown("thresholds: unknown limit", name, threshold_table())

    def find(self, name: str, device: str = "") -> Threshold | None:
        """The limit for a device or link; None if nothing is known of it."""
        rows = threshold_table()[name]
        row = next((row for row in rows if fnmatch.fnmatchcase(device.lower(), row.of.lower())), None)
        if name in self._own:
            return replace(row or rows[0], value=self._own[name], source="cluster.yaml", of="*")
        return row


def refuse_unknown(what: str, name: str, known: Mapping[str, object] | set[str]) -> None:
    """Raises `ConfigError` unless a name is known."""
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"did you mean '{near[0]}'?" if near else "'glmforge cluster check --list' lists them"
        raise ConfigError(f"{what} '{shown(name)}'; {hint}")


@cache
def threshold_table() -> dict[str, list[Threshold]]:
    """The rows of `thresholds.toml` by name."""
    text = files("glmforge_ops.health.checks").joinpath("thresholds.toml").read_text(encoding="utf-8")
    return {name: [Threshold(name, **row) for row in rows] for name, rows in tomllib.loads(text).items()}
