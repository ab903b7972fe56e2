"""Save the run every so many steps and at the end, and take it up again.

A resumed run equals one that never stopped, bit for bit on the same layout: weights, moments, router biases, position
in the data, learning rate (a function of the position) and generator states are all in the checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from glmforge.checkpoint.load import load_latest, load_rng_state
from glmforge.checkpoint.meta import CheckpointMeta
from glmforge.checkpoint.retain import apply_retention
from glmforge.checkpoint.save import save_checkpoint
from glmforge.errors import CheckpointError
from glmforge.observe.run import RunDirectory
from glmforge.train.state import TrainState
from glmforge.train.trainer import Hook, StepOutcome, Trainer, model_tensors


class CheckpointHook(Hook):
    """Saves under `<output_dir>/checkpoints`; must be the last hook, so that the others' states are of this step."""

    name = "checkpoints"

    def __init__(self, output_dir: Path, data_fingerprint: Mapping[str, Any], tokenizer_fingerprint: str) -> None:
        self.root = RunDirectory(output_dir).checkpoints
        self.data_fingerprint = dict(data_fingerprint)
        self.tokenizer_fingerprint = tokenizer_fingerprint

    def on_step_end(self, trainer: Trainer, outcome: StepOutcome) -> None:
        config, state = trainer.config.checkpoint, trainer.state
        due = config.every_steps is not None and state.step % config.every_steps == 0
        last = config.save_final and state.is_done(trainer.config)
        if (due or last) and outcome.result.finite:
            self.save(trainer, outcome.phase.name)

    def save(self, trainer: Trainer, phase: str) -> Path:
        """Write a checkpoint of the present state and delete those that retention no longer keeps."""
        state, config = trainer.state, trainer.config
        meta = CheckpointMeta(
            step=state.step,
            phase=phase,
            tokens_consumed=state.tokens,
            samples_consumed=dict(state.samples),
            config=config.model_dump(mode="json"),
            data_fingerprint=self.data_fingerprint,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            hooks={hook.name: hook.state_dict() for hook in trainer.hooks},
        )
        tensors = model_tensors(trainer.model, trainer.optimizer)
        path = save_checkpoint(self.root, state.step, tensors, meta, rng_state=torch.get_rng_state())
        apply_retention(self.root, config.checkpoint.keep_last, config.checkpoint.keep_every_steps)
        return path

    def resume(self, trainer: Trainer) -> Path | None:
        """Load the newest whole checkpoint into `trainer`, in place; None if there is none. Collective."""
        tensors = model_tensors(trainer.model, trainer.optimizer)
        found = load_latest(self.root, tensors, config=trainer.config.model_dump(mode="json"))
        if found is None:
            return None
        path, meta = found
        self._check_same_data(path, meta)
        trainer.state = TrainState(meta.step, meta.tokens_consumed, dict(meta.samples_consumed))
        for hook in trainer.hooks:
            hook.load_state_dict(meta.hooks.get(hook.name, {}))
        rng_state = load_rng_state(path)
        if rng_state is not None:
            torch.set_rng_state(rng_state)
        return path

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
                    f"{path}: {difference}; data that has been consumed must stay what it was: restore it, or start a "
                    "new run under another name"
                )


def _first_difference(name: str, before: Any, now: Any) -> str | None:
    """Where two fingerprints differ first, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        differences = (_first_difference(f"{name}.{key}", before.get(key), now.get(key)) for key in before | now)
        return next(filter(None, differences), None)
    return None if before == now else f"{name} was {before} and is {now} now"
