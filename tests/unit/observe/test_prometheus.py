"""What a scrape of a run says: names, types and labels of the table, across records, rollbacks and ends."""

import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from glmforge.config.layout import Layout
from glmforge.config.observe import PrometheusConfig
from glmforge.extras import MissingPackageError
from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metric_table import SUM, Metric
from glmforge.observe.prometheus import RANK_METRICS, ExportedRun, Prometheus
from glmforge.observe.run import event_record

Make = Callable[..., Prometheus]
RUN = ExportedRun("a run", "pretrain", Layout(dp_shard=2), total_steps=100)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made = []

    def exporter(run: ExportedRun = RUN, **settings: Any) -> Prometheus:
        told = lambda kind, record: events.append(record)  # noqa: E731
        made.append(Prometheus(PrometheusConfig(**settings), tmp_path / "exporter", run, told))
        return made[-1]

    events: list[dict[str, Any]] = []
    exporter.events = events  # type: ignore[attr-defined]
    yield exporter
    for each in made:
        each.close()


def text_of(exporter: Prometheus) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def scrape(exporter: Prometheus) -> dict[str, float]:
    """`name{label="value"}` -> number."""
    found = {}
    for family in text_string_to_metric_families(text_of(exporter)):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def record(bus: MetricsBus, step: int, **values: object) -> None:
    bus.record({"step": step, **values}, step=step)
    bus.flush()


