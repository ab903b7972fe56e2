"""Save the run when it is due and at the end, and take it up again.

A resumed run equals one that never stopped, bit for bit on the same layout: weights, moments, router biases, position
in the data, learning rate (a function of the position) and generator states are all in the checkpoint.

A step that was skipped for a non-finite gradient is saved like any other: it has changed nothing but the position, and
the counters of such steps are saved with it.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.base import check_base
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.collective import run_on_rank_zero
from glmforge.checkpoint.compatible import check_compatible
from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, BaseWeights, read_description
from glmforge.checkpoint.format.store import chosen_step, note_chosen_step
from glmforge.checkpoint.load import load_latest, load_rng_state, set_aside_everywhere
from glmforge.checkpoint.node_local.parts_of_ranks import local_root
from glmforge.checkpoint.policy.background import BackgroundSaver, SaveReport
from glmforge.checkpoint.policy.saver import CheckpointSaver
from glmforge.checkpoint.source_files import read_files, stored_files
from glmforge.config.observe import HELD_OUT_METRICS
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError, ConfigError
from glmforge.observe.metrics import Record
from glmforge.observe.run import RunDirectory
from glmforge.observe.units import format_bytes
from glmforge.training.order import Priority
from glmforge.training.skipped import remember_skipped
from glmforge.training.source import BatchSource
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from glmforge.training.votes import ENDING

logger = logging.getLogger(__name__)


class CheckpointHook(Hook):
    """Saves under `<output_dir>/checkpoints`."""

    name = "checkpoints"
    priority = Priority.SAVE

    def __init__(
        self,
        config: RunConfig,
        data_fingerprint: Mapping[str, Any],
        tokenizer_fingerprint: str,
        base: BaseWeights | None = None,
    ) -> None:
        self.config, self.base = config, base
        self.root = RunDirectory(config.output_dir).checkpoints
        self.data_fingerprint = dict(data_fingerprint)
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self._saver: BackgroundSaver | None = None
        self._trainer: Trainer | None = None
        self._is_unsaved = False
        self._unrecorded: list[SaveReport] = []
        self._measured: dict[str, float] = {}
        self._measured_after = -1

    def on_train_start(self, trainer: Trainer) -> None:
        config = self.config.checkpoint
        self._trainer = trainer
        self._saver = self._make_saver(trainer)
        if config.every_steps is not None or config.ephemeral_every_steps is not None:
            self._saver.prepare(self._tensors(trainer))

    def _make_saver(self, trainer: Trainer) -> BackgroundSaver:
        config = self.config
        if config.lora is None:
            return CheckpointSaver(self.root, config.checkpoint, run_name=config.name, alive=trainer.alive)
        assert self.base is not None, "a run with adapters needs base weights"
        info = AdapterInfo(config.model, config.lora, config.checkpoint.mode, self.base, config.data.tokenizer)
        tensors, rng_state = self._tensors(trainer), _rng_state(trainer.world.device)
        return AdapterSaver(
            self.root,
            config.checkpoint,
            tensors,
            info,
            run_name=config.name,
            rng_state=rng_state,
            writes_files=_is_first_with_its_rows(trainer) and _keeps_files(trainer.source),
        )

    def _tensors(self, trainer: Trainer) -> dict[str, Tensor]:
        """What a checkpoint holds: everything of all models, or of a run with adapters what is trained."""
        tensors = trainer.backend.state_tensors()
        if self.config.lora is None:
            for extra, model in trainer.extra_models.items():
                tensors |= {f"{extra}.{name}": tensor for name, tensor in model.backend.state_tensors().items()}
            return tensors
        if trainer.extra_models:
            raise ConfigError(
                f"lora: adapter checkpoints cannot store additional trained models ({', '.join(trainer.extra_models)})"
                "; train all weights instead"
            )
        table = trainer.backend.table
        return {
            name: tensor
            for name, tensor in tensors.items()
            if not name.startswith(PARAMETER_PREFIX) or table[name.removeprefix(PARAMETER_PREFIX)].lr_scale
        }

    def on_gradients(self, trainer: Trainer) -> None:
        """The update that follows writes to what may still be on its way into memory aside."""
        if self._saver is not None:
            self._saver.finish_copy()

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        config, state = self.config.checkpoint, trainer.state
        self._is_unsaved = True
        if "save_failed" in result.votes and isinstance(self._saver, AdapterSaver):
            self._saver.failed_elsewhere()
        ends = bool(result.votes & ENDING) or (config.save_final and state.is_done)
        if ends or "save" in result.votes or _is_due(config.every_steps, state.step):
            self.save(trainer, trainer.phase.name, durable=ends)
        elif _is_due(config.ephemeral_every_steps, state.step):
            self.save(trainer, trainer.phase.name, ephemeral=True)
        self._report()

    def on_evaluation(self, trainer: Trainer, records: Sequence[Record]) -> None:
        for name in HELD_OUT_METRICS:
            values = [float(record[name]) for record in records if name in record]
            self._note(trainer, {name: sum(values) / len(values)} if values else {})

    def on_benchmarks(self, trainer: Trainer, records: Sequence[Record]) -> None:
        scored = [record for record in records if "benchmark_score" in record]
        self._note(trainer, {record["benchmark"]: record["benchmark_score"] for record in scored})

    def _note(self, trainer: Trainer, measured: Mapping[str, float]) -> None:
        """What was measured at the present step. A checkpoint cannot hold a value that is not finite."""
        earlier = self._measured if self._measured_after == trainer.state.step else {}
        finite = {name: value for name, value in measured.items() if math.isfinite(value)}
        self._measured, self._measured_after = {**earlier, **finite}, trainer.state.step

    def on_train_end(self, trainer: Trainer) -> None:
        """Also saves if it was not known in the last step that it was the last."""
        if self._is_unsaved and self.config.checkpoint.save_final and trainer.state.is_done:
            self.save(trainer, trainer.phase.name, durable=True)
        if self._saver is not None:
            self._saver.wait()

    def close(self) -> None:
        if self._saver is not None:
            self._saver.close()
            self._report()

    def save(self, trainer: Trainer, phase: str, *, ephemeral: bool = False, durable: bool = False) -> None:
        """Save the present state. Collective; see `CheckpointSaver.save`."""
        assert self._saver is not None, "saves start with training"
        state = trainer.state
        self._is_unsaved = False
        meta = CheckpointMeta(
            step=state.step,
            phase=phase,
            tokens_consumed=state.tokens,
            samples_consumed=dict(state.samples),
            config=self.config.model_dump(mode="json"),
            data_fingerprint=self.data_fingerprint,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            hooks=_hook_states(trainer.hooks),
            skipped_samples={name: list(ranges) for name, ranges in state.skipped.items()},
            mixtures=trainer.source.state_dict(),
            nonfinite_steps=state.nonfinite_steps,
            total_nonfinite_steps=state.total_nonfinite_steps,
            rollbacks=state.rollbacks,
            stopped=state.stopped,
            measured=self._measured if self._measured_after == state.step else {},
            extra_models={name: model.config.model_dump(mode="json") for name, model in trainer.extra_models.items()},
        )
        self._saver.save(
            state.step,
            self._tensors(trainer),
            meta,
            rng_state=_rng_state(trainer.world.device),
            files=_files_of_source(trainer),
            ephemeral=ephemeral,
            durable=durable,
        )

    def take_up(self, trainer: Trainer, step: int | None = None) -> Path | None:
        """Resume in a new process, from the checkpoint of `step` or from the newest, or None. Collective.

        Whatever is later than `step` is kept aside. That happens once: while the same step is requested, as a launcher
        does that starts the same command again, the run goes on from what it has saved since.
        """
        chosen = run_on_rank_zero(lambda: chosen_step(self.root))
        if step is None or step == chosen:
            path = self.resume(trainer)
            if step is None and chosen is not None:
                run_on_rank_zero(lambda: note_chosen_step(self.root, None))
            if step is None or path is not None:
                return path
        path = self.resume(trainer, step=step)
        aside = set_aside_everywhere(step, self.root, self._local_root, keep=True)
        run_on_rank_zero(lambda: note_chosen_step(self.root, step))
        trainer.event("went back", f"by choice; kept aside: {', '.join(aside) or 'nothing'}", step=step)
        return path

    def resume(self, trainer: Trainer, before_step: int | None = None, step: int | None = None) -> Path | None:
        """Load the newest complete checkpoint into `trainer`, in place, or None. Collective.

        With `before_step` the run goes back: the newest of an earlier step is taken, and later ones are set aside. With
        `step` that of this step is taken, and nothing is set aside.
        """
        if self._saver is not None:
            self._saver.wait()
        found = load_latest(
            self.root,
            self._tensors(trainer),
            config=self.config.model_dump(mode="json"),
            local_root=self._local_root,
            before_step=before_step,
            step=step,
        )
        if found is None:
            return None
        path, meta = found
        self._check_same_data(path, meta)
        if self.base is not None:
            base = self.base
            run_on_rank_zero(lambda: check_base(path, read_description(path).base, base))
        trainer.state, self._is_unsaved = _train_state(meta), False
        for hook in trainer.hooks:
            hook.load_state_dict(meta.hooks.get(hook.state_key, {}))
        world = trainer.world
        trainer.source.load_state_files(read_files(path, world.data_rank, world.layout.data_ranks))
        changes = trainer.source.load_state_dict(meta.mixtures, trainer.state.position)
        self._report_changes(trainer, meta, changes, resumed=before_step is None)
        rng_state = load_rng_state(path)
        if rng_state is not None:
            _set_rng_state(rng_state, trainer.world.device)
        return path

    @property
    def _local_root(self) -> Path | None:
        local_dir = self.config.checkpoint.local_dir
        return None if local_dir is None else local_root(local_dir, self.config.name)

    def restore(self, trainer: Trainer, before_step: int) -> bool:
        if trainer.world.is_main:
            remember_skipped(self.config.output_dir, trainer.state)
        return self.resume(trainer, before_step) is not None

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        """The saves that have ended since the last record, together."""
        reports, self._unrecorded = self._unrecorded, []
        if not reports:
            return
        saved = [report for report in reports if report.error is None]
        seconds, num_bytes = sum(r.seconds_total for r in saved), sum(r.num_bytes for r in saved)
        trainer.record(
            checkpoint_seconds_blocked=sum(report.seconds_blocked for report in reports),
            checkpoint_seconds_total=seconds if saved else None,
            checkpoint_bytes=num_bytes if saved else None,
            checkpoint_bytes_per_second=num_bytes / seconds if saved else None,
        )

    def _report(self) -> None:
        """Tell what has become of earlier saves. Rank 0 knows of all but adapters, of which each rank saves its own."""
        if self._saver is None or self._trainer is None:
            return
        for report in self._saver.poll():
            own = isinstance(self._saver, AdapterSaver)
            if report.error is not None and (own or self._trainer.world.is_main):
                logger.warning("step %d was not saved: %s", report.step, report.error)
            if report.error is not None and own:
                self._trainer.vote("save_failed")
            if self._trainer.world.is_main:
                self._unrecorded.append(report)
                event = "saved" if report.error is None else "save failed"
                seconds = {
                    "seconds": round(report.seconds_total, 3),
                    "seconds_blocked": round(report.seconds_blocked, 3),
                }
                self._trainer.event(event, _describe(report), step=report.step, **seconds)

    def _report_changes(
        self, trainer: Trainer, meta: CheckpointMeta, mixtures: Sequence[str], *, resumed: bool
    ) -> None:
        changes = [("mixture changed", change) for change in mixtures]
        if resumed:  # a run that goes back has not been configured anew
            noted = check_compatible(meta.config, self.config.model_dump(mode="json"), meta.samples_consumed)
            for name, model in trainer.extra_models.items():
                noted += _changes_of_extra(name, meta, model.config)
            changes += [("configuration changed", change) for change in noted]
        for event, detail in changes:
            trainer.event(event, detail, step=meta.step)

    def _check_same_data(self, path: Path, meta: CheckpointMeta) -> None:
        if meta.tokenizer_fingerprint != self.tokenizer_fingerprint:
            raise CheckpointError(
                f"{path}: was trained with another tokenizer than data.tokenizer; restore that tokenizer, or start a "
                "new run under another name"
            )
        for phase, consumed in meta.samples_consumed.items():
            before, now = meta.data_fingerprint.get(phase), self.data_fingerprint.get(phase)
            difference = _first_difference(f"phase '{phase}'", before, now) if consumed else None
            if difference:
                raise CheckpointError(
                    f"{path}: {difference}; consumed data must not change; restore it, or start a new run under "
                    "another name"
                )


def _files_of_source(trainer: Trainer) -> dict[str, bytes]:
    """What this rank writes of them: of ranks with the same rows the first one does."""
    files = trainer.source.state_files()
    if not _is_first_with_its_rows(trainer):
        return {}
    return stored_files(files, trainer.world.data_rank, trainer.world.layout.data_ranks)


def _is_first_with_its_rows(trainer: Trainer) -> bool:
    return not any(trainer.world.axis_rank(axis) for axis in ("pp", "cp", "tp"))


def _keeps_files(source: BatchSource) -> bool:
    return type(source).state_files is not BatchSource.state_files


def _hook_states(hooks: Sequence[Hook]) -> dict[str, dict[str, Any]]:
    """What hooks have to keep, by key; several may keep theirs under one."""
    states: dict[str, dict[str, Any]] = {}
    for hook in hooks:
        states.setdefault(hook.state_key, {}).update(hook.state_dict())
    return {key: state for key, state in states.items() if state}


def _changes_of_extra(name: str, meta: CheckpointMeta, config: RunConfig) -> list[str]:
    """What has changed in the configuration of a further model. Raises `CheckpointError` if it cannot go on."""
    try:
        changes = check_compatible(meta.extra_models[name], config.model_dump(mode="json"), meta.samples_consumed)
    except CheckpointError as error:
        raise CheckpointError(f"step {meta.step} does not fit this run: {name}: {error}") from None
    return [f"{name}: {change}" for change in changes]


def _is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


def _train_state(meta: CheckpointMeta) -> TrainState:
    return TrainState(
        step=meta.step,
        tokens=meta.tokens_consumed,
        samples=dict(meta.samples_consumed),
        nonfinite_steps=meta.nonfinite_steps,
        total_nonfinite_steps=meta.total_nonfinite_steps,
        skipped={name: list(ranges) for name, ranges in meta.skipped_samples.items()},
        rollbacks=meta.rollbacks,
        stopped=meta.stopped,
    )


def _rng_state(device: torch.device) -> Tensor:
    """The state of the CPU's generator, then that of the GPU's where there is one (uint8)."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def _set_rng_state(state: Tensor, device: torch.device) -> None:
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)


def _describe(report: SaveReport) -> str:
    if report.error is not None:
        return report.error
    return (
        f"{'ephemeral' if report.ephemeral else 'permanent'}, {format_bytes(report.num_bytes)} in "
        f"{report.seconds_total:.1f} s ({format_bytes(report.bytes_per_second)}/s); training waited "
        f"{report.seconds_blocked:.2f} s"
    )


def _first_difference(name: str, before: Any, now: Any) -> str | None:
    """Where two fingerprints differ first, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        differences = (_first_difference(f"{name}.{key}", before.get(key), now.get(key)) for key in before | now)
        return next(filter(None, differences), None)
    return None if before == now else f"{name} changed from {before} to {now}"
