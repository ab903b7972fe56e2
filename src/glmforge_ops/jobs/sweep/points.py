"""The points of a sweep: settings that differ from run to run.

    optim.lr=1e-4,3e-4                 two values
    optim.lr=log(1e-4,3e-3,5)          five, equally far apart by their logarithms; linear(...) by their values
    model=tiny,'a,b.yaml',{preset: demo, num_hidden_layers: 6}

The values of a key are a YAML list without its brackets: commas within quotes, brackets and braces separate nothing.
Several keys make the product of all of them, the last one varying fastest. A sweep file has points as they are, and
multiplies with the keys of the command line:

    points:
      - {optim.lr: 1e-4, seed: 1}
      - {optim.lr: 3e-4, seed: 2}

Values of ranges have six significant digits; whole numbers are integers.
"""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from glmforge.config.load import load_settings
from glmforge.config.model import Strict
from glmforge.config.tree import parse, to_value
from glmforge.errors import ConfigError
from glmforge.files import shown

MAX_POINTS = 10_000
"""Of one sweep."""

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_RANGE = re.compile(r"\s*(log|linear)\((.*)\)\s*", re.DOTALL)
_FORM = "write key=value,value such as optim.lr=1e-4,3e-4 or optim.lr=log(1e-4,3e-3,5)"

Settings = dict[str, Any]
"""Of a point, by dotted key, in the order they are applied."""


class SweepFile(Strict):
    """A sweep as a file describes it."""

    points: list[Settings] = Field(min_length=1, description="settings of each, by dotted key")


def expand(axes: Sequence[str] = (), file: Path | None = None) -> list[Settings]:
    """The points that `--sweep` options and a sweep file give; whether a run can have them is not checked.

    Raises `ConfigError` for what cannot be read, and more than `MAX_POINTS` points.
    """
    factors = []
    if file is not None:
        factors.append(load_settings(SweepFile, file).points)
        for key in {key for point in factors[0] for key in point}:
            _check_key(key, shown(file))
    for text in axes:
        key, values = parse_axis(text)
        factors.append([{key: value} for value in values])
    if not factors:
        raise ConfigError(f"the sweep has no settings: {_FORM}")
    if (count := math.prod(map(len, factors))) > MAX_POINTS:
        raise ConfigError(f"the sweep has {count:,} points, more than {MAX_POINTS:,}: give fewer values")
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*factors)]


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Key and values of `key=v1,v2` or `key=log(a,b,n)`. Raises `ConfigError`."""
    place = f"--sweep '{shown(text)}'"
    key, _, written = text.partition("=")
    if not written.strip():
        raise ConfigError(f"{place}: has no values: {_FORM}")
    _check_key(key, place)
    if found := _RANGE.fullmatch(written):
        return key, _spread(found[1], _items(found[2], place), place)
    return key, _items(written, place)


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """As `load_config` takes them."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def settings_words(settings: Settings) -> str:
    """'optim.lr=0.0001 model=tiny'."""
    return " ".join(f"{key}={value_words(value)}" for key, value in settings.items())


def value_words(value: Any) -> str:
    """A value as tables show it: numbers short, text as it is, collections as JSON."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spread(kind: str, numbers: list[Any], place: str) -> list[float]:
    """`count` numbers from `low` to `high`, both included."""
    if len(numbers) != 3 or not all(map(is_number, numbers)) or not isinstance(numbers[2], int):
        raise ConfigError(f"{place}: a range has the form {kind}(low, high, count), all numbers")
    low, high, count = numbers
    if not low < high or (kind == "log" and low <= 0) or not 2 <= count <= MAX_POINTS:
        least = "0 < low" if kind == "log" else "low"
        raise ConfigError(f"{place}: a range needs {least} < high and a count from 2 to {MAX_POINTS:,}")
    shares = [index / (count - 1) for index in range(1, count - 1)]
    if kind == "log":
        inner = [math.exp((1 - share) * math.log(low) + share * math.log(high)) for share in shares]
    else:
        inner = [(1 - share) * low + share * high for share in shares]
    return [_plain(value) for value in (low, *(float(f"{value:.6g}") for value in inner), high)]


def _items(written: str, place: str) -> list[Any]:
    """`a,b` as the items of the YAML list [a,b]."""
    try:
        values = to_value(parse(f"[{written}]", place))
    except ConfigError as error:
        raise ConfigError(f"{error}; quote values with special characters: key='a,b',c") from None
    if written.strip().endswith(",") or "\n" in written or not values:
        raise ConfigError(f"{place}: a value is missing after the last comma; quote a value that ends with one")
    return values


def _check_key(key: str, place: str) -> None:
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{place}: '{shown(key)}': expected a dotted key such as optim.lr")


def _plain(value: float) -> float:
    """Whole numbers as integers: for fields that take nothing else."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value