def test_a_scrape_has_the_newest_value_of_every_metric_and_the_sum_of_sums(make: Make) -> None:
    exporter = make(guide_names=True)
    bus = MetricsBus([exporter], [Metric("tries", "1", "rl", "tries", SUM, ("side",))])
    bus.open(0, 0)
    assert "glmforge_last_record_timestamp_seconds" not in scrape(exporter)
    record(
        bus,
        1,
        loss=float("nan"),
        phase="x",
        source_loss={"a\nb": 3.0, "c": 1.0},
        tries={"l": 1},
        nonfinite_steps_total=1,
    )
    record(bus, 2, loss=2.5, source_loss={"c": 2.0}, tries={"l": 4, "r": 1}, layer_load_cv=[0.5, 0.25], lr=0.1)
    record(bus, 3, comm_seconds_fsdp=0.5, comm_bytes_fsdp=2e9, expert_load=[[0.5, 0.5]])
    for source in ("web", 'co"de'):
        bus.write(Kind.EVALUATION, {"step": 2, "tokens": 7, "source": source, "bits_per_byte": 1.5})
    for event in ("saved", "save failed", "spike", "spike"):
        bus.write(Kind.EVENT, event_record(event, step=3))
    found = scrape(exporter)
    expected = {
        "glmforge_step": 3,
        "glmforge_total_steps": 100,
        "glmforge_loss": 2.5,
        'glmforge_source_loss{source="c"}': 2.0,
        'glmforge_tries_total{side="l"}': 5,
        'glmforge_tries_total{side="r"}': 1,
        'glmforge_layer_load_cv{router="01"}': 0.25,
        'glmforge_bits_per_byte{source="web"}': 1.5,
        'glmforge_bits_per_byte{source="co"de"}': 1.5,
        'glmforge_events_total{event="spike"}': 2,
        "glmforge_checkpoint_failures_total": 1,
        "glmforge_nonfinite_steps_total": 1,
        "glmforge_run_ended": 0,
        "training_loss": 2.5,
        "training_steps_total": 3,
        'nccl_bandwidth_gbps{axis="fsdp"}': 4.0,
        'nccl_busbw_gbps{axis="fsdp"}': 2.0,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert any(name.startswith("glmforge_run_info{version=") and 'world_size="2"' in name for name in found)
    assert found["glmforge_last_checkpoint_timestamp_seconds"] > 1.7e9
    assert not [name for name in found if 'source="a' in name or "expert_load" in name or "phase" in name]


def test_a_rollback_drops_values_but_keeps_counters_and_the_port(make: Make) -> None:
    exporter = make()
    bus = MetricsBus([exporter])
    bus.open(0, 0)
    record(bus, 9, loss=7.0, checkpoint_bytes=5)
    port = exporter.port
    bus.open(4, 40)
    found = scrape(exporter)
    assert exporter.port == port
    assert (found["glmforge_step"], found["glmforge_checkpoint_bytes_total"]) == (4, 5)
    assert "glmforge_loss" not in found


def test_the_target_of_a_preempted_run_goes_also_if_that_is_told_last(make: Make, tmp_path: Path) -> None:
    bus = MetricsBus([make()])
    bus.open(0, 0)
    bus.close()
    assert len(list((tmp_path / "exporter").iterdir())) == 1
    bus.write(Kind.EVENT, event_record("preempted", step=1))
    assert not list((tmp_path / "exporter").iterdir())


@pytest.mark.parametrize(("event", "stays"), [("finished", False), ("preempted", False), ("hang", True)])
def test_the_target_goes_when_the_run_ends_in_order(make: Make, tmp_path: Path, event: str, stays: bool) -> None:
    exporter = make()
    bus = MetricsBus([exporter])
    bus.open(0, 0)
    [path] = (tmp_path / "exporter").iterdir()
    target = json.loads(path.read_text())
    assert (path.name, target["host"], target["run"], target["stage"]) == (
        "rank-00000.json",
        "127.0.0.1",
        "a run",
        "pretrain",
    )
    assert target["port"] == exporter.port
    bus.write(Kind.EVENT, event_record(event, step=1))
    assert scrape(exporter)["glmforge_run_ended"] == (not stays)
    bus.close()
    assert path.exists() == stays
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", target["port"]), timeout=5)


def test_the_file_of_a_later_attempt_is_left_alone(make: Make, tmp_path: Path) -> None:
    early, late = make(), make()
    early.open(0, 0, MetricsBus().table)
    late.open(0, 0, MetricsBus().table)
    early.write(Kind.EVENT, event_record("finished", step=1))
    early.close()
    [path] = (tmp_path / "exporter").iterdir()
    assert json.loads(path.read_text())["port"] == late.port


def test_a_port_in_use_is_a_warning_an_event_and_no_end(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        exporter = make(port=taken.getsockname()[1])
        bus = MetricsBus([exporter])
        bus.open(0, 0)
        record(bus, 1, loss=1.0)
        assert bus.sinks == [exporter]
    [message], [event] = caplog.messages, make.events  # type: ignore[attr-defined]
    assert "cannot listen on 127.0.0.1:" in message
    assert "Address already in use" in message
    assert event["event"] == "exporter failed"


def test_a_target_that_cannot_be_written_leaves_the_exporter_up(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "exporter").write_text("in the way")
    exporter = make()
    with caplog.at_level(logging.WARNING):
        MetricsBus([exporter]).open(3, 0)
    assert scrape(exporter)["glmforge_step"] == 3
    assert "Prometheus will not find port" in caplog.text
    assert [event["event"] for event in make.events] == ["exporter failed"]  # type: ignore[attr-defined]


def test_other_ranks_export_twelve_series_and_an_earlier_attempts_targets_go(make: Make, tmp_path: Path) -> None:
    stale = tmp_path / "exporter" / "rank-00007.json"
    stale.parent.mkdir()
    stale.write_text("{}")
    run = ExportedRun("a run", "pretrain", Layout(dp_shard=2), rank=1, local_rank=1)
    second, first = make(run, ranks="all"), make(ranks="all")
    bus = MetricsBus([second], only=RANK_METRICS)
    bus.open(0, 0)
    first.open(0, 0, bus.table)
    assert sorted(path.name for path in stale.parent.iterdir()) == ["rank-00000.json", "rank-00001.json"]
    every = {name: 1.0 for name in bus.table if not bus.table[name].labels and bus.table[name].kind == "value"}
    record(bus, **(every | {"step": 1}))
    bus.write(Kind.EVENT, event_record("straggler", step=1))
    assert set(scrape(second)) == {f"glmforge_{name}" for name in RANK_METRICS}
    assert len(RANK_METRICS) == 12


def test_series_of_a_metric_are_bounded(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    exporter = make(expert_load=True)
    bus = MetricsBus([exporter])
    bus.open(0, 0)
    for part in range(3):
        record(bus, part, source_loss={f"s{n}": 1.0 for n in range(5_000)}, expert_load=[[0.1] * 3_000])
    found = scrape(exporter)
    assert sum(name.startswith("glmforge_source_loss") for name in found) == 2_000
    assert sum(name.startswith("glmforge_expert_load") for name in found) == 3_000
    assert len(caplog.messages) == 1


def test_clients_that_say_nothing_do_not_keep_others_out_for_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glmforge.observe.scrapes._Handler.timeout", 0.2)
    exporter = make()
    exporter.open(0, 0, MetricsBus().table)
    assert exporter.port is not None
    silent = [socket.create_connection(("127.0.0.1", exporter.port), timeout=30) for _ in range(8)]
    try:
        for each in silent:
            assert each.recv(1) == b""  # dropped
        assert "glmforge_step" in scrape(exporter)
    finally:
        for each in silent:
            each.close()


def test_promtool_finds_no_fault(make: Make) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    from glmforge.recipes.all_metrics import all_metrics

    exporter = make(expert_load=True)
    bus = MetricsBus([exporter], all_metrics().values())
    bus.open(0, 0)
    values: dict[str, object] = {}
    for name, row in bus.table.items():
        if row.kind not in ("text", "label"):
            one: object = 1.0
            for _ in row.labels:
                one = {"a": one}
            values[name] = one
    record(bus, **(values | {"step": 1}))
    text = text_of(exporter)
    assert text.count("# TYPE") > 150
    of_targets = {"job", "run", "stage", "rank", "instance"}  # Prometheus would rename ours
    assert not of_targets.intersection(re.findall(r'[{,](\w+)="', text))
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    faults = [line for line in (done.stdout + done.stderr).splitlines() if "bits_per_byte" not in line]
    assert not faults  # bits per byte is the field's unit, not one of size


def test_without_prometheus_client_it_is_one_line(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPackageError, match=r"^observe.prometheus needs the package 'prometheus_client', which"):
        make()
