"""What hooks are called with, made up: a trainer that only keeps its place, and the result of a step."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.plan import BatchRange
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory, event_record
from glmforge.observe.run_sinks import RunFiles
from glmforge.parallel.world import World
from glmforge.training.source import Phase
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, NoSource
from helpers.layouts import uneven_config


def fake_config(**sections: object) -> RunConfig:
    """A run of a small model whose data need not exist."""
    base = {
        "name": "test",
        "model": uneven_config().model_dump(),
        "data": {"tokenizer": "tokenizer", "sources": [{"name": "text", "path": "text"}]},
        "phases": [{"name": "main", "steps": 4, "seq_len": 16, "batch_size": 8}],
        "precision": {"compute": "fp32"},
    }
    return RunConfig.model_validate(base | sections)


class FakeTrainer(SimpleNamespace):
    """As much of a `Trainer` as hooks look at. `step` trains one: all hooks see its result.

    With `root` rank 0 writes to that run directory.
    """

    def __init__(
        self, *hooks: Hook, config: RunConfig | None = None, world: World | None = None, root: Path | None = None
    ) -> None:
        world = world or World.single("cpu")
        super().__init__(config=config or fake_config(), world=world, state=TrainState(), votes=set(), extra_models={})
        self.phase = phase_of(self.config, 0)
        self.hooks = hooks
        self.bus = MetricsBus(
            rows=[*self.phase.objective.metric_rows, *(row for hook in hooks for row in hook.metric_rows)]
        )
        if root is not None and world.is_main:
            self.bus.sinks.append(RunFiles(RunDirectory(root)))
        self.source = NoSource(self)  # type: ignore[arg-type]

    def record(self, **metrics: object) -> None:
        self.bus.record(metrics, step=self.state.step)

    def recorded(self) -> dict[str, object]:
        """What has been recorded after the present step."""
        return self.bus.table.record(self.bus.recorded_after(self.state.step))

    def event(self, event: str, detail: str = "", *, step: int | None = None, **facts: object) -> None:
        step = self.state.step if step is None else step
        self.bus.write(Kind.EVENT, event_record(event, step=step, detail=detail) | facts)

    def vote(self, name: str) -> None:
        self.votes.add(name)

    def alive(self, what: str) -> None:
        for hook in self.hooks:
            hook.on_alive(self, what)  # type: ignore[arg-type]

    def compute(self) -> None:
        """What the step does."""

    def agreed_votes(self) -> frozenset[str]:
        return frozenset(self.votes)

    def start(self) -> None:
        for hook in self.hooks:
            hook.on_train_start(self)  # type: ignore[arg-type]

    def close(self) -> None:
        for hook in self.hooks:
            hook.close()

    def step(self, **changes: Any) -> None:
        """A step whose result is `step_result(**changes)`; all ranks hear of what was asked for."""
        for hook in self.hooks:
            hook.on_step_start(self)  # type: ignore[arg-type]
        started = time.perf_counter()
        self.compute()
        seconds = time.perf_counter() - started
        votes, self.votes = self.agreed_votes(), set()
        index = changes.pop("phase", 0)
        phase, self.phase = self.config.phases[index], phase_of(self.config, index)
        first = self.state.samples.get(phase.name, 0)
        self.state.step += 1
        self.state.samples[phase.name] = first + phase.batch_size
        result = step_result(phase, first=first, **{"votes": votes, "seconds": seconds} | changes)
        for hook in self.hooks:
            hook.on_step_end(self, result)  # type: ignore[arg-type]


def phase_of(config: RunConfig, index: int) -> Phase:
    """A phase of the configuration as the curriculum gives it to the trainer."""
    phase = config.phases[index]
    return Phase(
        name=phase.name,
        objective=NextTokenObjective(phase, config.model.num_nextn_predict_layers),
        rope_theta=phase.rope_theta,
        capacity_factor=phase.capacity_factor,
        router_bias_rate=phase.router_bias_rate,
    )


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
