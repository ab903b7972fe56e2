"""Keep what can explain an unusual step: its samples, and where their text came from.

Records only; going back is `SpikeHook`'s. Loss and gradient norm are compared with those of the same phase, as another
mixture or sequence length has another loss.
"""

import logging
import math
from typing import Any

from glmforge.config.observe import AnomalyConfig
from glmforge.observe.bus import Kind
from glmforge.training.detect import RobustWindow
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_DESCRIBED_SAMPLES = 8


class AnomalyHook(Hook):
    """Reports each step whose loss or gradient norm is unusually high, or no number (`anomalies.jsonl`).

    The lines of steps that are trained again after a resume or a rollback stay.
    """

    name = "anomalies"
    priority = Priority.WRITE

    def __init__(self, config: AnomalyConfig) -> None:
        self._windows = {name: RobustWindow(config.window, config.threshold) for name in ("loss", "grad_norm")}
        self._phase: str | None = None

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.phase.name != self._phase:
            self._phase = trainer.phase.name
            for window in self._windows.values():
                window.clear()
        values = {"loss": result.main_loss, "grad_norm": result.grad_norm}
        found = [name for name, value in values.items() if self._is_anomaly(name, value)]
        if not found and not result.finite:
            found = ["another loss term"]
        if found and trainer.world.is_main:
            self._report(trainer, result, found, values)
        for name, value in values.items():
            self._windows[name].add(value)

    def state_dict(self) -> dict[str, Any]:
        return {"phase": self._phase} | {name: window.state_dict() for name, window in self._windows.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._phase = state.get("phase")
        for name, window in self._windows.items():
            window.load_state_dict(state.get(name, {}))

    def _is_anomaly(self, name: str, value: float) -> bool:
        return not math.isfinite(value) or self._windows[name].is_outlier(value)

    def _report(self, trainer: Trainer, result: StepResult, found: list[str], values: dict[str, float]) -> None:
        step, batch = trainer.state.step, result.samples
        described = range(batch.first, batch.first + min(batch.size, _DESCRIBED_SAMPLES))
        record: dict[str, Any] = {"step": step, "phase": trainer.phase.name, "anomaly": ", ".join(found)}
        for name, value in values.items():
            record[name] = value
            record[f"{name}_median"] = self._windows[name].median
            record[f"{name}_score"] = self._windows[name].score(value)
        record["first_sample"], record["stop_sample"] = batch.first, batch.first + batch.size
        if "source_tokens" in result.metrics:  # the objective counts by source
            names, tokens_S = [source.name for source in trainer.config.data.sources], result.metrics["source_tokens"]
            record["source_tokens"] = {n: int(t) for n, t in zip(names, tokens_S.tolist(), strict=True) if t}
        record["samples"] = [trainer.source.describe(trainer.phase.name, sample) for sample in described]
        trainer.bus.write(Kind.ANOMALY, record)
        detail = _in_words(record, found)
        logger.warning("anomaly in step %d: %s", step, detail)
        trainer.event("anomaly", detail)


def _in_words(record: dict[str, Any], found: list[str]) -> str:
    """'loss 9.1 (median 2.3), samples [64, 80) of phase 'main''"""
    known = [name for name in found if name in record]
    values = [f"{name} {record[name]:.4g} (median {record[f'{name}_median']:.4g})" for name in known]
    what = ", ".join(values) or f"{', '.join(found)} not finite"
    return f"{what}, samples [{record['first_sample']}, {record['stop_sample']}) of phase '{record['phase']}'"
