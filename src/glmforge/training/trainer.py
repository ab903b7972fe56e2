"""The training loop: one batch after another, as a source gives them; everything else is a hook.

The loop knows nothing of logging, evaluation or checkpoints, and nothing of where batches come from. Hooks are small
stateful objects that are called around it; what they keep must survive in their `state_dict`, so a resumed run goes on
as if it had never stopped. Hooks can request two things from the loop: to go back (`RollBack`), and to end (the votes
"preempt", "interrupt" and "stop").
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from glmforge.backend.base import Backend
from glmforge.backend.objective import Objective
from glmforge.checkpoint.fit import RESERVED_PREFIXES
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.data.stream.plan import BatchRange
from glmforge.model.dropout import Noise
from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metric_table import Metric
from glmforge.observe.metrics import Record
from glmforge.observe.run import event_record
from glmforge.parallel.reducer import Reducer
from glmforge.training.errors import DivergedError, Interrupted, Preempted, RollBack
from glmforge.training.order import Priority, in_order
from glmforge.training.source import BatchSource, Phase, Position, Range, StepInput
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult, train_step
from glmforge.training.votes import Ballot


class Hook:
    """Base of all hooks; each method does nothing.

    Attributes:
        name: what other hooks and messages call it.
        priority: when it is called, compared with other hooks.
        after: names of hooks, of its own or an earlier priority, that must be called before it.
        state_key: under which its state is kept in checkpoints; its name unless it says otherwise.
        metric_rows: of the metrics that it records, besides those of every run.
    """

    name = "hook"
    priority = Priority.USER
    after: Sequence[str] = ()
    metric_rows: Sequence[Metric] = ()

    @property
    def state_key(self) -> str:
        return self.name

    def on_train_start(self, trainer: "Trainer") -> None:
        """Before the first step of this process, after a resume."""

    def on_step_start(self, trainer: "Trainer") -> None:
        """Before every step, when its batch is there."""

    def on_gradients(self, trainer: "Trainer") -> None:
        """In every step, when the whole gradient is there and has not been clipped."""

    def on_step_end(self, trainer: "Trainer", result: StepResult) -> None:
        """After every step, also a skipped one."""

    def on_record(self, trainer: "Trainer", result: StepResult) -> None:
        """Before the record of a logging step is written: the time to `trainer.record` what was added up since the last
        one. On all ranks; `result` is of the last step."""

    def on_evaluation(self, trainer: "Trainer", records: Sequence[Record]) -> None:
        """After an evaluation, which gave these records, one per source. On all ranks."""

    def on_benchmarks(self, trainer: "Trainer", records: Sequence[Record]) -> None:
        """After benchmarks were asked, which gave these records, one per benchmark. On all ranks."""

    def restore(self, trainer: "Trainer", before_step: int) -> bool:
        """Take the run back to before a step, from what this hook has kept; False if it keeps nothing of then.

        What the run omits is in `trainer.state` already, and must not be lost if the process ends now.
        """
        return False

    def on_rollback(self, trainer: "Trainer") -> None:
        """After the run has rolled back to an earlier step; the hook's state is that of then."""

    def on_alive(self, trainer: "Trainer", what: str) -> None:
        """Slow work says that it goes on; see `Trainer.alive`. Often, and from any thread."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last step, unless training failed. A source that could not tell its last batch has ended by now."""

    def close(self) -> None:
        """Release files and terminals; also called when training fails."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""


class NoSource(BatchSource):
    """For a loop that makes its batches itself: gives none, and stands where the trainer has counted to."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer

    @property
    def position(self) -> Position:
        return self._trainer.state.position

    def next(self) -> None:
        return None

    def leave_out(self, skipped: Mapping[str, Sequence[Range]]) -> None:
        self._trainer.state.move_to(self.position.leaving_out(skipped))

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        return ()


@dataclass(frozen=True, kw_only=True)
class ExtraModel:
    """A further model that is trained on the same batches with an objective of its own, such as a critic.

    Attributes:
        config: its run as it would be alone. The trainer reads seed, gradient clipping and regularisation.
        backend: carries out its steps, with an optimizer of its own, on as many data ranks as the main model's.
        objective: what is minimised, in all phases.
        lr_scale: times the learning rate of the step.
    """

    config: RunConfig
    backend: Backend
    objective: Objective
    lr_scale: float = 1.0


