"""Where a loss or gradient that is not finite came from: the run's steps taken again, from the checkpoint before.

First the checkpoint itself: a weight, a router's bias or an optimizer moment that is not finite in it is the answer.
Else its steps are replayed in one process, whatever the layout was, with the weights and moments looked at after
each. A step that is not finite changes nothing, so it can be taken once more, watched operation by operation
(`nan_trace`), and its rows one by one. Nothing is written into the run: checkpoints are linked into a directory that
is removed at the end.

The replay is bit-equal on the run's own layout of one rank; on other layouts it is equal up to rounding, and expert
capacities (`capacity_factor`) count other tokens.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.format.manifest import find_problems
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.store import checkpoint_path, list_checkpoints, step_of
from glmforge.checkpoint.save import RNG_PREFIX
from glmforge.config.load import load_config
from glmforge.config.parallel import ParallelConfig
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.data.stream.batch import Batch
from glmforge.doctor.nan_trace import NonFiniteTrace, is_finite
from glmforge.errors import ConfigError, GlmforgeError
from glmforge.model.dropout import Noise
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.parallel.reducer import Reducer
from glmforge.parallel.world import World, default_device
from glmforge.recipes.fit import check_fit, layout_at_hand
from glmforge.recipes.train import replay_trainer
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.training.source import StepInput
from glmforge.training.trainer import Trainer

Advance = Callable[[str], None]


class FindNanError(GlmforgeError):
    """A run of which there is nothing to replay."""


@dataclass(frozen=True)
class BadTensor:
    """`element` is the first of the `count` elements of the tensor that are not finite; `value` is NaN or infinite."""

    name: str
    element: list[int]
    value: str
    count: int


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        cause: "weight", "optimizer state" (in the checkpoint already), "update" (the optimizer made it), "forward",
            "backward", or "nothing".
        step: the step that was not finite.
        checkpoint: that the replay began from; None: the run's beginning.
        tensors: not finite, of the checkpoint or after the update.
        module, operation, line: where the first value was made that is not finite.
        samples: the samples with it: number in the phase's order, source, row, position of the token if known.
        notes: what else to know.
    """

    cause: str
    step: int
    checkpoint: str | None
    tensors: list[BadTensor] = field(default_factory=list)
    module: str = ""
    operation: str = ""
    line: str = ""
    samples: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def find_nan(run: Path, step: int | None = None, *, advance: Advance = lambda what: None) -> Finding:
    """Replay `run` up to its first step that was not finite, or to `step`. Raises `GlmforgeError` if it cannot be."""
    files = RunDirectory(run)
    if not files.config.exists():
        raise FindNanError(f"{run}: is not a run directory; pass the output_dir of a run")
    step = first_nonfinite_step(files) if step is None else step
    if step is None:
        raise FindNanError(f"{run}: no step is recorded whose loss or gradient is not finite; pass --step N to replay")
    config, start = load_config(files.config), _checkpoint_before(files.checkpoints, step)
    if start is not None:
        advance(f"reading {start.name}")
        stored = StoredTensors(start, verify=False)
        if bad := bad_tensors({name: stored for name in stored if not name.startswith(RNG_PREFIX)}):
            cause = "weight" if bad[0].name.startswith("model.") else "optimizer state"
            return Finding(cause, step, start.name, bad, notes=_earlier(files.checkpoints, start, bad))
    with _scratch(files, start) as scratch:
        return _replay(_for_one_process(config, scratch), step, start, advance)


def first_nonfinite_step(files: RunDirectory) -> int | None:
    """By the anomalies and metrics that the run recorded."""
    steps = []
    for path in (files.anomalies, files.metrics):
        for record in read_jsonl(path) if path.exists() else []:
            values = [record.get(name) for name in ("loss", "grad_norm")]
            wrong = any(isinstance(value, float) and not math.isfinite(value) for value in values)
            if (wrong or record.get("anomaly") == "another loss term") and isinstance(record.get("step"), int):
                steps.append(record["step"])
    return min(steps, default=None)


def bad_tensors(tensors: Mapping[str, Mapping[str, Tensor] | Tensor]) -> list[BadTensor]:
    """Those that are not finite, weights first; each is read when it is looked at."""
    found = []
    for name in sorted(tensors, key=lambda name: (not name.startswith("model."), name)):
        held = tensors[name]
        tensor = held if isinstance(held, Tensor) else held[name]
        if is_finite(tensor):
            continue
        wrong = torch.isfinite(tensor.detach().float()).logical_not()
        first = wrong.nonzero()[0].tolist()
        value = str(tensor.detach()[tuple(first)].item())
        found.append(BadTensor(name, first, value, int(wrong.sum())))
    return found


def _checkpoint_before(root: Path, step: int) -> Path | None:
    """The newest whole one of an earlier step; None if the run has not saved by then."""
    earlier = [path for path in list_checkpoints(root) if step_of(path) < step]
    for path in earlier:
        if not find_problems(path, checksums=True):
            return path
    if earlier:
        raise FindNanError(f"{root}: no checkpoint before step {step:,} is whole; see 'glmforge checkpoint verify'")
    return None


def _earlier(root: Path, start: Path, bad: list[BadTensor]) -> list[str]:
    """Since when: the newest older checkpoint in which these tensors are finite."""
    for path in list_checkpoints(root):
        if step_of(path) < step_of(start) and not find_problems(path, checksums=False):
            stored = StoredTensors(path, verify=False)
            if not bad_tensors({each.name: stored for each in bad if each.name in stored}):
                return [f"finite in {path.name}; 'find-nan --step {step_of(start)}' replays the steps since"]
    return ["not finite in any older checkpoint either, or there is none"]


