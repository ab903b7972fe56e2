"""The training loop: phases in order, batches in order, one step after another; everything else is a hook.

The loop knows nothing of logging, evaluation or checkpoints. Hooks are small stateful objects that are called around
it; what they keep must survive in their `state_dict`, so a resumed run goes on as if it had never stopped. Two things
hooks can ask of the loop: to go back (`RollBack`), and to end (the votes "preempt", "interrupt" and "stop").
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glmforge.backend.base import Backend
from glmforge.backend.objective import ObjectiveFactory
from glmforge.cluster.interrupts import INTERRUPTED
from glmforge.config.layout import resolve_layout
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.loader import Loader
from glmforge.data.stream.plan import BatchRange, planned_batches
from glmforge.errors import GlmforgeError
from glmforge.model.dropout import Noise
from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metrics import Record
from glmforge.observe.run import event_record
from glmforge.optim.schedule import learning_rate_schedule
from glmforge.parallel.reducer import Reducer
from glmforge.training.order import Stage, in_order
from glmforge.training.state import Range, TrainState
from glmforge.training.step import StepResult, train_step
from glmforge.training.votes import Ballot


class DivergedError(GlmforgeError):
    """The loss or gradient stayed non-finite longer than the run allows, or the loss spiked too often."""


class Preempted(GlmforgeError):
    """The run was told to give way; it has been saved and is to be started again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Interrupted(Preempted):
    """The same, told by a person: no launcher is to start it again."""

    exit_code = INTERRUPTED


class RollBack(Exception):
    """Raised by a hook in `on_step_end`, on all ranks alike: go back, and leave out samples of a phase.

    Attributes:
        phase: name of the phase.
        first_sample, stop_sample: the samples to leave out.
        before_step: the checkpoint to go back to is of an earlier step than this.
    """

    def __init__(self, *, phase: str, first_sample: int, stop_sample: int, before_step: int) -> None:
        super().__init__(f"phase '{phase}', samples [{first_sample}, {stop_sample}), before step {before_step}")
        self.phase, self.before_step = phase, before_step
        self.first_sample, self.stop_sample = first_sample, stop_sample


class Hook:
    """Base of all hooks; each method does nothing.

    Attributes:
        name: what other hooks and messages call it.
        stage: when it is called, compared with other hooks.
        after: names of hooks, of its stage or an earlier one, that it relies on being called before it.
        state_key: under which its state is kept in checkpoints; its name unless it says otherwise.
    """

    name = "hook"
    stage = Stage.USER
    after: Sequence[str] = ()

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

    def on_rollback(self, trainer: "Trainer") -> None:
        """After the run has gone back to an earlier step; the hook's state is that of then."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last step of the last phase."""

    def close(self) -> None:
        """Release files and terminals; also called when training fails."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""


@dataclass(frozen=True)
class _NextBatch:
    """This rank's share of the next global batch, the seconds waited for it, and the clock when the wait began."""

    range: BatchRange
    batch: Batch
    waited: float
    started: float = field(repr=False)


