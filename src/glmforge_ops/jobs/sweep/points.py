"""Which points a sweep has: settings that differ from run to run, as they are written by people.

    optim.lr=1e-4,3e-4                 two values
    optim.lr=log(1e-4,3e-3,5)          five, equally far apart by their logarithms
    phases.0.steps=integer(100,400,4)  four integers; linear(...) is the same for any number
    model=tiny,'a,b.yaml',{preset: demo, num_hidden_layers: 6}

The values of a key are a YAML list without its brackets: commas within quotes, brackets and braces separate nothing.
Several keys make the product of all of them, the last one varying fastest. A file of a sweep has up to three sections,
and the sweep is their product too:

    points:                            # as they are
      - {optim.lr: 1e-4, seed: 1}
      - {optim.lr: 3e-4, seed: 2}
    grid:
      optim.weight_decay: [0.0, 0.1]
    random:
      count: 20
      seed: 7
      settings: {optim.lr: "log(1e-4, 3e-3)", model: [tiny, demo]}

A random value is a function of the seed, its key and the draw's number alone: a larger count keeps the draws that there
were. Values of ranges have six significant digits.
"""

import itertools
import json
import math
import random
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from glmforge.config.load import load_settings
from glmforge.config.model import Strict
from glmforge.config.tree import parse, to_value
from glmforge.errors import ConfigError
from glmforge.files import shown

MAX_POINTS = 10_000
"""Of one sweep."""

_KEY = re.compile(r"^[A-Za-z_][\w-]*(\.[\w-]+)*$")
_RANGE = re.compile(r"^\s*(log|linear|integer)\((.*)\)\s*$", re.DOTALL)
_FORM = "write key=value,value such as optim.lr=1e-4,3e-4 or optim.lr=log(1e-4,3e-3,5)"


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its number, and its settings by dotted key in the order they are applied."""

    task: int
    settings: Mapping[str, Any]

    @property
    def overrides(self) -> list[str]:
        """As `load_config` takes them."""
        return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in self.settings.items()]

    def __str__(self) -> str:
        """'optim.lr=0.0001 model=tiny'."""
        return " ".join(f"{key}={value_words(value)}" for key, value in self.settings.items())


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`."""

    kind: str
    low: float
    high: float

    def spread(self, count: int) -> list[float]:
        """`count` of them, both ends among them."""
        return [self._at(index / (count - 1)) for index in range(count)]

    def draw(self, chance: random.Random) -> float:
        if self.kind == "integer":
            return chance.randint(round(self.low), round(self.high))
        return self._at(chance.random())

    def _at(self, share: float) -> float:
        if share in (0, 1):
            return _plain(self.high if share else self.low)
        if self.kind == "log":
            value = math.exp((1 - share) * math.log(self.low) + share * math.log(self.high))
        else:
            value = (1 - share) * self.low + share * self.high
        return round(value) if self.kind == "integer" else _plain(float(f"{value:.6g}"))


class RandomSearch(Strict):
    """Draws of all its settings at once."""

    count: PositiveInt = Field(le=MAX_POINTS)
    seed: NonNegativeInt = 0
    settings: dict[str, Any] = Field(min_length=1, description="key: a list to choose from, or a range of two numbers")


class SweepFile(Strict):
    """A sweep as a file describes it."""

    points: list[dict[str, Any]] = Field(default=[], description="settings of each, by dotted key")
    grid: dict[str, Any] = Field(default={}, description="key: a list, or a range with a count")
    random: RandomSearch | None = None


def expand(axes: Sequence[str] = (), file: Path | None = None) -> list[Point]:
    """The points that `--sweep` options and a sweep's file mean.

    Raises `ConfigError` for what cannot be read, an empty list, a key or a value that is given twice, and for more
    than `MAX_POINTS` points; none of them is checked against what a run can have.
    """
    factors: list[list[dict[str, Any]]] = []
    if file is not None:
        factors += _factors_of(load_settings(SweepFile, file), shown(file))
    for text in axes:
        key, values = parse_axis(text)
        factors.append([{key: value} for value in values])
    if not factors:
        raise ConfigError(f"the sweep has no settings: {_FORM}")
    _refuse_keys_given_twice(factors)
    if (count := math.prod(map(len, factors))) > MAX_POINTS:
        raise ConfigError(f"the sweep has {count:,} points; at most {MAX_POINTS:,} can be: give fewer values")
    rows = ({key: value for part in parts for key, value in part.items()} for parts in itertools.product(*factors))
    return [Point(task, settings) for task, settings in enumerate(rows)]


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Key and values of `key=v1,v2` or `key=log(a,b,n)`. Raises `ConfigError`."""
    place = f"--sweep '{shown(text)}'"
    key, equals, written = text.partition("=")
    if not equals:
        raise ConfigError(f"{place}: has no '=': {_FORM}")
    _check_key(key, place)
    if not written.strip():
        raise ConfigError(f"{place}: has no values: {_FORM}")
    if _RANGE.match(written):
        return key, _values(written, place)
    return key, _distinct(_items(written, place), place)


def value_words(value: Any) -> str:
    """A value as tables show it: numbers short, text as it is, collections as JSON."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _factors_of(sweep: SweepFile, place: str) -> list[list[dict[str, Any]]]:
    factors = []
    if "points" in sweep.model_fields_set:
        factors.append(_listed(sweep.points, f"{place}: points"))
    for key, given in sweep.grid.items():
        _check_key(key, f"{place}: grid")
        factors.append([{key: value} for value in _values(given, f"{place}: grid.{shown(key)}")])
    if sweep.random is not None:
        factors.append(_drawn(sweep.random, f"{place}: random"))
    return factors


