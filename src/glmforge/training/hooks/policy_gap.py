"""Stop a run whose engine and trainer have drifted apart: it would learn from answers that another policy gave."""

from glmforge.errors import GlmforgeError
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class PolicyGapHook(Hook):
    """Ends the run where the mean absolute difference of log-probabilities is more than `max_gap` nats."""

    name = "policy gap"
    priority = Priority.COLLECT

    def __init__(self, max_gap: float) -> None:
        self.max_gap = max_gap

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        gap = float(result.metrics["gap_sum"]) / max(1.0, float(result.metrics["policy_tokens"]))
        if gap > self.max_gap:
            raise GlmforgeError(
                f"rl.max_gap: engine and trainer differ by {gap:.3g} nats per token, more than {self.max_gap:g}; lower "
                "optim.lr or steps_per_rollout, set rl.surrogate.correction, or raise it"
            )
