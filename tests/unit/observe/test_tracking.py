"""A run in the real wandb, offline: what its file holds, across a resume."""

import json
import logging
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmforge.config.observe import TrackingConfig
from glmforge.extras import MissingPackageError
from glmforge.observe.background import Background
from glmforge.observe.bus import MetricsBus
from glmforge.observe.tracking import Tracking, without_secrets

PROGRAM = """
import sys
from pathlib import Path
from glmforge.config.observe import TrackingConfig
from glmforge.observe import tracking
from glmforge.observe.background import Background
from glmforge.observe.bus import Kind, MetricsBus

tracking._BEGIN_S = 240  # the machine may be busy, and wandb's own process takes its time
root, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
config = {"optim": {"lr": 0.1}, "data": {"tokenizer": "x", "api_key": "hunter2"}}
settings = TrackingConfig(project="moe", mode="offline")
sink = Background(tracking.Tracking(settings, root, "a run", config), close_s=240)
bus = MetricsBus([sink])
bus.open(first - 1, 0)
for step in range(first, last + 1):
    bus.record({"step": step, "loss": step / 2, "source_loss": {"web": 1.0}, "phase": "x"}, step=step)
    bus.flush()
bus.write(Kind.EVALUATION, {"step": last, "tokens": 9, "source": "web", "bits_per_byte": 1.5})
bus.close()
assert bus.sinks == [sink]
"""


def tracked(root: Path, first: int, last: int) -> None:
    """A process that trains these steps."""
    pytest.importorskip("wandb")
    environment = os.environ | {"WANDB__SERVICE_WAIT": "240", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(root), str(first), str(last)], check=True, env=environment)


def records(path: Path) -> Iterator[Any]:
    """What `wandb sync` would send: LevelDB's log format, with a header of 7 bytes in the first block of 32 KiB."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    content, place, parts = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
        size, kind = struct.unpack_from("<HB", content, place + 4)
        parts, place = parts + content[place + 7 : place + 7 + size], place + 7 + size
        if kind in (1, 4):  # whole, or its last part
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def rows(path: Path) -> list[dict[str, Any]]:
    found = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


def test_a_resumed_run_is_the_same_run_of_wandb(tmp_path: Path) -> None:
    tracked(tmp_path, 1, 3)
    (tmp_path / "wandb").rename(tmp_path / "before")  # wandb names directories by the second
    tracked(tmp_path, 3, 4)
    identity = json.loads((tmp_path / "tracking.json").read_text())["id"]
    files = [next((tmp_path / place).glob("offline-run-*/*.wandb")) for place in ("before", "wandb")]
    assert [path.name for path in files] == [f"run-{identity}.wandb"] * 2
    first, second = map(rows, files)
    losses = [(row["step"], row["loss/loss"]) for row in first + second if "loss/loss" in row]
    assert losses == [(1, 0.5), (2, 1.0), (3, 1.5), (3, 1.5), (4, 2.0)]
    assert first[0]["sources/source_loss/web"] == 1.0
    assert [row["evaluation/bits_per_byte/web"] for row in second if "evaluation/bits_per_byte/web" in row] == [1.5]
    [run] = [record.run for record in records(files[0]) if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name, run.run_id) == ("moe", "a run", identity)
    assert b"hunter2" not in files[0].read_bytes()


def test_another_project_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "tracking.json").write_text('{"package": "wandb", "project": "other", "id": "abc"}')
    tracked(tmp_path, 1, 1)
    assert json.loads((tmp_path / "tracking.json").read_text())["id"] != "abc"


def test_a_tracker_that_cannot_begin_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(OSError("no route to host")))
    sink = Background(Tracking(TrackingConfig(project="moe"), tmp_path, "a run", {}))
    bus = MetricsBus([sink])
    with caplog.at_level(logging.WARNING):
        bus.open(0, 0)
        bus.close()
    assert bus.sinks == []
    assert "sink dropped, training continues without it: wandb: OSError: no route to host" in caplog.text


def test_trackio_is_called_as_wandb_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no dependency; names and arguments are those of its documentation."""
    calls: list[Any] = []

    def init(project: str, name: str | None = None, *, config: Any, resume: str, embed: bool) -> Any:
        calls.append((project, name, resume))
        log = lambda metrics, step: calls.append((step, metrics))  # noqa: E731
        return SimpleNamespace(log=log, finish=lambda: calls.append("end"))

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    for steps in (range(1, 2), range(2, 3)):
        sink = Tracking(TrackingConfig(package="trackio", project="moe"), tmp_path, "a run", {"a": 1})
        bus = MetricsBus([sink])
        bus.open(steps.start - 1, 0)
        bus.record({"step": steps.start, "loss": 1.0}, step=steps.start)
        bus.flush()
        bus.close()
    name = f"a run-{json.loads((tmp_path / 'tracking.json').read_text())['id']}"
    begun = ("moe", name, "allow")
    assert calls == [begun, (1, {"loss/loss": 1.0}), "end", begun, (2, {"loss/loss": 1.0}), "end"]


def test_a_missing_tracker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingPackageError, match=r"^observe.tracking.package: trackio needs .* pip install trackio$"):
        Tracking(TrackingConfig(package="trackio", project="moe"), tmp_path, "a run", {})


def test_secrets_of_the_configuration_stay(tmp_path: Path) -> None:
    given = {"judges": [{"key": "s3cret", "url": "http://u:p@h/"}], "evaluate_tokens": 5, "tokenizer": "x"}
    assert without_secrets(given) == {
        "judges": [{"key": "***", "url": "***"}], "evaluate_tokens": 5, "tokenizer": "x"
    }  # fmt: skip
