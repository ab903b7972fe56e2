"""The way of every number and event of a run: from whoever measures it, over one bus, to a list of sinks.

What is measured is recorded under its name in `METRICS`, when it is known and by whoever knows it; nobody has to know
who reads it. On a logging step all that was recorded since the last one becomes one record, which every sink gets.
Tensors are read only then and only where there are sinks (rank 0), so recording never waits for the device.

A metric is added by a row of `METRICS` and a call of `trainer.record(name=value)`; a place for records to go to by a
class with the methods of `Sink` and a line in `glmforge.observe.run_sinks`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from glmforge.observe.metrics import Record, check_names, make_record


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
    EVENT = "event"
    """What happened to the run: `time`, `step`, `event`, `detail`."""
    ANOMALY = "anomaly"
    """An unusual step and its samples."""
    NOTE = "note"
    """A `message` to the person who is watching."""


class Sink(Protocol):
    """Takes records; passes over kinds that it has no use for.

    Events and anomalies may come before `open` and after `close`: a run is resumed before it trains, and its last save
    may end after.
    """

    def open(self, step: int, tokens: int) -> None:
        """Training goes on after `step`; what was written of later steps is no longer true. Again after a rollback."""

    def write(self, kind: Kind, record: Record) -> None:
        """Take a record."""

    def close(self) -> None:
        """Release what `open` took; does nothing if it is not open."""


class MetricsBus:
    """Collects what is recorded until it is written.

    Args:
        sinks: get every record, in this order. Ranks that write nothing have none.
    """

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self._values: dict[str, object] = {}
        self._steps: dict[str, int] = {}

    def open(self, step: int, tokens: int) -> None:
        """Open all sinks to go on after `step`."""
        for sink in self.sinks:
            sink.open(step, tokens)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def record(self, values: Mapping[str, object], *, step: int) -> None:
        """Take values measured after `step`, numbers or tensors; the last one of each name counts, `None` is not known.

        Raises:
            ValueError: a name that `METRICS` does not have.
        """
        check_names(values)
        self._values.update(values)
        self._steps.update(dict.fromkeys(values, step))

    def recorded_after(self, step: int) -> Mapping[str, object]:
        """What has been recorded after `step` and is not written yet."""
        return {name: value for name, value in self._values.items() if self._steps[name] == step}

    def flush(self) -> None:
        """Write what was recorded since the last time as one record. Waits for the device if there is a sink."""
        values, self._values, self._steps = self._values, {}, {}
        if self.sinks:
            self.write(Kind.METRICS, make_record(**values))

    def write(self, kind: Kind, record: Record) -> None:
        """Give a record to every sink at once."""
        for sink in self.sinks:
            sink.write(kind, record)
