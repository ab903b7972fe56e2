"""A tracker's process: what reaches it, and what becomes of it. The tracker writes down its calls."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.observe import TrackingConfig
from glmforge.extras import MissingPackageError
from glmforge.observe.bus import Kind
from glmforge.observe.metric_table import Metric, MetricTable
from glmforge.observe.metrics import METRICS
from glmforge.observe.tracking_process import TrackingError, TrackingProcess

TRACKER = """
import json, os, pathlib, signal
calls = pathlib.Path(os.environ["CALLS"]).open("a")
def told(*call):
    print(json.dumps(call), file=calls, flush=True)
def init(project, name, config, resume, embed):
    print("this is no answer")
    told("init", project, config)
    if project == "closed":
        raise OSError("no route to host")
    if project == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return Run()
class Run:
    def log(self, metrics, step):
        told("log", step, metrics)
    def finish(self):
        told("finish")
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the tracker was called with, a line each."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "trackio.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def sink_of(root: Path, project: str = "moe", config: dict[str, Any] | None = None) -> TrackingProcess:
    return TrackingProcess(TrackingConfig(package="trackio", project=project), root, "a run", config or {})


def read(calls: Path) -> list[Any]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_every_call_reaches_it_also_of_metrics_declared_later(tmp_path: Path, calls: Path) -> None:
    table = MetricTable(METRICS.values())
    sink = sink_of(tmp_path, config={"data": {"api_key": "hunter2"}, "seed": 1})
    sink.write(Kind.METRICS, {"step": 0, "loss": 9.0})  # not open yet
    sink.open(0, 0, table)
    sink.write(Kind.METRICS, {"step": 1, "loss": float("nan"), "source_loss": {"web": 1.0}})
    table.declare([Metric("kl_to_reference", "nats", "rl", "distance")])
    sink.write(Kind.METRICS, {"step": 2, "kl_to_reference": 0.5})
    sink.open(1, 0, table)
    sink.write(Kind.EVALUATION, {"step": 2, "tokens": 9, "source": "web", "bits_per_byte": 1.5})
    sink.close()
    begin, first, *rest = read(calls)
    assert begin == ["init", "moe", {"data": {"api_key": "***"}, "seed": 1}]
    assert str(first[2].pop("loss/loss")) == "nan"
    assert first == ["log", 1, {"sources/source_loss/web": 1.0}]
    assert rest[:1] == [["log", 2, {"rl/kl_to_reference": 0.5}]]
    assert rest[1][2]["evaluation/bits_per_byte/web"] == 1.5
    assert rest[2:] == [["finish"]]


@pytest.mark.parametrize(
    ("project", "message"),
    [("closed", "^OSError: no route to host$"), ("killed", "^its process ended with status -9$")],
)
def test_what_goes_wrong_there_is_raised_here(tmp_path: Path, calls: Path, project: str, message: str) -> None:
    sink = sink_of(tmp_path, project)
    sink.open(0, 0, METRICS)
    with pytest.raises(TrackingError, match=message):
        sink.close()
    sink.close()
    sink.open(0, 0, METRICS)
    with pytest.raises(TrackingError, match=message):
        write_until_it_is_known(sink)
    sink.write(Kind.METRICS, {"step": 2, "loss": 1.0})


def write_until_it_is_known(sink: TrackingProcess) -> None:
    """A pipe takes what nobody reads any more until its reader has gone."""
    while True:
        sink.write(Kind.METRICS, {"step": 1, "loss": 1.0})


PROGRAM = """
import os, signal, sys
from pathlib import Path
from glmforge.observe.bus import Kind
from glmforge.observe.metrics import METRICS
from unit.observe.test_tracking_process import sink_of
sink = sink_of(Path(sys.argv[1]))
sink.open(0, 0, METRICS)
sink.write(Kind.METRICS, {"step": 1, "loss": 1.0})
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    os.kill(sink._process.pid, number)
if os.fork() == 0:  # a reader of data, which has the pipe open, too
    signal.pause()
print(sink._process.pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_signals_pass_it_by_and_it_ends_with_the_process_that_started_it(tmp_path: Path, calls: Path) -> None:
    tests = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{tests}{os.pathsep}{os.environ['PYTHONPATH']}"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == -signal.SIGKILL
            wait_until_gone(child)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert [call[0] for call in read(calls)] == ["init", "log", "finish"]


def wait_until_gone(pid: int) -> None:
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([file], [], [], 60)[0]
    os.close(file)


def test_a_missing_tracker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingPackageError, match=r"^observe.tracking.package: trackio needs .* pip install trackio$"):
        sink_of(tmp_path)
