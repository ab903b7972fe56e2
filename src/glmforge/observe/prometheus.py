"""Metrics of a run for Prometheus, which fetches them from the process that trains (`observe.prometheus`).

    curl http://127.0.0.1:PORT/metrics

Names, types and labels are those of the run's table (`MetricTable.exported`). A series keeps its last value until a
record replaces it; sums are added up since the process started, which Prometheus takes for a restarted counter after
a resume. Series do not carry the run's name: Prometheus adds `run`, `stage` and `rank` from the target that
`<run>/exporter/rank-NNNNN.json` announces (`glmforge monitor targets`). The file goes when the run ends in order; a
process that dies leaves it, and Prometheus reports the target as down.

The training thread only keeps records; text is made by the thread that answers a scrape. A port or a file that cannot
be had is a warning and the event `exporter failed`; training continues.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmforge.config.layout import Layout
from glmforge.config.observe import PrometheusConfig
from glmforge.extras import needed_for
from glmforge.observe.bus import Kind
from glmforge.observe.environment import library_versions
from glmforge.observe.guide_names import guide_values
from glmforge.observe.metric_table import SUM, Exported, MetricTable, label_text
from glmforge.observe.metrics import COMMUNICATION_AXES, METRICS, Record
from glmforge.observe.run import event_record
from glmforge.observe.scrapes import ScrapeServer, TargetFile
from glmforge.runtime.lease import LeaseLostError

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)

RANK_METRICS = frozenset(
    {"step_seconds", "data_seconds", "rss_bytes", "device_memory_bytes"}
    | {f"comm_seconds_{axis}" for axis in COMMUNICATION_AXES}
)
"""What ranks other than 0 export (`ranks: all`): 12 series each, so that 8,192 ranks stay under 100,000."""

ENDED = frozenset({"finished", "stopped", "preempted"})
"""Events of a run that ends in order."""

_KINDS = (Kind.METRICS, Kind.EVALUATION, Kind.NEEDLES, Kind.BENCHMARK)
_MOST_SERIES = 2_000
"""Of one metric: more than any run has layers, sources or tests. `expert_load` has no limit; it is off by default."""

_Values = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class ExportedRun:
    """Which process of which run exports. `total_steps` is None if not known."""

    name: str
    stage: str
    layout: Layout = field(default_factory=Layout)
    rank: int = 0
    local_rank: int = 0
    total_steps: int | None = None


class Prometheus:
    """Keeps the newest values and answers scrapes.

    Args:
        directory: for the files of targets, `<run>/exporter`.
        tell: takes events about the exporter itself.
    """

    name = "Prometheus"

    def __init__(
        self,
        settings: PrometheusConfig,
        directory: Path,
        run: ExportedRun,
        tell: Callable[[Kind, Record], None] = lambda kind, record: None,
    ) -> None:
        with needed_for("observe.prometheus"):
            import prometheus_client  # noqa: F401
        self._settings, self._directory, self._run, self._tell = settings, directory, run, tell
        self._version = library_versions(("glmforge",)).get("glmforge", "unknown")
        self._lock = threading.Lock()
        self._table: MetricTable = METRICS
        self._names: dict[str, Exported | None] = {}
        self._num_rows = 0
        self._values: dict[str, _Values] = {}
        self._events: _Values = {}
        self._stamps: dict[str, float] = {}
        self._saves_failed = 0
        self._has_ended = False
        self._full: set[str] = set()
        self._server: ScrapeServer | None = None
        self._target = TargetFile(directory, run.rank, run=run.name, stage=run.stage)

    @property
    def port(self) -> int | None:
        """Where it listens; None if it does not."""
        return self._server.port if self._server else None

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        """Listen, or go on listening after a rollback: sums stay, values of later steps go."""
        with self._lock:
            self._table, self._num_rows, self._has_ended = table, 0, False
            self._values = {name: values for name, values in self._values.items() if table[name].kind is SUM}
            if self._run.rank == 0:
                self._values |= {"step": {(): step}, "tokens": {(): tokens}}
        if self._server is None:
            self._listen(step)

    def write(self, kind: Kind, record: Record) -> None:
        with self._lock:
            if kind is Kind.EVENT and self._run.rank == 0:
                self._count_event(record)
            elif kind is Kind.EVENT:
                self._has_ended |= record["event"] in ENDED
            elif kind in _KINDS:
                self._take(kind, record)
        if self._has_ended and self._server is None:  # a preemption is told of after `close`
            self._target.remove()

    def close(self) -> None:
        """Stop listening. The target's file is removed only after an event of `ENDED`."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._has_ended:
            self._target.remove()

    def collect(self) -> "Iterator[Family]":
        """All series, for prometheus_client; called by the thread of a scrape."""
        with self._lock:
            values = {name: dict(found) for name, found in self._values.items()}
            names = {name: self._exported(name) for name in values}
            own = list(self._own_families())
        for name, found in values.items():
            if (exported := names[name]) is not None:
                yield _family(exported.name, exported.type, exported.help, exported.labels, found)
        yield from own
        if self._settings.guide_names and self._run.rank == 0:
            for row in guide_values(values, self._run.layout):
                yield _family(*row)

    def _listen(self, step: int) -> None:
        port = self._settings.port + self._run.local_rank if self._settings.port else 0
        try:
            self._server = ScrapeServer(self, self._settings.host, port)
        except Exception as error:  # noqa: BLE001 - a port in use, a host that is none: neither ends a run
            at, why = f"{self._settings.host}:{port}", getattr(error, "strerror", None) or error
            self._fail(step, f"cannot listen on {at} ({why}); change observe.prometheus")
            return
        self._remove_old_targets()
        try:
            self._target.write(self._settings.host, self._server.port)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the disk: Prometheus can still be pointed at the port
            self._fail(step, f"Prometheus will not find port {self._server.port}: {error}")

    def _fail(self, step: int, detail: str) -> None:
        logger.warning("observe.prometheus: %s; training continues", detail)
        self._tell(Kind.EVENT, event_record("exporter failed", step=step, detail=detail))

    def _remove_old_targets(self) -> None:
        """Those of ranks that an earlier attempt had and this one has not."""
        if self._run.rank == 0:
            exporting = self._run.layout.world_size if self._settings.ranks == "all" else 1
            for path in self._directory.glob("rank-*.json"):
                with suppress(OSError, ValueError):
                    if int(path.stem.removeprefix("rank-")) >= exporting:
                        path.unlink()

    def _take(self, kind: Kind, record: Record) -> None:
        of_run = kind is Kind.METRICS
        for name, value in record.items():
            if name == "expert_load" and not self._settings.expert_load:
                continue
            exported, row = self._exported(name), self._table[name]
            if exported is None or (row.group == "run" and not of_run):
                continue
            of_record = exported.labels[: len(exported.labels) - len(row.labels)]
            before = tuple(label_text(record.get(label, "")) for label in of_record)
            found = {before + labels: float(number) for labels, number in row.points(value)}
            if row.kind is SUM:
                sums = self._values.get(name, {})
                found = {labels: sums.get(labels, 0.0) + number for labels, number in found.items()}
            self._keep(name, found, replace=not before and row.kind is not SUM)
        if of_run:
            self._stamps["record"] = time.time()

    def _keep(self, name: str, found: _Values, *, replace: bool) -> None:
        """Put values in place of earlier ones: of all, or of those with the same labels."""
        kept = found if replace else self._values.get(name, {}) | found
        if len(kept) > _MOST_SERIES and name != "expert_load":
            kept = dict(list(kept.items())[:_MOST_SERIES])
            if name not in self._full:
                logger.warning("observe.prometheus: %s has more than %d series; others are dropped", name, _MOST_SERIES)
            self._full.add(name)
        self._values[name] = kept

    def _exported(self, name: str) -> Exported | None:
        if len(self._table) != self._num_rows:  # more were declared: labels of records may be among them
            self._names, self._num_rows = {}, len(self._table)
        if name not in self._names:
            self._names[name] = self._table.exported(name)
        return self._names[name]

    def _count_event(self, record: Record) -> None:
        event = label_text(record["event"])
        self._events[(event,)] = self._events.get((event,), 0) + 1
        self._has_ended |= event in ENDED
        if event == "saved":
            self._stamps["checkpoint"] = time.time()
        self._saves_failed += event == "save failed"

    def _own_families(self) -> "Iterator[Family]":
        """What is not in the table."""
        if self._run.rank:
            return
        run, stamps = self._run, self._stamps
        for name, type_, text, value in (
            ("total_steps", "gauge", "optimizer steps of the whole run", run.total_steps),
            ("last_record_timestamp_seconds", "gauge", "time of the last record of metrics", stamps.get("record")),
            ("last_checkpoint_timestamp_seconds", "gauge", "end of the last successful save", stamps.get("checkpoint")),
            ("checkpoint_failures_total", "counter", "saves that failed", self._saves_failed),
            ("run_ended", "gauge", "1 once the run has ended in order", int(self._has_ended)),
        ):
            if value is not None:
                yield _family(f"glmforge_{name}", type_, text, (), {(): value})
        yield _family("glmforge_events_total", "counter", "events of the run", ("event",), dict(self._events))
        facts: _Values = {(str(run.layout.world_size), self._version): 1.0}
        yield _family("glmforge_run_info", "gauge", "facts about the run", ("world_size", "version"), facts)
        if "nonfinite_steps_total" not in self._values:
            text = METRICS["nonfinite_steps_total"].meaning
            yield _family("glmforge_nonfinite_steps_total", "counter", text, (), {(): 0})


def _family(name: str, type_: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if type_ == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for of_labels, value in values.items():
        family.add_metric(of_labels, value)
    return family
