"""Turn steps into records for the sinks and the progress bar, on rank 0.

Between two logging steps nothing waits for the device; speed is averaged over the steps since the last record. Model
FLOPs are added up step by step, as the documents of each batch have their own lengths. Utilisation compares them with
the peak of this rank's device, taking all ranks' for equal, and is left out where that peak is not known.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from glmforge.observe.environment import process_rss_bytes
from glmforge.observe.metrics import Record, balance_metrics, expert_load, make_record
from glmforge.observe.progress import TrainingProgress
from glmforge.observe.run import RunDirectory
from glmforge.observe.sinks import JsonlSink, Sink, TensorBoardSink
from glmforge.plan.flops import train_flops_per_token
from glmforge.plan.hardware import find_accelerator
from glmforge.train.hooks.communication import CommunicationHook
from glmforge.train.step import StepResult
from glmforge.train.trainer import Hook, StepOutcome, Trainer

_EXPERT_LOAD_RECORDS = 20
"""How many records of a run carry the whole table of expert loads: enough for a picture, small on disk."""


class MetricsHook(Hook):
    """Writes a record every `observe.log_every` steps and after the last.

    Args:
        output_dir: the run directory.
        communication: the hook, called before this one, whose measurements go into the records.
    """

    name = "metrics"

    def __init__(self, output_dir: Path, communication: CommunicationHook | None = None) -> None:
        self.directory = RunDirectory(output_dir)
        self._communication = communication
        self._sinks: Sequence[Sink] = ()
        self._progress: TrainingProgress | None = None
        self._steps = 0
        self._seconds = self._data_seconds = self._tokens = 0.0
        self._flops: Tensor | float = 0.0
        self._peak_flops: float | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        if not trainer.world.is_main:
            return
        observe, step = trainer.config.observe, trainer.state.step
        self._sinks = [JsonlSink(self.directory.metrics, resume_step=step)]
        if observe.tensorboard:
            self._sinks.append(TensorBoardSink(self.directory.tensorboard, resume_step=step))
        self._progress = TrainingProgress(trainer.config.num_steps, start_step=step, enabled=observe.progress)
        self._progress.__enter__()
        if trainer.config.precision.compute == "bf16":
            self._peak_flops = _peak_flops(trainer.world.device)

    def on_step_end(self, trainer: Trainer, outcome: StepOutcome) -> None:
        if self._progress is None:
            return
        self._steps += 1
        self._seconds += outcome.step_seconds
        self._data_seconds += outcome.data_seconds
        self._tokens += outcome.phase.tokens_per_step
        self._flops = self._flops + _model_flops(trainer, outcome)
        if trainer.state.step % trainer.config.observe.log_every and not trainer.state.is_done(trainer.config):
            return
        record = self._record(trainer, outcome)
        for sink in self._sinks:
            sink.write(record)
        self._progress.update(record)
        self._steps = 0
        self._seconds = self._data_seconds = self._tokens = 0.0
        self._flops = 0.0

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def _record(self, trainer: Trainer, outcome: StepOutcome) -> Record:
        state, result = trainer.state, outcome.result
        flops_per_second = float(self._flops) / self._seconds / trainer.world.size
        record = make_record(
            step=state.step,
            phase=outcome.phase.name,
            tokens=state.tokens,
            samples=sum(state.samples.values()),
            world_size=trainer.world.size,
            **_losses(result),
            lr=outcome.lr,
            grad_norm=result.grad_norm,
            router_bias_rate=outcome.phase.router_bias_rate,
            tokens_per_second=self._tokens / self._seconds,
            step_seconds=self._seconds / self._steps,
            data_seconds=self._data_seconds / self._steps,
            model_tflops_per_second=flops_per_second / 1e12,
            mfu=flops_per_second / self._peak_flops if self._peak_flops else None,
            rss_bytes=process_rss_bytes(),
            device_memory_bytes=_device_memory(trainer.world.device),
        )
        if self._communication is not None:
            record |= self._communication.take_record()
        if outcome.phase.capacity_factor is not None:
            record |= make_record(dropped_fraction=result.dropped_LE.sum() / result.counts_LE.sum())
        if len(result.counts_LE):
            record |= balance_metrics(result.counts_LE.cpu())
            if self._wants_expert_load(trainer):
                record["expert_load"] = expert_load(result.counts_LE.cpu())
        return record

    @staticmethod
    def _wants_expert_load(trainer: Trainer) -> bool:
        every = max(1, trainer.config.num_steps // _EXPERT_LOAD_RECORDS)
        return trainer.state.step % every == 0 or trainer.state.is_done(trainer.config)


def _losses(result: StepResult) -> dict[str, object]:
    """The loss terms under their metric names: MTP as the mean over depths, balance as the mean over layers."""
    losses = {"loss": result.losses["loss"]}
    mtp = [value for term, value in result.losses.items() if term.startswith("mtp_")]
    if mtp:
        losses["loss_mtp"] = torch.stack(mtp).mean()
    if "aux" in result.losses:
        losses["loss_aux"] = result.losses["aux"] / max(1, len(result.counts_LE))
    return dict(losses)


def _model_flops(trainer: Trainer, outcome: StepOutcome) -> Tensor | float:
    """FLOPs of the model in a step, over all ranks; not read from the device here."""
    model, phase = trainer.config.model, outcome.phase
    with_mtp = phase.mtp_loss_weight > 0 and model.num_nextn_predict_layers > 0
    fixed = train_flops_per_token(model, 0, with_mtp)
    per_length = train_flops_per_token(model, 1, with_mtp) - fixed
    return (fixed + per_length * outcome.result.mean_attended_length) * phase.tokens_per_step


def _peak_flops(device: torch.device) -> float | None:
    """Dense bf16 peak of a device in FLOP/s; None if it is not known."""
    if device.type != "cuda":
        return None
    accelerator = find_accelerator(torch.cuda.get_device_name(device))
    return accelerator.bf16_flops if accelerator else None


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
