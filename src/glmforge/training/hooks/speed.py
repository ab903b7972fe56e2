"""How fast the run is, and how much memory it takes.

Speed is averaged over the steps since the last record, and nothing waits for the device in between. Model FLOPs are
added up step by step, as the documents of each batch have their own lengths; they are those of what the run trains and
runs, in all its models, without gradients of frozen weights and MTP layers whose loss has no weight. What fills up a
row of packed documents is computed like a document, and counts as one. Utilisation compares them with the peak of this
rank's device, taking all ranks' for equal, and is omitted where that peak is not known.
"""

import torch
from torch import Tensor

from glmforge.observe.environment import process_rss_bytes
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.machine.hardware import find_accelerator
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class SpeedHook(Hook):
    """Records time, tokens and FLOPs of the steps since the last record."""

    name = "speed"
    priority = Priority.COLLECT

    def __init__(self) -> None:
        self._peak_flops: float | None = None
        self._flops_per_token: dict[tuple[str, bool], tuple[float, float]] = {}
        self._flops: Tensor | float = 0.0
        self._begin()

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.config.precision.compute == "bf16":
            self._peak_flops = _peak_flops(trainer.world.device)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._steps += 1
        self._seconds += result.seconds
        self._data_seconds += result.data_seconds
        self._tokens += result.tokens
        self._flops = self._flops + self._model_flops(trainer, result)

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        flops_per_second = self._flops / self._seconds / trainer.world.size
        trainer.record(
            tokens_per_second=self._tokens / self._seconds,
            step_seconds=self._seconds / self._steps,
            data_seconds=self._data_seconds / self._steps,
            model_tflops_per_second=flops_per_second / 1e12,
            mfu=flops_per_second / self._peak_flops if self._peak_flops else None,
            rss_bytes=process_rss_bytes(),
            device_memory_bytes=_device_memory(trainer.world.device),
        )
        self._begin()

    def on_rollback(self, trainer: Trainer) -> None:
        self._begin()

    def _model_flops(self, trainer: Trainer, result: StepResult) -> Tensor | float:
        """Of a step, over all ranks; not read from the device here."""
        extra = [(name, model.config, model.objective) for name, model in trainer.extra_models.items()]
        total: Tensor | float = 0.0
        for name, config, objective in (("", trainer.config, trainer.phase.objective), *extra):
            key = name, objective.num_mtp > 0
            if key not in self._flops_per_token:
                fixed, first = (
                    train_flops_per_token(config.model, length, key[1], optim=config.optim) for length in (0, 1)
                )
                self._flops_per_token[key] = fixed, first - fixed
            fixed, per_length = self._flops_per_token[key]
            total = total + (fixed + per_length * result.mean_attended_length) * result.tokens
        return total

    def _begin(self) -> None:
        self._steps = 0
        self._seconds = self._data_seconds = self._tokens = 0.0
        self._flops = 0.0


def _peak_flops(device: torch.device) -> float | None:
    """Dense bf16 peak of a device in FLOP/s; None if it is not known."""
    if device.type != "cuda":
        return None
    accelerator = find_accelerator(torch.cuda.get_device_name(device))
    return accelerator.bf16_flops if accelerator else None


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
