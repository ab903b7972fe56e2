"""Benchmarks in the course of training: equal scores on all layouts, the same losses as without, the best kept."""

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.store import list_checkpoints, step_of
from glmforge.cli.checkpoint_contents import show_run
from glmforge.errors import ConfigError
from glmforge.evaluate.benchmarks.in_training import BenchmarkAsker
from glmforge.extras import MissingPackageError
from glmforge.observe.metrics import Record, make_record
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.trainer import Hook, Trainer
from helpers.benchmark_tasks import CHOSEN, WRITTEN, task_file
from helpers.distributed import run_ranks
from helpers.hooks import events
from helpers.tiny_data import TinyData

OBSERVE = {"progress": False, "tensorboard": False}


def sections(benchmarks: dict[str, Any] | None, steps: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "phases": [{"name": "main", "seq_len": 32, "batch_size": 4, "steps": steps}],
        "observe": OBSERVE | {"benchmarks": benchmarks} | more.pop("observe", {}),
        **more,
    }


def asked(directory: Path) -> dict[str, Any]:
    """Both kinds of a task; the second is a file of its own name."""
    chosen, written = directory / "chosen", directory / "written"
    for place in (chosen, written):
        place.mkdir(parents=True)
    task_file(written, WRITTEN.replace("task: sums", "task: said")).rename(written / "said.yaml")
    names = [str(task_file(chosen, CHOSEN)), str(written / "said.yaml")]
    return {"names": names, "every_steps": 2, "limit": 4, "max_new_tokens": 4}


class Listener(Hook):
    name = "listener"

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_alive(self, trainer: Trainer, what: str) -> None:
        self.heard.append(what)


def rank_train(tiny_data: TinyData, output_dir: Path, cache: Path, sections: dict[str, Any]) -> None:
    os.environ["HF_DATASETS_CACHE"] = str(cache)
    torch.set_num_threads(1)
    train(tiny_data.run_config(output_dir, **sections))


def test_scores_and_losses_on_two_layouts(tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    benchmarks, listener = asked(tmp_path / "tasks"), Listener()
    train(tiny_data.run_config(tmp_path / "one", **sections(benchmarks)), [listener])
    parallel = {"dp_shard": 2, "ep": 2}
    run_ranks(
        rank_train,
        2,
        tiny_data,
        tmp_path / "two",
        tmp_path / "cache",
        sections(benchmarks, parallel=parallel),
        init_group=False,
    )
    train(tiny_data.run_config(tmp_path / "without", **sections(None)))
    one, two = (read_jsonl(tmp_path / run / "benchmarks.jsonl") for run in ("one", "two"))
    assert [(r["step"], r["benchmark"]) for r in one] == [(2, "sums"), (2, "said"), (4, "sums"), (4, "said")]
    for record, other in zip(one, two, strict=True):
        assert {**record, "benchmark_seconds": 0} == {**other, "benchmark_seconds": 0}
        assert record["benchmark_items"] == 4
        assert 0 <= record["benchmark_low"] <= record["benchmark_score"] <= record["benchmark_high"] <= 1
    assert "benchmark_cut_share" not in one[0]
    assert one[1]["benchmark_cut_share"] > 0  # it has learnt nothing, so its answers do not end
    assert {"sums, item 4", "said, item 4"} <= set(listener.heard)
    ours, theirs = (read_jsonl(tmp_path / run / "metrics.jsonl") for run in ("one", "without"))
    assert [(r["loss"], r["grad_norm"]) for r in ours] == [(r["loss"], r["grad_norm"]) for r in theirs]
    assert not (tmp_path / "without" / "benchmarks.jsonl").exists()


SCORES = (math.nan, 0.8, 0.5, 0.4, 0.3)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the benchmark `sums` scores, one evaluation after another."""
    scores = list(SCORES)

    def ask(*_: object) -> list[Record]:
        return [make_record(benchmark="sums", benchmark_score=scores.pop(0), benchmark_items=4)]

    monkeypatch.setattr(BenchmarkAsker, "ask", ask)
    return scores


def test_the_best_checkpoint_is_kept(
    tiny_data: TinyData,
    tmp_path: Path,
    scripted: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    keep_best = {"metric": "sums", "mode": "max"}
    checkpoint = {"every_steps": 2, "keep_last": 1, "keep_best": keep_best}
    monkeypatch.setenv("COLUMNS", "160")
    given = sections(asked(tmp_path / "tasks"), steps=10, checkpoint=checkpoint)
    train(tiny_data.run_config(tmp_path / "run", **given))
    root = tmp_path / "run" / "checkpoints"
    assert [step_of(path) for path in list_checkpoints(root)] == [10, 4]
    assert read_meta(list_checkpoints(root)[1]).measured == {"sums": 0.8}
    show_run(tmp_path / "run")
    shown = [line for line in capsys.readouterr().out.splitlines() if "step-" in line]
    assert [re.search(r"best sums: 0\.8", line) is not None for line in shown] == [False, True]
    scripted[:] = [0.6, 0.7, 0.9]
    resumed = given | {"fault_tolerance": {"resume": "step-4"}}  # it goes on from the best one
    state = train(tiny_data.run_config(tmp_path / "run", **resumed))
    assert state.step == 10
    assert [step_of(path) for path in list_checkpoints(root)] == [10], "it is the best one now"
    assert read_meta(list_checkpoints(root)[0]).measured == {"sums": 0.9}


def test_a_benchmark_stops_the_run(
    tiny_data: TinyData, tmp_path: Path, scripted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    observe = {"early_stopping": {"metric": "sums", "patience": 2}}
    state = train(
        tiny_data.run_config(tmp_path / "run", **sections(asked(tmp_path / "tasks"), steps=10, observe=observe))
    )
    assert state.step == 8  # the best is of step 4
    assert len(scripted) == 1
    (told,) = [detail for event, _, detail in events(tmp_path / "run") if event == "stopped early"]
    assert told.startswith("sums has not improved on 0.8 in 2 evaluations")


def test_refused_before_the_first_step(tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"names": ["gsm8k"], "data": str(tmp_path), "every_steps": 2}
    for wrong, told in (
        ({}, "observe.benchmarks: gsm8k: .* has no gsm8k-test.jsonl"),
        ({"names": ["gsm9k"]}, "observe.benchmarks: unknown benchmark"),
        ({"names": ["no.yaml"]}, "observe.benchmarks: no.yaml: no such file"),
    ):
        with pytest.raises(ConfigError, match=told):
            train(tiny_data.run_config(tmp_path / "run", **sections(given | wrong)))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    small = asked(tmp_path / "tasks") | {"cache_bytes": 1000}
    with pytest.raises(ConfigError, match=r"observe.benchmarks.cache_bytes: .* need [\d,]+ or more, not 1,000"):
        train(tiny_data.run_config(tmp_path / "run", **sections(small)))
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingPackageError, match=r"observe\.benchmarks needs the package 'lm_eval'"):
        train(tiny_data.run_config(tmp_path / "run", **sections(given)))
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""