def _listed(points: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
    if not points:
        raise ConfigError(f"{place}: is empty; give at least one mapping of settings, or leave it out")
    for number, point in enumerate(points):
        for key in point:
            _check_key(key, f"{place}.{number}")
    return points


def _drawn(search: RandomSearch, place: str) -> list[dict[str, Any]]:
    choices = {key: _choice(key, given, place) for key, given in search.settings.items()}
    return [
        {key: _draw(choice, random.Random(f"{search.seed}/{key}/{number}")) for key, choice in choices.items()}
        for number in range(search.count)
    ]


def _choice(key: str, given: Any, place: str) -> Range | list[Any]:
    _check_key(key, f"{place}.settings")
    if isinstance(given, str) and (found := _RANGE.match(given)):
        return _range(found, 2, f"{place}.settings.{key}")[0]
    return _values(given, f"{place}.settings.{key}")


def _draw(choice: Range | list[Any], chance: random.Random) -> Any:
    return choice.draw(chance) if isinstance(choice, Range) else chance.choice(choice)


def _values(given: Any, place: str) -> list[Any]:
    """Of a list, or of the text of a range with a count."""
    if isinstance(given, str) and (found := _RANGE.match(given)):
        span, count = _range(found, 3, place)
        return _distinct(span.spread(count), place)
    if not isinstance(given, list):
        raise ConfigError(f"{place}: {reprlib.repr(given)} expected a list or a range such as log(1e-4,3e-3,5)")
    return _distinct(given, place)


def _range(found: re.Match[str], num_arguments: int, place: str) -> tuple[Range, int]:
    """The range and its count; 0 where it has none."""
    kind, written = found.groups()
    numbers = _items(written, place) if written.strip() else []
    form = f"{kind}(low, high{', count' if num_arguments == 3 else ''})"
    if len(numbers) != num_arguments or not all(is_number(number) for number in numbers):
        raise ConfigError(f"{place}: a range has the form {form}, all numbers")
    low, high, *rest = numbers
    if not low < high or (kind == "log" and low <= 0):
        above = "0 < " if kind == "log" else ""
        raise ConfigError(f"{place}: {kind}({low:g}, {high:g}): must be {above}low < high")
    if kind == "integer" and not (isinstance(low, int) and isinstance(high, int)):
        raise ConfigError(f"{place}: integer({low:g}, {high:g}): both ends must be integers")
    count = rest[0] if rest else 0
    if rest and not (isinstance(count, int) and 2 <= count <= MAX_POINTS):
        raise ConfigError(f"{place}: count: expected an integer from 2 to {MAX_POINTS:,}, not {count:g}")
    return Range(kind, low, high), count


def _items(written: str, place: str) -> list[Any]:
    """`a,b` as the items of the YAML list [a,b]."""
    if written.strip().endswith(",") or "\n" in written:
        raise ConfigError(f"{place}: a value is missing after the last comma; quote a value that ends with one")
    try:
        values = to_value(parse(f"[{written}]", place))
    except ConfigError as error:
        raise ConfigError(f"{error}; quote values with special characters: key='a,b',c") from None
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{place}: has no values: {_FORM}")
    return values


def _distinct(values: list[Any], place: str) -> list[Any]:
    if not values:
        raise ConfigError(f"{place}: the list is empty; give at least one value")
    seen = set[str]()
    for value in values:
        written = json.dumps(value, sort_keys=True, default=str)
        if written in seen:
            raise ConfigError(f"{place}: the value {value_words(value)} is given twice")
        seen.add(written)
    return values


def _refuse_keys_given_twice(factors: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    seen = set[str]()
    for factor in factors:
        keys = {key for part in factor for key in part}
        if twice := sorted(keys & seen):
            raise ConfigError(f"the sweep gives '{twice[0]}' twice; put all of its values into one list")
        seen |= keys


def _check_key(key: str, place: str) -> None:
    if not _KEY.match(key):
        raise ConfigError(f"{place}: '{shown(key)}' expected a dotted key such as optim.lr")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: float) -> float:
    """Integers as such: for fields that take nothing else."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
