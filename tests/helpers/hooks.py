"""What hooks are called with, made up: a trainer that only keeps its place, and the result of a step."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.plan import BatchRange
from glmforge.observe.sinks import read_jsonl
from glmforge.parallel.world import World
from glmforge.training.source import NoSource
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook
from helpers.layouts import uneven_config


def fake_config(**sections: object) -> RunConfig:
    """A run of a small model whose data need not exist. (`helpers.models` has one too, but imports transformers, which
    takes each rank of a test seconds.)"""
    base = {
        "name": "test",
        "model": uneven_config().model_dump(),
        "data": {"tokenizer": "tokenizer", "sources": [{"name": "text", "path": "text"}]},
        "phases": [{"name": "main", "steps": 4, "seq_len": 16, "batch_size": 8}],
        "precision": {"compute": "fp32"},
    }
    return RunConfig.model_validate(base | sections)


class FakeTrainer(SimpleNamespace):
    """As much of a `Trainer` as hooks look at. `step` trains one: all hooks see its result."""

    def __init__(self, *hooks: Hook, config: RunConfig | None = None, world: World | None = None) -> None:
        super().__init__(
            config=config or fake_config(), world=world or World.single("cpu"), state=TrainState(), votes=set()
        )
        self.phase = self.config.phases[0]
        self.hooks = hooks
        self.source = NoSource()

    def vote(self, name: str) -> None:
        self.votes.add(name)

    def compute(self) -> None:
        """What the step does."""

    def agreed_votes(self) -> frozenset[str]:
        return frozenset(self.votes)

    def start(self) -> None:
        for hook in self.hooks:
            hook.on_train_start(self)  # type: ignore[arg-type]

    def step(self, **changes: Any) -> None:
        """A step whose result is `step_result(**changes)`; all ranks hear of what was asked for."""
        for hook in self.hooks:
            hook.on_step_start(self)  # type: ignore[arg-type]
        started = time.perf_counter()
        self.compute()
        seconds = time.perf_counter() - started
        votes, self.votes = self.agreed_votes(), set()
        phase = self.phase = self.config.phases[changes.pop("phase", 0)]
        first = self.state.samples.get(phase.name, 0)
        self.state.step += 1
        self.state.samples[phase.name] = first + phase.batch_size
        result = step_result(phase, first=first, **{"votes": votes, "seconds": seconds} | changes)
        for hook in self.hooks:
            hook.on_step_end(self, result)  # type: ignore[arg-type]


def step_result(
    phase: PhaseConfig,
    *,
    first: int = 0,
    loss: float = 2.0,
    grad_norm: float = 1.0,
    finite: bool = True,
    votes: frozenset[str] = frozenset(),
    seconds: float = 1.0,
    source_tokens: tuple[float, ...] = (100.0,),
) -> StepResult:
    none = torch.zeros(0, 8, dtype=torch.int64)
    sums = torch.tensor(source_tokens, dtype=torch.float64)
    return StepResult(
        losses={"loss": loss},
        grad_norm=grad_norm,
        counts_LE=none,
        dropped_LE=none,
        mean_attended_length=torch.tensor(16.0, dtype=torch.float64),
        metrics={"source_tokens": sums, "source_nll": sums},
        finite=finite,
        votes=votes,
        lr=1e-3,
        samples=BatchRange(first, phase.batch_size),
        tokens=phase.tokens_per_step,
        seconds=seconds,
    )


def events(root: Path) -> list[tuple[str, int, str]]:
    """(event, step, detail) of the run's events so far."""
    path = root / "events.jsonl"
    return [(e["event"], e["step"], e["detail"]) for e in read_jsonl(path)] if path.exists() else []
