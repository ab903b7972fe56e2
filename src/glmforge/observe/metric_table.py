"""What a row of the metrics table says, and the table of a run.

Every name that a run records has a row, so that a number is called the same in all sinks, and a misspelt one is an
error rather than a second curve. The rows of every run are in `glmforge.observe.metrics`; an objective, a hook or a
recipe declares its own beside its code (`metric_rows`), and the table of the run (`MetricsBus.table`) collects them.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
_UNFIT_FOR_LABELS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")


class MetricKind(StrEnum):
    """What becomes of a metric that is recorded several times before a record is written, and of the number in it."""

    VALUE = "value"
    """The last one counts."""
    SUM = "sum"
    """They are added up: what came together since the last record, or since the run was resumed."""
    TEXT = "text"
    """Is read, never drawn."""
    LABEL = "label"
    """Text or a number that tells records apart: a label of all other metrics of the record."""


VALUE, SUM, TEXT, LABEL = MetricKind


class Exported(NamedTuple):
    """A metric as Prometheus knows it. `type` is "gauge" or "counter"; a sink adds up the records of a sum."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...]


class Metric(NamedTuple):
    """One row of the table.

    Attributes:
        labels: what tells the numbers of a value apart, outermost first. A value with labels is a list, whose positions
            count from 0, or a dictionary, whose keys are the label's values; with two labels, of lists or dictionaries.
    """

    name: str
    unit: str
    group: str
    meaning: str
    kind: MetricKind = VALUE
    labels: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        """The TensorBoard tag, e.g. `loss/loss_mtp`; groups become TensorBoard's sections."""
        return f"{self.group}/{self.name}"

    def points(self, value: object) -> Iterator[tuple[tuple[str, ...], float]]:
        """The numbers in a record's value, each with the values of `labels`, positions as `00`, `01`, ..."""
        return _points(value, ())


class MetricTable(Mapping[str, Metric]):
    """The rows of a run by name. More may be declared at any time, also while a thread reads; they stand behind those
    of their group.

    Raises:
        ValueError: as `declare`.
    """

    def __init__(self, rows: Iterable[Metric] = ()) -> None:
        self._rows: dict[str, Metric] = {}
        for row in rows:
            _check_row(row, self._rows)
            self._rows[row.name] = row

    def __getitem__(self, name: str) -> Metric:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def declare(self, rows: Iterable[Metric]) -> None:
        """Add rows; one that is there already, in all its columns, is passed over.

        Raises:
            ValueError: another row has the name, or would have it in Prometheus; a name or label that Prometheus does
                not take; labels on text.
        """
        ordered = list(self._rows.values())
        for row in rows:
            _check_row(row, {each.name: each for each in ordered})
            if row not in ordered:
                places = [place for place, each in enumerate(ordered, 1) if each.group == row.group]
                ordered.insert(places[-1] if places else len(ordered), row)
        self._rows = {row.name: row for row in ordered}  # at once: another thread reads

    def check(self, names: Iterable[str]) -> None:
        """Raises `ValueError` on a name without a row."""
        for name in names:
            if name not in self._rows:
                near = difflib.get_close_matches(name, self._rows, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(
                    f"metric {name!r} is not declared: {hint}A new one needs a row in `metric_rows` of the hook, "
                    "objective or recipe that records it"
                )

    def record(self, values: Mapping[str, object]) -> dict[str, Any]:
        """A record, in the table's order, of Python, numpy or torch values; `None` (not known) is omitted.

        Reading a tensor waits for its device: call this on logging steps only.

        Raises:
            ValueError: a name without a row, or a value that does not have its row's labels.
            TypeError: a value that JSON cannot hold.
        """
        self.check(values)
        return {name: _plain(row, values[name]) for name, row in self.items() if values.get(name) is not None}

    def exported(self, name: str) -> Exported | None:
        """A metric under its name and labels in Prometheus; None for text. The one place that decides on them.

        Labels are those of the records that the metric is in, then its own; their values are those of `Metric.points`.
        """
        row = self[name]
        if row.kind in (TEXT, LABEL):
            return None
        of_records = tuple(each.name for each in self.values() if each.kind is LABEL and each.group == row.group)
        kind = "counter" if row.kind is SUM or row.name.endswith("_total") else "gauge"
        return Exported(_exported_name(row), kind, f"{row.meaning} ({row.unit})", of_records + row.labels)


def label_text(value: object) -> str:
    """The value of a label on one line of valid Unicode: line breaks, other control characters and halves of
    surrogate pairs are written as in Python, `\\n`."""
    return _UNFIT_FOR_LABELS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(value))


def _check_row(row: Metric, others: Mapping[str, Metric]) -> None:
    there = others.get(row.name)
    if there is not None and there != row:
        raise ValueError(f"metric {row.name!r} is declared twice: as {there.meaning!r} and as {row.meaning!r}")
    for name in (row.name, *row.labels):
        if not _NAME.fullmatch(name):
            raise ValueError(f"metric {row.name!r}: {name!r} must consist of letters, digits and single underscores")
    for other in others.values():
        if other.name != row.name and _exported_name(other) == _exported_name(row):
            raise ValueError(f"metric {row.name!r} and {other.name!r} have the same name in Prometheus; rename it")
    group = [row, *(each for each in others.values() if each.group == row.group)]
    of_records = {each.name for each in group if each.kind is LABEL}
    if any(of_records.intersection(each.labels) for each in group) or len(set(row.labels)) < len(row.labels):
        raise ValueError(f"metric {row.name!r}: two labels of a metric in group {row.group!r} have the same name")
    if row.labels and row.kind in (TEXT, LABEL):
        raise ValueError(f"metric {row.name!r}: a {row.kind} has no labels")


def _exported_name(row: Metric) -> str:
    suffix = "_total" if row.kind is SUM and not row.name.endswith("_total") else ""
    return f"glmforge_{row.name}{suffix}"


def _points(value: object, labels: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, (int, float)):
        yield labels, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _points(one, (*labels, label_text(key)))
    elif isinstance(value, list):
        for position, one in enumerate(value):
            yield from _points(one, (*labels, f"{position:02d}"))


def _plain(row: Metric, value: Any) -> bool | int | float | str | list[Any] | dict[str, Any]:
    plain = _plain_value(row.name, value)
    if row.kind in (VALUE, SUM) and not _has_labels(plain, len(row.labels)):
        one = f"a number for each {' and '.join(row.labels)}" if row.labels else "one number"
        raise ValueError(f"metric {row.name!r} is {one}, not {plain!r:.100}")
    return plain


def _has_labels(value: object, num_labels: int) -> bool:
    """Whether so many lists or dictionaries are around each number, as far as the first ones tell."""
    if not isinstance(value, (list, dict)):
        return num_labels == 0 and isinstance(value, (int, float))
    inner = list(value.values() if isinstance(value, dict) else value)[:1]
    return num_labels > 0 and all(_has_labels(one, num_labels - 1) for one in inner)


def _plain_value(name: str, value: Any) -> bool | int | float | str | list[Any] | dict[str, Any]:
    if isinstance(value, (bool, int, float, str, list)) and not isinstance(value, np.generic):
        return value
    if isinstance(value, dict):
        return {str(key): _plain_value(name, one) for key, one in value.items()}
    if hasattr(value, "tolist"):  # numpy scalar or array, torch tensor; a 0-d one gives a Python number
        plain: bool | int | float | str | list[Any] = value.tolist()
        return plain
    raise TypeError(
        f"metric {name!r} has a value of type {type(value).__name__}; record a number, text, list or dictionary"
    )
