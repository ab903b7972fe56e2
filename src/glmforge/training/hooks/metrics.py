"""Turn steps into records for the sinks and the progress bar, on rank 0.

Between two logging steps nothing waits for the device; speed is averaged over the steps since the last record. Model
FLOPs are added up step by step, as the documents of each batch have their own lengths. Utilisation compares them with
the peak of this rank's device, taking all ranks' for equal, and is left out where that peak is not known.

Records are for reading, and most of their bytes come once per layer. So a run has at most so many of them with lists
per layer, and far fewer with the load of every expert.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from glmforge.observe.balance import balance_metrics, expert_load
from glmforge.observe.environment import process_rss_bytes
from glmforge.observe.metrics import Record, make_record
from glmforge.observe.progress import TrainingProgress
from glmforge.observe.run import RunDirectory
from glmforge.observe.sinks import JsonlSink, Sink, TensorBoardSink
from glmforge.plan.flops import train_flops_per_token
from glmforge.plan.hardware import find_accelerator
from glmforge.training.hooks.router_biases import RouterBiases
from glmforge.training.hooks.source_totals import SourceTotals
from glmforge.training.order import Stage
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

_LAYER_RECORDS = 10_000
"""At most so many records of a run tell of every layer: one a quarter of an hour in a run of months."""
_EXPERT_LOAD_RECORDS = 20
"""And so many carry the whole table of expert loads: enough for a picture, small on disk."""


class Recorder(Protocol):
    """A hook that measures what goes into the records."""

    def take_record(self) -> Record:
        """What it has measured since it was last asked."""
        ...


class MetricsHook(Hook):
    """Writes a record every `observe.log_every` steps and after the last.

    Args:
        output_dir: the run directory.
        recorders: hooks whose measurements go into the records.
    """

    name = "metrics"
    stage = Stage.WRITE

    def __init__(self, output_dir: Path, recorders: Sequence[Recorder] = ()) -> None:
        self.directory = RunDirectory(output_dir)
        self._recorders = recorders
        self._sinks: Sequence[Sink] = ()
        self._progress: TrainingProgress | None = None
        self._sources = SourceTotals()
        self._biases: RouterBiases | None = None
        self._result: StepResult | None = None
        self._peak_flops: float | None = None
        self._flops: Tensor | float = 0.0
        self._begin_record()

    def on_train_start(self, trainer: Trainer) -> None:
        self._biases = RouterBiases(trainer.model)
        if not trainer.world.is_main:
            return
        config, state = trainer.config, trainer.state
        self._sinks = [JsonlSink(self.directory.metrics, resume_step=state.step)]
        if config.observe.tensorboard:
            self._sinks.append(TensorBoardSink(self.directory.tensorboard, resume_step=state.step))
        self._progress = TrainingProgress(
            *(trainer.source.total or (None, None)), start_tokens=state.tokens, enabled=config.observe.progress
        )
        self._progress.__enter__()
        if config.precision.compute == "bf16":
            self._peak_flops = _peak_flops(trainer.world.device)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._result = result
        self._steps += 1
        self._seconds += result.seconds
        self._data_seconds += result.data_seconds
        self._tokens += result.tokens
        self._flops = self._flops + _model_flops(trainer, result)
        self._sources.add([source.name for source in trainer.config.data.sources], result)
        if trainer.state.step % trainer.config.observe.log_every == 0 or trainer.state.is_done:
            self._write(trainer, result)

    def on_train_end(self, trainer: Trainer) -> None:
        """The last step of a run that was stopped may have no record yet."""
        if self._result is not None and self._steps:
            self._write(trainer, self._result)
        if self._progress is not None and trainer.state.stopped is not None:
            self._progress.note(f"stopped after step {trainer.state.step:,}: {trainer.state.stopped}")

    def on_rollback(self, trainer: Trainer) -> None:
        """Records of steps that the run has gone back behind are dropped."""
        self.close()
        self._begin_record()
        self.on_train_start(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"sources": self._sources.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sources.load_state_dict(state.get("sources", {}))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def _begin_record(self) -> None:
        self._steps = 0
        self._seconds = self._data_seconds = self._tokens = 0.0
        self._flops = 0.0

    def _write(self, trainer: Trainer, result: StepResult) -> None:
        """Write a record on rank 0. All ranks call this together."""
        by_layer = len(result.counts_LE) > 0 and _is_due(trainer, _LAYER_RECORDS)
        biases: Record = {}
        if by_layer and self._biases is not None:
            biases = self._biases.take_record(len(result.counts_LE))
        if trainer.world.is_main:
            record = self._progress_and_speed(trainer, result) | self._sources.record()
            for recorder in self._recorders:
                record |= recorder.take_record()
            record |= _balance(trainer, result, by_layer) | biases
            if _is_due(trainer, _LAYER_RECORDS):
                record |= make_record(**trainer.source.metrics())
            for sink in self._sinks:
                sink.write(record)
            if self._progress is not None:
                self._progress.update(record)
        self._sources.begin_record()
        self._begin_record()

    def _progress_and_speed(self, trainer: Trainer, result: StepResult) -> Record:
        state, phase = trainer.state, trainer.phase
        flops_per_second = float(self._flops) / self._seconds / trainer.world.size
        return make_record(
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
            tokens_per_second=self._tokens / self._seconds,
            step_seconds=self._seconds / self._steps,
            data_seconds=self._data_seconds / self._steps,
            model_tflops_per_second=flops_per_second / 1e12,
            mfu=flops_per_second / self._peak_flops if self._peak_flops else None,
            rss_bytes=process_rss_bytes(),
            device_memory_bytes=_device_memory(trainer.world.device),
        )


def _balance(trainer: Trainer, result: StepResult, by_layer: bool) -> Record:
    if not len(result.counts_LE):
        return {}
    counts_LE = result.counts_LE.cpu()
    dropped_LE = result.dropped_LE.cpu() if trainer.phase.capacity_factor is not None else None
    record = balance_metrics(counts_LE, dropped_LE, by_layer=by_layer)
    return record | make_record(expert_load=expert_load(counts_LE) if _is_due(trainer, _EXPERT_LOAD_RECORDS) else None)


def _is_due(trainer: Trainer, num_records: int) -> bool:
    """Whether what so many records of the run are to have goes into the one of this step; alike on all ranks.

    In a run of unknown length as many have it among the first steps, and then ever fewer.
    """
    state, total = trainer.state, trainer.source.total
    every = -(-(state.step if total is None else total.steps) // num_records)
    return state.step % every < trainer.config.observe.log_every or state.is_done


def _num_skipped(state: TrainState) -> int:
    return sum(stop - start for ranges in state.skipped.values() for start, stop in ranges)


def _losses(result: StepResult) -> dict[str, object]:
    """The loss terms under their metric names: MTP as the mean over depths, balance as the mean over layers."""
    losses = {"loss": result.losses["loss"]}
    mtp = [value for term, value in result.losses.items() if term.startswith("mtp_")]
    if mtp:
        losses["loss_mtp"] = fmean(mtp)
    if "aux" in result.losses:
        losses["loss_aux"] = result.losses["aux"] / max(1, len(result.counts_LE))
    return dict(losses)


def _model_flops(trainer: Trainer, result: StepResult) -> Tensor | float:
    """FLOPs of the model in a step, over all ranks; not read from the device here."""
    model = trainer.config.model
    with_mtp = trainer.phase.objective.num_mtp > 0
    fixed = train_flops_per_token(model, 0, with_mtp)
    per_length = train_flops_per_token(model, 1, with_mtp) - fixed
    return (fixed + per_length * result.mean_attended_length) * result.tokens


def _peak_flops(device: torch.device) -> float | None:
    """Dense bf16 peak of a device in FLOP/s; None if it is not known."""
    if device.type != "cuda":
        return None
    accelerator = find_accelerator(torch.cuda.get_device_name(device))
    return accelerator.bf16_flops if accelerator else None


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
