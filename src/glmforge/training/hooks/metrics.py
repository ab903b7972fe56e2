"""Write a record every `observe.log_every` steps and after the last.

Other hooks put what they measured on the bus whenever they know it, or, if they add it up, when they are asked
(`on_record`). What every record has is recorded here: where the run stands, and what its last step was.
"""

from statistics import fmean

from glmforge.observe.bus import Kind
from glmforge.training.order import Priority
from glmforge.training.records import has_record
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class MetricsHook(Hook):
    """Opens the sinks of the trainer's bus, and has it write."""

    name = "metrics"
    priority = Priority.WRITE

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._unwritten: StepResult | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        trainer.bus.open(trainer.state.step, trainer.state.tokens)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._unwritten = result
        if result.finite:
            trainer.record(**trainer.phase.objective.metric_values(result.metrics))
        if has_record(trainer):
            self._write(trainer, result)

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        state, phase, extra = trainer.state, trainer.phase, result.extra
        trainer.record(
            step=state.step,
            phase=phase.name,
            tokens=state.tokens,
            samples=sum(state.samples.values()),
            world_size=trainer.world.size,
            batch_size=result.samples.size,
            seq_len=result.tokens // result.samples.size,
            rope_theta=phase.rope_theta or trainer.config.model.rope_theta,
            skipped_samples=_num_skipped(state),
            rollbacks=state.rollbacks,
            nonfinite_steps_total=state.total_nonfinite_steps,
            **_losses(result),
            lr=result.lr,
            grad_norm=result.grad_norm,
            router_bias_rate=phase.router_bias_rate,
            extra_losses={name: dict(each.losses) for name, each in extra.items()} or None,
            extra_grad_norms={name: each.grad_norm for name, each in extra.items()} or None,
        )

    def on_train_end(self, trainer: Trainer) -> None:
        """The last step of a run that was stopped may have no record yet."""
        if self._unwritten is not None:
            self._write(trainer, self._unwritten)
        if trainer.state.stopped is not None:
            message = f"stopped after step {trainer.state.step:,}: {trainer.state.stopped}"
            trainer.bus.write(Kind.NOTE, {"message": message})

    def on_rollback(self, trainer: Trainer) -> None:
        """Records of steps that the run has rolled back behind are dropped."""
        self._unwritten = None
        self.on_train_start(trainer)

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.bus.close()

    def _write(self, trainer: Trainer, result: StepResult) -> None:
        for hook in trainer.hooks:
            hook.on_record(trainer, result)
        trainer.bus.flush()
        self._unwritten = None


def _num_skipped(state: TrainState) -> int:
    return sum(stop - start for ranges in state.skipped.values() for start, stop in ranges)


def _losses(result: StepResult) -> dict[str, object]:
    """The loss terms as metrics: MTP is the mean over depths, balance the mean over layers; others keep their names."""
    mtp = [value for term, value in result.losses.items() if term.startswith("mtp_")]
    losses: dict[str, object] = {term: value for term, value in result.losses.items() if not term.startswith("mtp_")}
    if mtp:
        losses["loss_mtp"] = fmean(mtp)
    if "aux" in result.losses:
        losses["loss_aux"] = result.losses["aux"] / max(1, len(result.counts_LE))
        del losses["aux"]
    return losses
