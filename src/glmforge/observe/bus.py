"""The way of every number and event of a run: from where it is measured, over one bus, to a list of sinks.

What is measured is recorded under its name in the run's table, when it is known and where it is known; nothing has to
know who reads it. On a logging step all that was recorded since the last one becomes one record, which every sink gets.
Tensors are read only then and only where there are sinks (rank 0), so recording never waits for the device.

A metric is added by a row (`metric_rows` of the hook, objective or recipe that knows it) and a call of
`trainer.record(name=value)`; a place for records to go to by a class with the methods of `Sink` and a line in
`glmforge.observe.run_sinks`.

No sink ends a run: one that fails while the run is under way is dropped, with an event and a warning. One that may be
slow (a network, another file system) is wrapped in `glmforge.observe.background.Background`.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Protocol

from glmforge.observe.metric_table import Metric, MetricKind, MetricTable
from glmforge.observe.metrics import METRICS, Record
from glmforge.observe.run import event_record
from glmforge.runtime.lease import LeaseLostError

logger = logging.getLogger(__name__)


class Kind(StrEnum):
    """What a record is about."""

    METRICS = "metrics"
    """The numbers of a logging step."""
    EVALUATION = "evaluation"
    """One source of held-out data, with step and tokens."""
    SAMPLE = "sample"
    """A text that the model wrote at an evaluation, with step and tokens."""
    NEEDLES = "needles"
    """What the model retrieved at an evaluation: one task, length and depth, with step and tokens."""
    BENCHMARK = "benchmark"
    """The score of a benchmark, with step and tokens."""
    EVENT = "event"
    """What happened to the run: `time`, `step`, `event`, `detail`."""
    ANOMALY = "anomaly"
    """An unusual step and its samples."""
    NOTE = "note"
    """A `message` to the person who is watching."""


_OF_THE_TABLE = (Kind.METRICS, Kind.EVALUATION, Kind.SAMPLE, Kind.NEEDLES, Kind.BENCHMARK)
"""Kinds whose records have only names of the table."""


class Sink(Protocol):
    """Takes records; passes over kinds that it has no use for. Whatever it raises, it is dropped for.

    Events and anomalies may come before `open` and after `close`: a run is resumed before it trains, and its last save
    may end after.

    Attributes:
        name: what messages call it.
    """

    name: str

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        """Training goes on after `step`; what was written of later steps is no longer true. Again after a rollback.

        `table` has the rows of all metrics; more may be declared later.
        """

    def write(self, kind: Kind, record: Record) -> None:
        """Take a record."""

    def close(self) -> None:
        """Release what `open` took; does nothing if it is not open."""


class MetricsBus:
    """Collects what is recorded until it is written.

    Args:
        sinks: get every record, in this order. Ranks that write nothing have none.
        rows: of metrics besides those of every run; more may be declared in `table`.
        only: names that are written; None writes all.
    """

    def __init__(
        self, sinks: Sequence[Sink] = (), rows: Iterable[Metric] = (), *, only: Collection[str] | None = None
    ) -> None:
        self.sinks, self._only = list(sinks), only
        self.table = MetricTable(METRICS.values())
        self.table.declare(rows)
        self._values: dict[str, object] = {}
        self._steps: dict[str, int] = {}
        self._step = 0
        self._has_begun = False

    def open(self, step: int, tokens: int) -> None:
        """Open all sinks to go on after `step`. What they raise at the begin of a run ends it, before anything is
        trained; later they are dropped."""
        self._step = step
        for name in [name for name in self._values if self.table[name].kind is MetricKind.SUM]:
            del self._values[name], self._steps[name]  # of steps that the run has rolled back behind
        if self._has_begun:
            self._for_each_sink(lambda sink: sink.open(step, tokens, self.table))
        else:
            for sink in self.sinks:
                sink.open(step, tokens, self.table)
        self._has_begun = True

    def close(self) -> None:
        self._for_each_sink(lambda sink: sink.close())

    def record(self, values: Mapping[str, object], *, step: int) -> None:
        """Take values measured after `step`, numbers or tensors; `None` is not known.

        Of several values of a name the last one counts; those of a sum are added up.

        Raises:
            ValueError: a name that is not in the table.
        """
        self.table.check(values)
        for name, value in values.items():
            is_sum = self.table[name].kind is MetricKind.SUM
            self._values[name] = _added(self._values.get(name), value) if is_sum else value
        self._steps.update(dict.fromkeys(values, step))
        self._step = step

    def recorded_after(self, step: int) -> Mapping[str, object]:
        """What has been recorded after `step` and is not written yet; sums include earlier steps."""
        return {name: value for name, value in self._values.items() if self._steps[name] == step}

    def flush(self) -> None:
        """Write what was recorded since the last time as one record. Waits for the device if there is a sink."""
        values, self._values, self._steps = self._values, {}, {}
        if self._only is not None:
            values = {name: value for name, value in values.items() if name in self._only}
        if self.sinks:
            self.write(Kind.METRICS, self.table.record(values))

    def write(self, kind: Kind, record: Record) -> None:
        """Give a record to every sink at once.

        Raises:
            ValueError: a name that is not in the table, but in an event, an anomaly or a note.
        """
        if kind in _OF_THE_TABLE:
            self.table.check(record)
        self._for_each_sink(lambda sink: sink.write(kind, record))

    def _for_each_sink(self, act: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            if sink not in self.sinks:  # dropped meanwhile
                continue
            try:
                act(sink)
            except LeaseLostError:  # another process writes this run: it is not the sink that has to end
                raise
            except Exception as error:  # noqa: BLE001 - no sink ends a run
                self._drop(sink, error)

    def _drop(self, sink: Sink, error: Exception) -> None:
        self.sinks.remove(sink)
        with suppress(Exception):
            sink.close()
        reason = " ".join(str(error).split())
        detail = f"{sink.name}: {type(error).__name__}: {reason}"
        logger.warning("sink dropped, training continues without it: %s", detail)
        self.write(Kind.EVENT, event_record("sink dropped", step=self._step, detail=detail))


def _added(before: Any, value: Any) -> Any:
    """Numbers, tensors, or dictionaries or lists of them; `None` is not known and adds nothing."""
    if before is None or value is None:
        return value if before is None else before
    if isinstance(value, dict):
        return {key: _added(before.get(key), value.get(key)) for key in {**before, **value}}
    if isinstance(value, list):
        return [_added(*both) for both in zip(before, value, strict=True)]
    return before + value
