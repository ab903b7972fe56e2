"""How far a corpus run is, for Prometheus: documents and bytes that each stage has written, tasks of the present step.

The launching process is scraped, wherever the tasks run. Its target is announced as that of a run is (job "corpus"),
and goes when the run ends in order; after an error it stays, and Prometheus reports it as down.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glmforge.extras import needed_for
from glmforge.observe.run import RunDirectory
from glmforge.observe.scrapes import ScrapeServer, TargetFile
from glmforge_corpus.pipeline.run import StepProgress
from glmforge_corpus.pipeline.statistics import Flow

_log = logging.getLogger(__name__)


class CorpusProgress:
    """A collector for prometheus_client; `show` takes the progress of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[str, Flow] = {}
        self._tasks = {"done": 0, "waiting": 0}

    def show(self, step: StepProgress) -> None:
        """Take how far a step is."""
        with self._lock:
            self._tasks = {"done": step.done, "waiting": step.total - step.done}
            if step.written is not None:
                self._written[step.stage] = step.written

    def collect(self) -> Iterator[Any]:
        """Series as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            written, tasks = dict(self._written), dict(self._tasks)
        documents = CounterMetricFamily(
            "glmforge_corpus_documents_total", "documents that a stage has written", labels=["stage"]
        )
        num_bytes = CounterMetricFamily("glmforge_corpus_bytes_total", "bytes of their text", labels=["stage"])
        states = GaugeMetricFamily("glmforge_corpus_tasks", "tasks of the present step", labels=["state"])
        for stage, flow in written.items():
            documents.add_metric([stage], flow.documents)
            num_bytes.add_metric([stage], flow.bytes)
        for state, number in tasks.items():
            states.add_metric([state], number)
        yield from (documents, num_bytes, states)


@contextmanager
def exporting(output: Path, name: str, host: str, port: int) -> Iterator[CorpusProgress]:
    """Answer scrapes within the block. A port or file that cannot be had is a warning, and the run goes on.

    Raises:
        MissingPackageError: prometheus_client is not installed.
    """
    with needed_for("--metrics-port"):
        import prometheus_client  # noqa: F401
    progress, server = CorpusProgress(), None
    target = TargetFile(RunDirectory(output).exporter, 0, run=name, stage="corpus", job="corpus")
    try:
        server = ScrapeServer(progress, host, port)
        target.write(host, server.port)
    except Exception as error:  # noqa: BLE001 - metrics end no run
        _log.warning("metrics for Prometheus: %s; the run goes on", error)
    try:
        yield progress
    except KeyboardInterrupt:
        target.remove()
        raise
    else:
        target.remove()
    finally:
        if server is not None:
            server.close()
