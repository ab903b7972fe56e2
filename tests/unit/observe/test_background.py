"""A sink on its own thread: training neither waits for it nor ends with it. Nothing here depends on time: the
sink waits for an event that the test holds, and the clock is the test's."""

import logging
from queue import Queue
from threading import Event

import pytest

from glmforge.observe.background import Background
from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import Record

PATIENCE_S = 60.0
"""For what must come, and comes at once."""


class Held:
    """Keeps what it gets, in order; writes only while `free` is set."""

    name = "held"

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[object] = []
        self.free, self.opened, self.began, self.ended = Event(), Event(), Event(), Event()
        self.written: Queue[int] = Queue()
        self.error = error

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self.calls.append(("open", step))
        self.opened.set()

    def write(self, kind: Kind, record: Record) -> None:
        self.began.set()
        assert self.free.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.calls.append(record["step"])
        self.written.put(record["step"])

    def wait_for(self, step: int) -> None:
        while self.written.get(timeout=PATIENCE_S) != step:
            pass

    def close(self) -> None:
        self.calls.append("close")
        self.ended.set()


class Events:
    name = "events"

    def __init__(self) -> None:
        self.records: list[Record] = []

    def open(self, step: int, tokens: int, table: MetricTable) -> None: ...

    def write(self, kind: Kind, record: Record) -> None:
        if kind is Kind.EVENT:
            self.records.append(record)

    def close(self) -> None: ...


def write(bus: MetricsBus, *steps: int) -> None:
    for step in steps:
        bus.write(Kind.METRICS, {"step": step})


def test_calls_come_in_order_and_close_waits_for_them() -> None:
    sink = Held()
    bus = MetricsBus([Background(sink)])
    write(bus, 0)  # before it is open
    bus.open(0, 0)
    write(bus, 1, 2)
    bus.open(1, 0)
    write(bus, 2)
    sink.free.set()
    bus.close()
    write(bus, 3)
    assert sink.calls == [("open", 0), 1, 2, ("open", 1), 2, "close"]
    bus.open(2, 0)
    write(bus, 3)
    bus.close()
    assert sink.calls[-3:] == [("open", 2), 3, "close"]


def test_a_sink_that_keeps_its_queue_full_is_dropped_after_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    sink, events, now = Held(), Events(), [0.0]
    bus = MetricsBus([Background(sink, capacity=2, limit_s=60, clock=lambda: now[0]), events])
    bus.open(0, 0)
    write(bus, 1)
    assert sink.began.wait(PATIENCE_S)  # by now the queue is empty
    with caplog.at_level(logging.WARNING):
        write(bus, 2, 3, 4)  # the last one finds it full
        now[0] = 60.0
        write(bus, 5)
        assert events.records == []
        now[0] = 61.0
        write(bus, 6)
    assert bus.sinks == [events]
    assert [(e["event"], e["detail"]) for e in events.records] == [
        ("sink dropped", "held: SlowSinkError: has not kept up for 61 s")
    ]
    assert [line.split(":")[0] for line in caplog.messages] == [
        "held does not keep up; records are dropped until it does",
        "sink dropped, training continues without it",
    ]
    bus.close()  # does not wait for it
    sink.free.set()
    assert sink.ended.wait(PATIENCE_S)
    assert sink.calls == [("open", 0), 1, "close"]


def test_a_sink_that_catches_up_stays(caplog: pytest.LogCaptureFixture) -> None:
    sink, now = Held(), [0.0]
    background = Background(sink, capacity=2, limit_s=60, clock=lambda: now[0])
    bus = MetricsBus([background])
    bus.open(0, 0)
    write(bus, 1)
    assert sink.began.wait(PATIENCE_S)
    write(bus, 2, 3, 4)
    sink.free.set()
    sink.wait_for(3)
    write(bus, 5)
    sink.wait_for(5)
    sink.free.clear()
    sink.began.clear()
    now[0] = 1000.0
    write(bus, 6)
    assert sink.began.wait(PATIENCE_S)
    write(bus, 7, 8, 9)  # full again, but not since the first time
    assert bus.sinks == [background]
    sink.free.set()
    bus.close()
    assert sink.calls == [("open", 0), 1, 2, 3, 5, 6, 7, 8, "close"]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("at", ["write", "open", "close"])
def test_what_it_raises_drops_it_at_the_next_call(at: str) -> None:
    sink, events = Held(ValueError("no such table")), Events()
    sink.free.set()
    bus = MetricsBus([Background(sink), events])
    bus.open(0, 0)
    write(bus, 1)
    assert sink.ended.wait(PATIENCE_S)
    sink.error = None
    if at == "write":
        write(bus, 2)
    elif at == "open":
        bus.open(1, 0)
    bus.close()
    assert bus.sinks == [events]
    assert [event["detail"] for event in events.records] == ["held: ValueError: no such table"]
    assert sink.calls == [("open", 0), "close"]


@pytest.mark.parametrize("capacity", [1, 10])
def test_a_sink_that_does_not_end_is_not_waited_for(capacity: int) -> None:
    sink, events = Held(), Events()
    bus = MetricsBus([Background(sink, capacity=capacity, close_s=0.0), events])
    bus.open(0, 0)
    assert sink.opened.wait(PATIENCE_S)
    write(bus, 1)
    assert sink.began.wait(PATIENCE_S)
    write(bus, 2)
    bus.close()
    assert [event["detail"] for event in events.records] == [
        "held: SlowSinkError: did not write its last records within 0 s"
    ]
    sink.free.set()
    assert sink.ended.wait(PATIENCE_S)
