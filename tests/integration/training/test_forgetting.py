"""What a run that continues from given weights reports of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from glmforge.checkpoint.convert import export_hf
from glmforge.cli.app import app
from glmforge.config import dump_config
from glmforge.model import GlmMoe
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from helpers.models import randomize_, tiny_config
from helpers.stopping import StopAfter
from helpers.tiny_data import TinyData


@pytest.fixture
def published(tmp_path: Path) -> Path:
    config = tiny_config(vocab_size=512)
    model = GlmMoe(config)
    randomize_(model)
    export_hf(model.state_dict(), config, tmp_path / "published", dtype=torch.float32)
    return tmp_path / "published"


def test_starting_weights_are_scored_once_and_stand_beside_those_of_now(
    tiny_data: TinyData, published: Path, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        "init_from": str(published),
        "observe": {"progress": False, "tensorboard": False, "evaluate_every": 1, "evaluate_tokens": 600},
        "phases": [{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 8}],
    }
    config = tiny_data.run_config(tmp_path / "run", **sections)
    train(config, [StopAfter(2)])
    train(config)  # the weights that it starts with now are others
    records = read_jsonl(config.output_dir / "evaluation.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert len({record["bits_per_byte_at_start"] for record in records}) == 1
    for record in records:
        change = record["bits_per_byte"] - record["bits_per_byte_at_start"]
        assert record["bits_per_byte_change"] == pytest.approx(change, abs=1e-12)
        assert change < 0  # random weights learn
    # A run that does not move scores what the other one said it started with.
    unmoved = {"optim": {"lr": 1e-12, "min_lr": 1e-12}, "checkpoint": {"save_final": False}}
    phases = [sections["phases"][0] | {"router_bias_rate": 0}]
    still = tiny_data.run_config(tmp_path / "still", **(sections | unmoved | {"phases": phases}))
    train(still)
    for record in read_jsonl(still.output_dir / "evaluation.jsonl"):
        assert record["bits_per_byte"] == pytest.approx(records[0]["bits_per_byte_at_start"], rel=1e-6)
    page = write_report(config.output_dir).read_text(encoding="utf-8")
    assert "Compared with the initial weights" in page
    assert "means forgetting" in page


def test_a_run_from_the_seed_compares_with_nothing(tiny_data: TinyData, tmp_path: Path) -> None:
    observe = {"progress": False, "tensorboard": False, "evaluate_every": 1, "evaluate_tokens": 600}
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 8}]
    config = tiny_data.run_config(tmp_path / "run", observe=observe, phases=phases)
    train(config)
    record = read_jsonl(config.output_dir / "evaluation.jsonl")[-1]
    assert not {name for name in record if name.endswith(("at_start", "change"))}
    assert "Compared with the initial weights" not in write_report(config.output_dir).read_text(encoding="utf-8")


def test_the_commands_measure_verify_and_train(tiny_data: TinyData, published: Path, tmp_path: Path) -> None:
    run, fisher = tmp_path / "run.yaml", tmp_path / "fisher"
    run.write_text(dump_config(tiny_data.run_config(tmp_path / "run", init_from=str(published))))
    for command in (
        ["fisher", str(run), str(tiny_data.held_out), str(fisher), "--rows", "2"],
        ["checkpoint", "verify", str(fisher)],
        ["train", str(run), f"regularization.ewc.fisher={fisher}", "phases.0.steps=2"],
    ):
        ended = CliRunner().invoke(app, command, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
    assert [record["loss_ewc"] > 0 for record in read_jsonl(tmp_path / "run/metrics.jsonl")] == [False, True]
