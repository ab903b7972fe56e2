"""Stop the run when evaluations, of held-out text or of a benchmark, no longer improve."""

import math
from collections.abc import Sequence
from typing import Any

from glmforge.config.observe import HELD_OUT_METRICS, EarlyStoppingConfig
from glmforge.observe.metrics import Record
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer


class EarlyStoppingHook(Hook):
    """Counts evaluations in a row that were no improvement on the best one; see `EarlyStoppingConfig`."""

    name = "early stopping"
    priority = Priority.EVALUATE

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.is_of_text = config.metric in HELD_OUT_METRICS
        self.best = math.inf
        self.num_worse = 0

    @property
    def state_key(self) -> str:
        return "evaluation"

    def on_evaluation(self, trainer: Trainer, records: Sequence[Record]) -> None:
        if self.is_of_text:
            self._judge(trainer, records)

    def on_benchmarks(self, trainer: Trainer, records: Sequence[Record]) -> None:
        if not self.is_of_text:
            self._judge(trainer, records)

    def _judge(self, trainer: Trainer, records: Sequence[Record]) -> None:
        reason = self.update(records)
        if not trainer.state.is_done:  # a run at its end is not stopped early, and may be prolonged
            trainer.state.stopped = reason
        if trainer.state.stopped is not None:
            trainer.event("stopped early", trainer.state.stopped)

    def update(self, records: Sequence[Record]) -> str | None:
        """Take the records of one evaluation, one per source or benchmark; gives the reason if the run is to stop."""
        value = self._value(records)
        if value < self.best and self.best - value >= self.config.min_delta:
            self.best, self.num_worse = value, 0
        else:
            self.num_worse += 1
        if self.num_worse < self.config.patience:
            return None
        best, of = (self.best, " over all held-out sources") if self.is_of_text else (-self.best, "")
        of = of if self.config.source is None else f" of '{self.config.source}'"
        return (
            f"{self.config.metric}{of} has not improved on {best:.4g} in {self.num_worse} evaluations "
            "(observe.early_stopping)"
        )

    def state_dict(self) -> dict[str, Any]:
        best = self.best if math.isfinite(self.best) else None
        return {"metric": self.config.metric, "best": best, "num_worse": self.num_worse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """An empty state, or one of another metric, changes nothing."""
        if not state or state.get("metric", self.config.metric) != self.config.metric:
            return
        self.best = math.inf if state["best"] is None else state["best"]
        self.num_worse = state["num_worse"]

    def _value(self, records: Sequence[Record]) -> float:
        """The lower, the better: the metric of the configured source, or the mean over all; of a benchmark the negative
        score. NaN, which is never an improvement, if one of them is NaN or there is no score."""
        if not self.is_of_text:
            (record,) = (record for record in records if record["benchmark"] == self.config.metric)
            return -float(record.get("benchmark_score", math.nan))
        wanted = [record for record in records if self.config.source in (None, record["source"])]
        assert wanted, f"no evaluation of {self.config.source!r}"
        return sum(float(record[self.config.metric]) for record in wanted) / len(wanted)
