"""Diagnostics of a misbehaving run: where a NaN was made, each layer's gradient norm, debug messages."""

import logging

import torch

from glmforge.config.observe import DebugConfig
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer


class DebugHook(Hook):
    """Switches on what `observe.debug` asks for, and off again at the end."""

    name = "debug"
    priority = Priority.COLLECT

    def __init__(self, config: DebugConfig) -> None:
        self.config = config
        self._before: tuple[bool, bool, int] | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        log = logging.getLogger("glmforge")
        self._before = (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), log.level)
        log.setLevel(self.config.log_level.upper())
        if self.config.detect_anomaly:
            torch.autograd.set_detect_anomaly(True)

    def on_gradients(self, trainer: Trainer) -> None:
        due = (trainer.state.step + 1) % trainer.config.observe.log_every == 0
        if self.config.layer_grad_norms and due:
            trainer.record(layer_grad_norms=trainer.backend.grad_norms())

    def close(self) -> None:
        if self._before is not None:
            enabled, check_nan, level = self._before
            torch.autograd.set_detect_anomaly(enabled, check_nan)
            logging.getLogger("glmforge").setLevel(level)
            self._before = None