@contextmanager
def _scratch(files: RunDirectory, start: Path | None) -> Iterator[Path]:
    """A run's directory to replay in, with what the replay reads of the true one."""
    with tempfile.TemporaryDirectory(prefix="glmforge-find-nan-") as name:
        scratch = RunDirectory(Path(name))
        scratch.checkpoints.mkdir()
        if start is not None:
            checkpoint_path(scratch.checkpoints, step_of(start)).symlink_to(start.resolve())
        if files.reference.is_file():
            shutil.copyfile(files.reference, scratch.reference)
        yield scratch.root


def _for_one_process(config: RunConfig, scratch: Path) -> RunConfig:
    if STAGES[config.stage].recipe.startswith("glmforge.recipes.rl:") or config.stage == "rl":
        raise FindNanError(
            f"{config.name}: answers of stage rl are not generated again; set observe.debug.detect_anomaly instead"
        )
    kept = {name: getattr(config.parallel, name) for name in ("micro_batch_size", "activation_offload")}
    kept["recompute"] = "full" if config.parallel.recompute == "budget" else config.parallel.recompute
    changes = {
        "output_dir": scratch,
        "parallel": ParallelConfig.model_validate(kept),
        "checkpoint": config.checkpoint.model_copy(update={"dir": None, "local_dir": None}),
        "fault_tolerance": config.fault_tolerance.model_copy(update={"max_nonfinite_steps": 1 << 40}),
    }
    config = config.model_copy(update=changes)
    launch, device = LaunchEnvironment.read(), default_device()
    try:
        check_fit(config, layout_at_hand(config, launch, device), launch, device, force=False)
    except ConfigError as error:
        reason = str(error).removesuffix("; pass --force to start anyway")
        raise FindNanError(
            f"{config.name}: the replay takes one process, which must hold the whole model: {reason}"
        ) from None
    return config


def _replay(config: RunConfig, step: int, start: Path | None, advance: Advance) -> Finding:
    where = None if start is None else start.name
    advance("building the model")
    trainer = replay_trainer(config, World.single(), None if start is None else step_of(start))
    with trainer.running():
        while trainer.state.step < step and (given := trainer.source.next()) is not None:
            before = trainer.state.step
            advance(f"step {before + 1:,} of {step:,}")
            result = trainer.step(given)
            if not result.finite:
                return _diagnose(trainer, given, before, where, any(map(_wrong, result.losses.values())))
            if bad := bad_tensors(trainer.backend.state_tensors()):
                return Finding("update", before + 1, where, bad, notes=["loss and gradient of the step are finite"])
    notes = [
        f"{trainer.state.step - (0 if start is None else step_of(start)):,} steps were replayed and all is finite: the "
        "run had other hardware or another layout, or a value was damaged in its memory"
    ]
    return Finding("nothing", step, where, notes=notes)


def _diagnose(trainer: Trainer, given: StepInput, before: int, where: str | None, in_loss: bool) -> Finding:
    """Take the step that was not finite again, watched."""
    config, backend, phase = trainer.config, trainer.backend, given.phase
    noise = Noise.of_step(config.regularization, config.seed, before, config.adapter_dropout)
    batch = given.batch.to(trainer.world.device)
    size = phase.micro_batch_size or len(batch.ids_BS)
    with backend.evaluating() as model:
        parts = list(model.parts)
    names = {module: name or "model" for part in parts for name, module in part.named_modules()}
    trace = NonFiniteTrace(names, (size, batch.ids_BS.shape[1]))
    with trace.watching():
        backend.accumulate(phase.objective, batch.micro_batches(size), noise)
    backend.zero_grad()
    origin = trace.origin(backward=not in_loss)
    token = None
    if origin is not None and origin.token is not None:
        token = (origin.micro_batch * size + origin.token[0], origin.token[1])
    samples = [_describe(trainer, given, row, token) for row in _bad_rows(trainer, given, batch, noise)]
    notes = [] if samples else ["each row by itself is finite; only the whole batch is not"]
    notes += [f"{name} of the batch is not finite" for name in _bad_inputs(batch)]
    finding = Finding("forward" if in_loss else "backward", before + 1, where, samples=samples, notes=notes)
    if origin is None:
        return finding
    place = origin.module or "outside the model's modules (objective)"
    return Finding(**{**vars(finding), "module": place, "operation": origin.operation, "line": origin.line})


def _bad_rows(trainer: Trainer, given: StepInput, batch: Batch, noise: Noise | None) -> list[int]:
    """Rows that are not finite when they are trained on alone."""
    found = []
    for row in range(len(batch.ids_BS)):
        done = trainer.backend.accumulate(given.phase.objective, [batch.rows(row, row + 1)], noise)
        losses, _ = done.sum(Reducer(trainer.world))
        if not (is_finite(losses) and is_finite(trainer.backend.clip(None))):
            found.append(row)
        trainer.backend.zero_grad()
    return found


def _describe(trainer: Trainer, given: StepInput, row: int, token: tuple[int, int] | None) -> dict[str, Any]:
    batch = given.batch
    sample = trainer.source.describe(given.phase.name, batch.sample_indices[row])
    found = {"batch_row": row, "sample": batch.sample_indices[row], **sample}
    if token is not None and token[0] == row:
        found |= {"position": token[1], "token_id": int(batch.ids_BS[row, token[1]])}
    return found


def _bad_inputs(batch: Batch) -> list[str]:
    return [name for name, tensor in {**batch.per_token, **batch.per_row}.items() if not is_finite(tensor)]


def _wrong(value: float) -> bool:
    return not math.isfinite(value)
