"""Supervised fine-tuning as a user starts it: a file of conversations, a run to start from, `stage: sft`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.pretrained import open_checkpoint
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from helpers.stopping import StopAfter
from helpers.tiny_data import TinyData


def write_chat(path: Path, numbers: range) -> Path:
    """Sums, some with a weight of their own."""
    records = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} + {n % 7}?"},
                {"role": "assistant", "content": f"It is {n + n % 7}.", **({"loss_weight": 0.5} if n % 3 else {})},
            ]
        }
        for n in numbers
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "run"
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 8}]))
    return directory


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    write_chat(tmp_path / "held.jsonl", range(100, 110))
    return write_chat(tmp_path / "chat.jsonl", range(60))


def config_of(tiny_data: TinyData, base: Path, chat: Path, output_dir: Path, **sections: Any) -> RunConfig:
    data = {
        "tokenizer": str(tiny_data.tokenizer),
        "sources": [{"name": "chat", "path": str(chat)}],
        "held_out": [{"name": "held", "path": str(chat.with_name("held.jsonl"))}],
    }
    phases = [{"name": "sft", "epochs": 3, "seq_len": 64, "batch_size": 4}]
    observe = {"progress": False, "tensorboard": False, "evaluate_every": 4, "evaluate_tokens": 4096}
    given = {
        "stage": "sft",
        "init_from": str(base),
        "data": data,
        "phases": phases,
        "observe": observe,
        "regularization": {"neftune_alpha": 5.0},
    }
    return tiny_data.run_config(output_dir, **(given | sections))


def test_held_out_answers_are_learnt_and_a_resumed_run_equals_one_that_never_stopped(
    tiny_data: TinyData, base: Path, chat: Path, tmp_path: Path
) -> None:
    whole = config_of(tiny_data, base, chat, tmp_path / "whole")
    state = train(whole)
    records = read_jsonl(whole.output_dir / "evaluation.jsonl")
    assert records[-1]["bits_per_byte_change"] < -0.5
    assert 0 < records[0]["accuracy"] < records[-1]["accuracy"]
    steps = read_jsonl(whole.output_dir / "metrics.jsonl")
    assert len(steps) == state.step
    assert all(0 < record["trained_tokens"] < record["batch_size"] * record["seq_len"] / 2 for record in steps)

    stopped = config_of(tiny_data, base, chat, tmp_path / "stopped")
    train(stopped, [StopAfter(3)])
    train(stopped)
    one, other = (open_checkpoint(config.output_dir).weights for config in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_stage_is_a_run_of_its_own(tiny_data: TinyData, base: Path, chat: Path, tmp_path: Path) -> None:
    config = config_of(tiny_data, base, chat, tmp_path / "run", regularization={})
    train(config, [StopAfter(2)])
    phases = [{"name": "sft", "epochs": 3, "seq_len": 64, "batch_size": 4, "packing": "best_fit"}]
    other = config_of(tiny_data, base, chat, tmp_path / "run", stage="midtrain", phases=phases, regularization={})
    with pytest.raises(CheckpointError, match="stage was sft and is midtrain"):
        train(other)


def test_a_run_goes_on_only_with_the_conversations_that_it_began_with(
    tiny_data: TinyData, base: Path, chat: Path, tmp_path: Path
) -> None:
    config = config_of(tiny_data, base, chat, tmp_path / "run")
    train(config, [StopAfter(2)])
    write_chat(chat, range(30))
    with pytest.raises(CheckpointError) as refused:
        train(config)
    assert "chat" in str(refused.value)
