"""What is recorded comes to every sink once, in one record."""

import pytest
import torch

from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metrics import Record


class Taken:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[tuple[Kind, Record]] = []
        self.opened: list[tuple[int, int]] = []

    def open(self, step: int, tokens: int) -> None:
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
    with pytest.raises(ValueError, match=r"'los' is not in glmforge.observe.metrics.METRICS: did you mean 'loss'"):
        bus.record({"los": 1.0}, step=1)


def test_nothing_is_read_from_a_device_where_there_is_no_sink() -> None:
    bus = MetricsBus()
    bus.record({"loss": torch.empty((), device="meta")}, step=1)  # reading it would raise
    bus.flush()