class Trainer:
    """Owns backend, data and position; `fit` runs what is left of the phases.

    Args:
        backend: carries out the steps.
        curriculum: the data of all phases.
        make_objective: gives the objective of each phase.
        hooks: called in the order that they declare; see `glmforge.training.order`.
        bus: where what is recorded goes; without sinks if none is given.

    Attributes:
        state: where the run stands.
        phase: the phase of the step at hand, or of the last one.
        reducer: sums small vectors over all ranks along with the step's own: what a hook adds before the gradients are
            clipped is in `StepResult.metrics`.
        batch: this rank's share of the batch that is being trained on, None before the first one.
        restore: loads the newest checkpoint before a step and gives its path, None if there is none; set by who has
            checkpoints.
        remember_skipped: keeps what is left out safe, in case the run ends before its next checkpoint; set likewise.
    """

    def __init__(
        self,
        config: RunConfig,
        backend: Backend,
        curriculum: Curriculum,
        make_objective: ObjectiveFactory,
        hooks: Sequence[Hook] = (),
        bus: MetricsBus | None = None,
    ) -> None:
        self.config, self.backend, self.model, self.world = config, backend, backend.model, backend.model.world
        self.curriculum, self.make_objective, self.hooks = curriculum, make_objective, in_order(hooks)
        self.bus = bus if bus is not None else MetricsBus()
        self.layout = resolve_layout(config, self.world.size)
        self.state = TrainState()
        self.phase = config.phases[0]
        self.reducer = Reducer(self.world)
        self.batch: Batch | None = None
        self.restore: Callable[[int], Path | None] = lambda before_step: None
        self.remember_skipped: Callable[[TrainState], None] = lambda state: None
        self._learning_rate = learning_rate_schedule(config)
        self._ballot = Ballot()
        self._ends = False

    def fit(self) -> TrainState:
        """Train to the end of the last phase, or until told to end; returns the final state.

        Raises `DivergedError` if it cannot go on, `Preempted` if it was told to give way (by a person:
        `Interrupted`).
        """
        self.model.train()
        try:
            for hook in self.hooks:
                hook.on_train_start(self)
            while not (self._ends or self.state.is_done(self.config)):
                try:
                    self._run_phase(self.state.phase_index(self.config))
                except RollBack as back:
                    self._roll_back(back)
            for hook in self.hooks:
                hook.on_train_end(self)
        finally:
            for hook in self.hooks:
                hook.close()
        return self.state

    def vote(self, name: str) -> None:
        """Ask all ranks for one of `votes.VOTES`: they hear of it in the next step. Safe in a signal handler."""
        self._ballot.cast(name)

    def record(self, **metrics: object) -> None:
        """Put values, numbers or tensors, into the next record, under names of `glmforge.observe.metrics.METRICS`."""
        self.bus.record(metrics, step=self.state.step)

    def event(self, event: str, detail: str = "", *, step: int | None = None) -> None:
        """Tell what has happened to the run, after the present step if no other is named."""
        self.bus.write(Kind.EVENT, event_record(event, step=self.state.step if step is None else step, detail=detail))

    def leave_out(self, skipped: Mapping[str, Sequence[Range]], rollbacks: int) -> None:
        """Leave out these samples of each phase, besides those already left out; `rollbacks` had them found."""
        self.state.rollbacks = max(rollbacks, self.state.rollbacks)
        for phase in self.config.phases:
            for samples in skipped.get(phase.name, ()):
                self.state.skip(phase.name, samples)
            consumed = self.state.samples.get(phase.name, 0)
            left = planned_batches(phase, consumed, self.state.skipped.get(phase.name, ()))
            if consumed < phase.num_samples and next(left, None) is None:  # but samples that are left out
                self.state.samples[phase.name] = phase.num_samples
                self.state.tokens += (phase.num_samples - consumed) * phase.seq_len

    def _run_phase(self, index: int) -> None:
        phase = self.phase = self.config.phases[index]
        self.model.set_rope_theta(phase.rope_theta or self.config.model.rope_theta)
        self.model.set_capacity_factor(phase.capacity_factor)
        self.model.set_balance(phase.balance)
        objective = self.make_objective(phase)
        with closing(self._batches(index)) as batches:
            for taken in batches:
                self.batch = taken.batch
                micro_batches = taken.batch.to(self.world.device).micro_batches(self._micro_batch_size(taken.range))
                position = self._position_after(phase, taken.range)
                tokens = self.state.tokens + (position - self.state.samples.get(phase.name, 0)) * phase.seq_len
                lr = self._learning_rate(tokens)
                for hook in self.hooks:
                    hook.on_step_start(self)
                result = train_step(
                    self.backend,
                    objective,
                    micro_batches,
                    lr=lr,
                    grad_clip=self.config.optim.grad_clip,
                    router_bias_rate=phase.router_bias_rate,
                    noise=Noise.of_step(self.config.regularization, self.config.seed, self.state.step),
                    votes=self._ballot.take(),
                    reducer=self.reducer,
                    on_gradients=self._on_gradients,
                )
                result = replace(
                    result,
                    samples=taken.range,
                    tokens=taken.range.size * phase.seq_len,
                    seconds=time.perf_counter() - taken.started,
                    data_seconds=taken.waited,
                )
                self._advance(phase, position, tokens, result)
                self._end_step(result)
                if self._ends or self.state.stopped is not None:
                    return

    def _end_step(self, result: StepResult) -> None:
        for hook in self.hooks:
            hook.on_step_end(self, result)
        self._check_divergence()
        if "interrupt" in result.votes:
            raise Interrupted(
                f"{self.config.name}: interrupted after step {self.state.step:,}; saved, the same command goes on there"
            )
        if "preempt" in result.votes:
            raise Preempted(
                f"{self.config.name}: told to give way after step {self.state.step:,}; saved, start it again"
            )
        self._ends = "stop" in result.votes

    def _batches(self, index: int) -> Generator[_NextBatch, None, None]:
        """What is left of the phase."""
        phase, data = self.config.phases[index], self.config.data
        consumed, skipped = self.state.samples.get(phase.name, 0), self.state.skipped.get(phase.name, ())
        loader = Loader(
            self.curriculum.stream(index, self.state.samples),
            planned_batches(phase, consumed, skipped),
            rank=self.world.data_rank,
            world=self.layout.data_ranks,
            num_workers=data.num_workers,
            prefetch=data.prefetch,
            pin_memory=data.pin_memory and self.world.device.type == "cuda",
        )
        ranges, batches = planned_batches(phase, consumed, skipped), iter(loader)
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            yield _NextBatch(next(ranges), batch, time.perf_counter() - started, started)

    def _micro_batch_size(self, batch: BatchRange) -> int:
        return self.layout.micro_batch_size or batch.size // self.layout.data_ranks

    def _position_after(self, phase: PhaseConfig, batch: BatchRange) -> int:
        """Where the next batch begins, beyond what is left out; the phase's end after the last one."""
        stop = batch.first + batch.size
        following = next(planned_batches(phase, stop, self.state.skipped.get(phase.name, ())), None)
        return following.first if following is not None else max(stop, phase.num_samples)

    def _on_gradients(self) -> None:
        for hook in self.hooks:
            hook.on_gradients(self)

    def _advance(self, phase: PhaseConfig, position: int, tokens: int, result: StepResult) -> None:
        state = self.state
        state.step += 1
        state.tokens = tokens
        state.samples[phase.name] = position
        state.nonfinite_steps = 0 if result.finite else state.nonfinite_steps + 1
        state.total_nonfinite_steps += not result.finite

    def _roll_back(self, back: RollBack) -> None:
        left = self.state
        left.skip(back.phase, (back.first_sample, back.stop_sample))
        left.rollbacks += 1
        self.remember_skipped(left)
        if self.restore(back.before_step) is None:
            raise DivergedError(
                f"step {left.step}: the loss spiked before there was a checkpoint to go back to; lower optim.lr, or "
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
                f"row, fault_tolerance.max_nonfinite_steps = {allowed}); lower optim.lr, or look at the batch"
            )
