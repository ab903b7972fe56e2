"""Runs that train adapters of a small model over two linked hosts (helpers.linked_hosts)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.checkpoint.convert import export_hf
from glmforge.config.model import ModelConfig
from glmforge.config.schema import RunConfig
from glmforge.model import GlmMoe
from glmforge.recipes.train import train
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook
from helpers.linked_hosts import LinkBytes, read_link_bytes
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import VOCAB_SIZE, TinyData

# Large enough for weights and adapters to outweigh all else that goes over the link, and small enough for a slow one.
MODEL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_nextn_predict_layers": 0,
}
ONE_COPY_PER_HOST = {"dp_replicate": 2, "dp_shard": 2}
ONE_COPY = {"dp_shard": 4}
"""FSDP over both hosts."""


def linked_model() -> ModelConfig:
    return tiny_config(**MODEL)


def write_base(directory: Path, data: TinyData) -> Path:
    """A Hugging Face directory in bf16, as a base model comes."""
    config = linked_model()
    model = GlmMoe(config)
    randomize_(model)
    export_hf(model.state_dict(), config, directory, tokenizer_dir=data.tokenizer)
    return directory


def linked_run(data: TinyData, directory: Path, base: Path, **sections: Any) -> RunConfig:
    """A run of four ranks that trains adapters of attention, rank 16, in bf16."""
    settings: dict[str, Any] = {
        "model": linked_model().model_dump(),
        "init_from": str(base),
        "lora": {"rank": 16},
        "phases": [{"name": "main", "steps": 6, "seq_len": 32, "batch_size": 8}],
        "optim": {"lr": 1e-3, "warmup_steps": 0},
        "precision": {"compute": "bf16"},
        "parallel": ONE_COPY_PER_HOST,
    }
    return data.run_config(directory, **(settings | sections))


@dataclass
class Counts:
    """Readings of a rank's link: after each step, before and after each evaluation."""

    steps: list[LinkBytes] = field(default_factory=list)
    evaluations: list[tuple[LinkBytes, LinkBytes]] = field(default_factory=list)

    @property
    def per_step(self) -> tuple[float, float]:
        """Bytes sent and received, on average of the steps after the first."""
        first, last, number = self.steps[0], self.steps[-1], len(self.steps) - 1
        return (last.sent - first.sent) / number, (last.received - first.received) / number


def count_link_bytes(config: RunConfig) -> Counts:
    """Of a run, as this rank sees them."""
    hook = _CountHook()
    train(config, [hook])
    return hook.counts


class _CountHook(Hook):
    name = "count"
    priority = Priority.JUDGE  # right before evaluations

    def __init__(self) -> None:
        self.counts = Counts()
        self._last = LinkBytes(0, 0)

    def on_step_end(self, trainer: Any, result: Any) -> None:
        self._last = read_link_bytes()
        self.counts.steps.append(self._last)

    def on_evaluation(self, trainer: Any, records: Sequence[Any]) -> None:
        self.counts.evaluations.append((self._last, read_link_bytes()))


class Save(NamedTuple):
    """A save, with the bytes that this rank's host sent and received during it."""

    step: int
    sent: LinkBytes


def count_saves(config: RunConfig, meetings: Path) -> list[Save]:
    """Of a run that does not save in the background, as this rank sees them.

    The ranks meet before and after each save by files in `meetings`, so that nothing of the steps around it counts.
    """
    before, after = _BeforeSave(meetings), _AfterSave(meetings)
    train(config, [before, after])
    return [
        Save(step, LinkBytes(end.sent - began.sent, end.received - began.received))
        for step, began, end in zip(before.steps, before.readings, after.readings, strict=True)
    ]


class _Meeting(Hook):
    """Reads the link when all ranks have come here, in each step that saves."""

    def __init__(self, meetings: Path) -> None:
        self.meetings, self.steps, self.readings = meetings, list[int](), list[LinkBytes]()

    def on_step_end(self, trainer: Any, result: Any) -> None:
        step = trainer.state.step
        if step % trainer.config.checkpoint.every_steps:
            return
        self._meet(f"{step} {self.name}", trainer)
        self.steps.append(step)
        self.readings.append(read_link_bytes())
        self._meet(f"{step} {self.name}, read", trainer)  # before that nobody goes on

    def _meet(self, what: str, trainer: Any) -> None:
        (self.meetings / f"{what} {trainer.world.rank}").touch()
        while len(list(self.meetings.glob(f"{what} *"))) < trainer.world.size:
            time.sleep(0.002)  # looks at files that other processes write; the outcome does not depend on it


class _BeforeSave(_Meeting):
    name = "before save"


class _AfterSave(_Meeting):
    name = "after save"
    priority = Priority.SAVE
    after = ("checkpoints",)
