"""Whole runs with `backend: deepspeed` in every stage that has it, killed and taken up on this backend or the other."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.schema import RunConfig
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.distributed import RankFailure, run_ranks
from helpers.preferences import SCORE_ONLY, write_preferences
from helpers.tiny_data import TinyData

NUM_STEPS, SAVED_AFTER, KILLED_AFTER = 8, 4, 6
STAGES = ("pretrain", "midtrain", "sft", "dpo", "reward")


class Kill(Hook):
    name = "kill"

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.state.step == KILLED_AFTER:
            os._exit(9)


def on_two_ranks(config: RunConfig, *hooks: type[Hook]) -> None:
    run_ranks(run, 2, config.model_dump(mode="json"), hooks, init_group=False)


def run(config: dict[str, Any], hooks: tuple[type[Hook], ...]) -> None:
    train(RunConfig.model_validate(config), [hook() for hook in hooks])


def config_of(data: TinyData, directory: Path, zero: int | None, /, **sections: Any) -> RunConfig:
    """`zero` is the stage of ZeRO; None is the native backend."""
    engine = {
        "zero_optimization": {"stage": zero, "stage3_param_persistence_threshold": 200},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }
    given: dict[str, Any] = {
        "phases": [{"name": "main", "steps": NUM_STEPS, "seq_len": 32, "batch_size": 8}],
        "optim": {"lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 2, "matrix_optimizer": "adamw", "eps": 1e-3},
        "checkpoint": {"every_steps": SAVED_AFTER},
        "observe": {"progress": False, "tensorboard": False, "evaluate_every": 4, "samples": None},
        **({"backend": "deepspeed", "deepspeed": {"settings": engine}} if zero else {}),
    }
    return data.run_config(directory, **(given | sections))


def losses_of(config: RunConfig) -> list[float]:
    """Of the steps, a repeated one as it was the last time, and of the evaluations."""
    steps = {record["step"]: record for record in read_jsonl(config.output_dir / "metrics.jsonl")}
    name = "pair_loss" if config.stage in ("dpo", "reward") else "loss"
    found = [record[name] for _, record in sorted(steps.items())]
    evaluated = read_jsonl(config.output_dir / "evaluation.jsonl")
    held_out = [record[key] for record in evaluated for key in ("nll", "held_out_pair_loss") if key in record]
    assert len(found) == NUM_STEPS
    assert held_out
    return found + held_out[-1:]


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 2), (3, 3), (None, 3), (3, None), (2, 3)])
def test_killed_runs_go_on(first: int | None, second: int | None, tiny_data: TinyData, tmp_path: Path) -> None:
    whole, killed = (config_of(tiny_data, tmp_path / name, first) for name in ("whole", "killed"))
    on_two_ranks(whole)
    with pytest.raises(RankFailure, match="code 9"):
        on_two_ranks(killed, Kill)
    on_two_ranks(config_of(tiny_data, tmp_path / "killed", second))
    # Bit-equal on the same engine; sums over ranks are taken in another order on another one.
    tolerance = 0 if first == second else 1e-5
    assert losses_of(killed) == pytest.approx(losses_of(whole), rel=0, abs=tolerance)


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("base") / "run"
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 8}]))
    return directory


def sections_of(stage: str, data: TinyData, base: Path, folder: Path) -> dict[str, Any]:
    """What a run of the stage has besides, its data written to `folder`."""
    if stage == "pretrain":
        return {}
    sections: dict[str, Any] = {"stage": stage, "init_from": str(base)}
    if stage == "midtrain":
        return sections
    if stage == "sft":
        for name, first in (("train", 0), ("held", 100)):
            turns = [("user", "What is {n} + 1?"), ("assistant", "It is {m}.")]
            records = (
                {"messages": [{"role": role, "content": text.format(n=n, m=n + 1)} for role, text in turns]}
                for n in range(first, first + 60)
            )
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        write_preferences(folder / "held.jsonl", 10, first=100)
        write_preferences(folder / "train.jsonl", 40)
        sections["phases"] = [{"name": "main", "steps": NUM_STEPS, "seq_len": 96, "batch_size": 4}]
    if stage == "reward":
        sections["model"] = data.run_config(folder).model.model_dump() | SCORE_ONLY
    sources = {"sources": "train", "held_out": "held"}
    named = {key: [{"name": name, "path": str(folder / f"{name}.jsonl")}] for key, name in sources.items()}
    return sections | {"data": {"tokenizer": str(data.tokenizer), **named}}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_trains_as_natively(stage: str, tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    sections = sections_of(stage, tiny_data, base, tmp_path)
    native = config_of(tiny_data, tmp_path / "native", None, **sections)
    on_two_ranks(native)
    for zero in (2, 3):
        config = config_of(tiny_data, tmp_path / f"zero{zero}", zero, **sections)
        on_two_ranks(config)
        assert losses_of(config) == pytest.approx(losses_of(native), rel=0, abs=1e-4)
