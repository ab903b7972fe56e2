"""What is recorded comes to every sink once, in one record."""

import logging

import pytest
import torch

from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metric_table import SUM, Metric, MetricTable
from glmforge.observe.metrics import Record
from glmforge.runtime.lease import LeaseLostError


class Taken:
    """A sink that keeps what it gets."""

    name = "taken"

    def __init__(self) -> None:
        self.records: list[tuple[Kind, Record]] = []
        self.opened: list[tuple[int, int]] = []

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self.opened.append((step, tokens))

    def write(self, kind: Kind, record: Record) -> None:
        self.records.append((kind, record))

    def close(self) -> None:
        self.opened.clear()


def test_a_record_is_what_was_recorded_since_the_last_one() -> None:
    sinks = [Taken(), Taken()]
    bus = MetricsBus(sinks)
    bus.record({"loss": 3.0, "lr": 0.1}, step=1)
    bus.record({"loss": torch.tensor(2.0), "grad_norm": None}, step=2)
    bus.flush()
    bus.record({"lr": 0.5}, step=3)
    bus.flush()
    for sink in sinks:
        assert sink.records == [(Kind.METRICS, {"loss": 2.0, "lr": 0.1}), (Kind.METRICS, {"lr": 0.5})]


def test_what_is_no_longer_known_is_absent() -> None:
    sink = Taken()
    bus = MetricsBus([sink])
    bus.record({"comm_seconds_tp": 1.0}, step=1)
    bus.record({"comm_seconds_tp": None}, step=2)
    bus.flush()
    assert sink.records == [(Kind.METRICS, {})]


def test_hooks_see_what_others_recorded_in_the_same_step() -> None:
    bus = MetricsBus()
    bus.record({"loss": 3.0, "lr": 0.1}, step=1)
    bus.record({"loss": 2.0, "mfu": None}, step=2)
    assert bus.recorded_after(2) == {"loss": 2.0, "mfu": None}
    bus.flush()
    assert bus.recorded_after(2) == {}


def test_an_unknown_name_is_refused_where_it_is_recorded() -> None:
    bus = MetricsBus()
    with pytest.raises(ValueError, match=r"'los' is not declared: did you mean 'loss'\? .*metric_rows"):
        bus.record({"los": 1.0}, step=1)
    with pytest.raises(ValueError, match="'bits_per_bite' is not declared"):
        bus.write(Kind.EVALUATION, {"step": 1, "bits_per_bite": 1.0})
    bus.table.declare([Metric("los", "1", "loss", "another one")])
    bus.record({"los": 1.0}, step=1)


def test_nothing_is_read_from_a_device_where_there_is_no_sink() -> None:
    bus = MetricsBus()
    bus.record({"loss": torch.empty((), device="meta")}, step=1)  # reading it would raise
    bus.flush()


def test_sums_are_added_up_until_a_record_is_written_and_forget_what_was_rolled_back() -> None:
    rows = [Metric("tries", "1", "run", "tries"), Metric("wins", "1", "run", "wins of each side", SUM, ("side",))]
    sink = Taken()
    bus = MetricsBus([sink], rows)
    bus.record({"tries": 1, "wins": {"left": 5}}, step=1)
    bus.open(step=0, tokens=0)
    bus.record({"tries": 2, "wins": {"left": torch.tensor(1)}}, step=1)
    bus.record({"tries": 3, "wins": None}, step=2)
    bus.record({"tries": 4, "wins": {"left": 2, "right": 3}}, step=3)
    bus.flush()
    bus.record({"wins": {"right": 1}}, step=4)
    bus.flush()
    written = [record for _, record in sink.records]
    assert written == [{"tries": 4, "wins": {"left": 3, "right": 3}}, {"wins": {"right": 1}}]


class Failing(Taken):
    """Raises `error` in the method named."""

    name = "failing"

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__()
        self.method, self.error = method, error

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        if self.method == "open" and step > 0:
            raise self.error

    def write(self, kind: Kind, record: Record) -> None:
        super().write(kind, record)
        if self.method == "write":
            raise self.error

    def close(self) -> None:
        if self.method == "close":
            raise self.error


@pytest.mark.parametrize("method", ["open", "write", "close"])
def test_a_sink_that_fails_is_dropped_with_an_event_and_one_line(method: str, caplog: pytest.LogCaptureFixture) -> None:
    before, after = Taken(), Taken()
    failing = Failing(method, OSError("the network\nis gone"))
    bus = MetricsBus([before, failing, after])
    bus.open(step=0, tokens=0)
    with caplog.at_level(logging.WARNING):
        bus.record({"loss": 3.0}, step=7)
        bus.flush()
        bus.open(step=7, tokens=70)  # after a rollback
        bus.record({"loss": 2.0}, step=8)
        bus.flush()
        bus.close()
    assert bus.sinks == [before, after]
    for sink in (before, after):
        assert [record for kind, record in sink.records if kind is Kind.METRICS] == [{"loss": 3.0}, {"loss": 2.0}]
        (event,) = [record for kind, record in sink.records if kind is Kind.EVENT]
        assert (event["event"], event["detail"]) == ("sink dropped", "failing: OSError: the network is gone")
        assert event["step"] == (8 if method == "close" else 7)
    assert len(failing.records) == (1 if method in ("open", "write") else 2)
    (line,) = caplog.messages
    assert line.startswith("sink dropped, training continues without it: failing: OSError: the network is gone")


def test_what_fails_before_the_first_step_or_loses_the_directory_ends_the_run() -> None:
    bus = MetricsBus([Failing("open", OSError("no such directory"))])
    with pytest.raises(OSError, match="no such directory"):
        bus.open(step=1, tokens=10)
    bus = MetricsBus([Failing("write", LeaseLostError("taken over"))])
    with pytest.raises(LeaseLostError):
        bus.write(Kind.NOTE, {"message": "hello"})
