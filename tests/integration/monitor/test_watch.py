"""A real run, watched from before its start over a kill and a resume to its end; then its timeline."""

import json
import os
import signal
from pathlib import Path

from glmforge.observe.record_files import read_jsonl
from helpers.command import Commands, write_config
from helpers.tiny_data import TinyData


def test_a_run_is_watched_over_a_kill_and_a_resume(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    run = tmp_path / "run"
    config = tiny_data.run_config(
        run,
        phases=[{"name": "main", "steps": 4000, "seq_len": 16, "batch_size": 2}],
        checkpoint={"every_steps": 20, "keep_last": 2, "background": False},
    )
    file = write_config(config)
    watched = commands.start("watch", str(run), "--keep", "--every", "0.1")
    watched.wait_until(lambda: "run: waiting" in watched.output)
    first = commands.start("train", file)
    watched.wait_until(lambda: "step 25 · loss" in watched.output)
    os.killpg(first.process.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    watched.wait_until(lambda: "run: failed: its process was killed" in watched.output)

    second = commands.start("train", file)
    watched.wait_until(lambda: " · resumed: " in watched.output)
    resumed_at = next(event["step"] for event in read_jsonl(run / "events.jsonl") if event["event"] == "resumed")
    watched.wait_until(lambda: watched.output.count(f"step {resumed_at + 1} · loss") > 0)
    stopped = commands.start("control", str(run), "stop")
    assert stopped.wait() == 0
    assert second.wait() == 0
    watched.wait_until(lambda: "run: stopped" in watched.output)
    last = read_jsonl(run / "metrics.jsonl")[-1]["step"]
    watched.wait_until(lambda: f"step {last} · loss" in watched.output)
    watched.interrupt()
    assert watched.wait() == 130
    assert "the run goes on" in watched.output
    assert "Traceback" not in watched.output

    out = tmp_path / "trace.json"
    drawn = commands.start("timeline", str(run), "--output", str(out))
    assert drawn.wait() == 0, drawn.output
    events = json.loads(out.read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names.count("running") == 2
    assert {"useful", "load", "save", "not running"} <= set(names)