class Trainer:
    """Takes optimizer steps, with hooks around them. `fit` takes those that a source has batches for:

        state = Trainer(config, backend, source, hooks).fit()

    `step` takes one on any batch. Reinforcement learning, an evaluation that adapts, a notebook drive it themselves:

        trainer = Trainer(config, backend)
        phase = Phase("notebook", NextTokenObjective(config.phases[0], num_mtp_layers=0))
        rows = torch.randint(config.model.vocab_size, (4, 17))
        batch = Batch(rows[:, :-1], rows[:, 1:], ((16,),) * 4, sample_indices=(0, 1, 2, 3), source_B=(0,) * 4)
        for _ in range(8):
            result = trainer.step(StepInput(batch, phase, lr=3e-3))
            print(trainer.state.step, result.losses["loss"], result.grad_norm)

    With hooks such a loop stands in `with trainer.running():`, which tells them of its begin and end.

    Args:
        config: the run. The trainer itself reads its name, seed, gradient clipping and regularisation, and how many
            steps may fail; hooks read more.
        backend: carries out the steps.
        source: what `fit` trains on; may be omitted where only `step` is called.
        hooks: called in the order that they declare; see `glmforge.training.order`.
        bus: where what is recorded goes; without sinks if none is given.
        extra_models: by name, models that take a step of their own after the main one's. Checkpoints hold them;
            all else (gradients that hooks see, evaluations, loss spikes) is about the main model.

    Attributes:
        state: where the run stands.
        reducer: sums small vectors over all ranks along with the step's own: what a hook adds before the gradients are
            clipped is in `StepResult.metrics`.
        batch: this rank's share of the batch that is being trained on, None before the first one.
    """

    def __init__(
        self,
        config: RunConfig,
        backend: Backend,
        source: BatchSource | None = None,
        hooks: Sequence[Hook] = (),
        bus: MetricsBus | None = None,
        extra_models: Mapping[str, ExtraModel] | None = None,
    ) -> None:
        self.config, self.backend, self.world = config, backend, backend.world
        self.extra_models = dict(extra_models or {})
        for name, model in self.extra_models.items():
            _check_extra(name, model, self.world.layout.data_ranks)
        self.source: BatchSource = NoSource(self) if source is None else source
        self.source.alive = self.alive
        self.hooks = in_order(hooks)
        self.bus = bus if bus is not None else MetricsBus()
        for hook in self.hooks:
            self.bus.table.declare(hook.metric_rows)
        self.state = TrainState()
        self.reducer = Reducer(self.world)
        self.batch: Batch | None = None
        self._phase: Phase | None = None
        self._ballot = Ballot()
        self._ends = False

    def fit(self) -> TrainState:
        """Train to the end of the source, or until asked to stop; returns the final state.

        Raises `DivergedError` if it cannot go on, `Preempted` if it was preempted (by a person:
        `Interrupted`).
        """
        with self.running():
            while not (self._ends or self.state.is_done):
                try:
                    self._train_on_next()
                except RollBack as back:
                    self._go_back(back)
        return self.state

    @property
    def phase(self) -> Phase:
        """How the last batch was trained on, or is being; there is none before the first step."""
        assert self._phase is not None, "no step was run"
        return self._phase

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the steps of a run: hooks are notified of its start and, unless it fails, of its end."""
        for backend in self._backends:
            backend.train()
        try:
            for hook in self.hooks:
                hook.on_train_start(self)
            yield
            for hook in self.hooks:
                hook.on_train_end(self)
        finally:
            self.source.close()
            for hook in self.hooks:
                hook.close()

    def step(self, given: StepInput, *, data_seconds: float = 0.0) -> StepResult:
        """Take one optimizer step. All ranks call this together.

        Args:
            data_seconds: what the wait for the batch took; it counts as part of the step.

        Raises:
            DivergedError: too many steps in a row were not finite.
            Preempted: a rank was preempted; the hooks have saved.
            RollBack: a hook asks to go back, which `fit` does.
        """
        started, data_ranks = time.perf_counter(), self.world.layout.data_ranks
        self.batch = given.batch
        self._begin(given.phase)
        num_rows = len(given.batch.ids_BS)
        micro_batches = given.batch.to(self.world.device).micro_batches(given.phase.micro_batch_size or num_rows)
        for hook in self.hooks:
            hook.on_step_start(self)
        result = train_step(
            self.backend,
            given.phase.objective,
            micro_batches,
            **self._settings(self.config, given),
            votes=self._ballot.take(),
            reducer=self.reducer,
            on_gradients=self._on_gradients,
        )
        extra = {
            name: train_step(
                model.backend, model.objective, micro_batches, **self._settings(model.config, given, model.lr_scale)
            )
            for name, model in self.extra_models.items()
        }
        first = self.state.samples.get(given.phase.name, 0) if given.first_sample is None else given.first_sample
        result = replace(
            result,
            samples=BatchRange(first, num_rows * data_ranks),
            tokens=given.batch.num_tokens * data_ranks,
            seconds=data_seconds + time.perf_counter() - started,
            data_seconds=data_seconds,
            extra=extra,
        )
        self._advance(given, result)
        self._end_step(result)
        return result

    def vote(self, name: str) -> None:
        """Ask all ranks for one of `votes.VOTES`: they hear of it in the next step. Safe in a signal handler."""
        self._ballot.cast(name)

    def alive(self, what: str) -> None:
        """Say that this rank is at work on something slow, in a few words: "evaluation, batch 30 of 500".

        Neither this rank nor those that wait for it are then ended as hanging. Work between two steps that may take
        minutes says so at every piece that it gets done, at least twice in `fault_tolerance.hang_timeout_s`; at more is
        no harm. Never from a timer: what hangs must not say that it works.
        """
        for hook in self.hooks:
            hook.on_alive(self, what)

    def record(self, **metrics: object) -> None:
        """Put values, numbers or tensors, into the next record, under names that are in the run's table of metrics."""
        self.bus.record(metrics, step=self.state.step)

    def event(self, event: str, detail: str = "", *, step: int | None = None, **facts: object) -> None:
        """Tell what has happened to the run, after the present step if no other is named; `facts` are for programs."""
        step = self.state.step if step is None else step
        self.bus.write(Kind.EVENT, event_record(event, step=step, detail=detail) | facts)

    def leave_out(self, skipped: Mapping[str, Sequence[Range]], rollbacks: int) -> None:
        """Leave out these samples of each phase, besides those already omitted; `rollbacks` had them found."""
        self.state.rollbacks = max(rollbacks, self.state.rollbacks)
        self.source.leave_out(skipped)
        self.state.move_to(self.source.position)

    def _train_on_next(self) -> None:
        started = time.perf_counter()
        given = self.source.next()
        if given is None:
            self.state.finished = True
        else:
            self.step(given, data_seconds=time.perf_counter() - started)

    @property
    def _backends(self) -> list[Backend]:
        return [self.backend, *(model.backend for model in self.extra_models.values())]

    def _begin(self, phase: Phase) -> None:
        """Set the models to what the phase asks for, unless they are already."""
        if phase is self._phase:
            return
        self._phase = phase
        self.bus.table.declare(phase.objective.metric_rows)
        for backend in self._backends:
            backend.begin_phase(
                rope_theta=phase.rope_theta, capacity_factor=phase.capacity_factor, balance=phase.balance
            )

    def _settings(self, config: RunConfig, given: StepInput, lr_scale: float = 1.0) -> dict[str, Any]:
        """What `train_step` is given for the model of `config`."""
        return {
            "lr": given.lr * lr_scale,
            "grad_clip": config.optim.grad_clip,
            "router_bias_rate": given.phase.router_bias_rate,
            "noise": Noise.of_step(config.regularization, config.seed, self.state.step, config.adapter_dropout),
        }

    def _end_step(self, result: StepResult) -> None:
        for hook in self.hooks:
            hook.on_step_end(self, result)
        self._check_divergence()
        if "interrupt" in result.votes:
            raise Interrupted(
                f"{self.config.name}: interrupted after step {self.state.step:,}; saved, run it again to resume"
            )
        if "preempt" in result.votes:
            raise Preempted(
                f"{self.config.name}: preempted after step {self.state.step:,}; saved, run it again to resume"
            )
        self._ends = "stop" in result.votes

    def _on_gradients(self) -> None:
        for hook in self.hooks:
            hook.on_gradients(self)

    def _advance(self, given: StepInput, result: StepResult) -> None:
        state = self.state
        state.step += 1
        state.move_to(given.position or state.position.after(given.phase.name, result.samples.stop, result.tokens))
        state.finished = given.is_last
        finite = all(each.finite for each in (result, *result.extra.values()))
        state.nonfinite_steps = 0 if finite else state.nonfinite_steps + 1
        state.total_nonfinite_steps += not finite

    def _go_back(self, back: RollBack) -> None:
        self.leave_out({back.phase: [(back.first_sample, back.stop_sample)]}, self.state.rollbacks + 1)
        left = self.state
        if not any(hook.restore(self, back.before_step) for hook in self.hooks):
            raise DivergedError(
                f"step {left.step}: the loss spiked before the first checkpoint to roll back to; lower optim.lr, or "
                "save more often (checkpoint.ephemeral_every_steps)"
            )
        self.leave_out(left.skipped, left.rollbacks)
        for hook in self.hooks:
            hook.on_rollback(self)

    def _check_divergence(self) -> None:
        allowed = self.config.fault_tolerance.max_nonfinite_steps
        if self.state.nonfinite_steps > allowed:
            raise DivergedError(
                f"step {self.state.step}: loss or gradient is not finite (skipped {self.state.nonfinite_steps} in a "
                f"row, fault_tolerance.max_nonfinite_steps = {allowed}); lower optim.lr, or check the batch"
            )


def _check_extra(name: str, model: ExtraModel, data_ranks: int) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in RESERVED_PREFIXES:
        raise ValueError(f"extra_models: '{name}' is not a valid model name; use lower-case letters, such as critic")
    if model.backend.world.layout.data_ranks != data_ranks:
        raise ValueError(
            f"extra_models: '{name}' is on {model.backend.world.layout.data_ranks} data ranks, but the main model on "
            f"{data_ranks}; both train on the same batches, so use the same parallel settings"
        )
