"""The same weights with a fresh optimizer, as a new checkpoint: to change the optimizer, or to begin anew from them.

A checkpoint is larger than what one process should hold. Only names, shapes and types are gathered beforehand; each
tensor is read, or made of zeros, when its turn to be written comes, and lives until its file is written: memory holds
one file, of a gibibyte or the largest tensor.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from glmforge.checkpoint.compatible import check_compatible
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.fit import TensorSpec, check_fit, extra_models
from glmforge.checkpoint.format.manifest import read_manifest, record_file, write_manifest
from glmforge.checkpoint.format.meta import META_FILE, CheckpointMeta, read_meta, stored_config, write_meta
from glmforge.checkpoint.format.read import CachingReader, StoredTensors, stored_tensors
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, is_sharded_adapter
from glmforge.checkpoint.format.shards import write_shards
from glmforge.checkpoint.format.store import (
    checkpoint_path,
    list_checkpoints,
    make_partial,
    publish,
    step_of,
)
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.format.writers import BalancedSavePlanner
from glmforge.checkpoint.save import RNG_PREFIX
from glmforge.checkpoint.source_files import is_source_file, write_files
from glmforge.config.parameter_groups import held_in_bf16, optimizer_states
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.optim.optimizer import STATE_DTYPES
from glmforge.runtime.lease import Lease
from glmforge.runtime.os_errors import describe_os_error

Advance = Callable[[int, int], None]
"""Called with the number of tensors that have been made and of all."""

_OPTIM_PREFIX = "optim."
_FILE_BYTES = 1 << 30


class Reset(NamedTuple):
    """The new checkpoint, and in what its configuration differs from the old one's."""

    path: Path
    notes: list[str]


def reset_optimizer(
    source: Path,
    out: Path,
    *,
    config: RunConfig | None = None,
    position: Literal["keep", "zero"] = "keep",
    advance: Advance = lambda done, total: None,
) -> Reset:
    """Write a checkpoint of `source`'s weights with an optimizer that has not stepped, to `<out>/checkpoints`.

    `source` is a checkpoint, or a run whose newest whole one is taken. `config` is the configuration of the run that is
    to go on from it, which decides the states' names; None takes the checkpoint's own. `position` "keep" goes on at the
    same step and sample, "zero" begins a new run from these weights. `out` is a run's directory and may be that
    `checkpoints` directory itself. Raises `CheckpointError`: `source` is incomplete, does not fit `config`, or `out`
    holds checkpoints that a run would prefer.
    """
    source = find_checkpoint(source)
    if is_sharded_adapter(source):
        raise CheckpointError(
            f"{source}: contains adapters; to continue them with a fresh optimizer, start a new run with lora.init_from"
        )
    meta = read_meta(source)
    config = config or stored_config(source, meta, "pass one with --config")
    if position == "zero":
        samples, step = dict[str, int](), 0
    else:
        samples, step = meta.samples_consumed, meta.step
    try:
        notes = check_compatible(meta.config, config.model_dump(mode="json"), samples, fresh_optimizer=True)
    except CheckpointError as error:
        raise CheckpointError(f"{source} does not fit that configuration: {error}") from None
    root = free_root(out, step)
    stored = StoredTensors(source)
    in_store = stored_tensors(CachingReader(source).read_metadata())
    if extra := extra_models(in_store):
        raise CheckpointError(
            f"{source}: contains further trained models ({list_some(extra)}), whose optimizers cannot be reset; "
            f"start a "
            "new run from it with init_from"
        )
    check_fit(
        source, {n: t for n, t in in_store.items() if n.startswith(PARAMETER_PREFIX)}, weight_specs(config), meta, None
    )
    prefixes = (PARAMETER_PREFIX, RNG_PREFIX) if position == "keep" else PARAMETER_PREFIX
    kept = {n: TensorSpec(tuple(t.size), t.properties.dtype) for n, t in in_store.items() if n.startswith(prefixes)}
    planner = LazyPlanner(kept | state_specs(config), lambda name: stored[name] if name in kept else None, advance)
    with Lease(root.parent, "glmforge checkpoint reset-optimizer"):
        final = checkpoint_path(free_root(out, step), step)  # another process may just have finished there
        files = _files_of_source(source) if position == "keep" else {}
        write_checkpoint(final, planner, _new_meta(meta, config, position), files)
    return Reset(final, notes)


class LazyPlanner(BalancedSavePlanner):
    """Plans by the `specs` and makes each tensor when it is written; what `read` does not know is zeros."""

    def __init__(self, specs: Mapping[str, TensorSpec], read: Callable[[str], Tensor | None], advance: Advance) -> None:
        super().__init__()
        self.specs, self.read, self.advance = specs, read, advance
        self.num_made = 0

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        spec = self.specs[index.fqn]
        tensor = self.read(index.fqn)
        self.num_made += 1
        self.advance(self.num_made, len(self.specs))
        return torch.zeros(spec.shape, dtype=spec.dtype) if tensor is None else tensor


def free_root(out: Path, step: int) -> Path:
    """The directory for the checkpoint; a run must not find one there that it would take instead."""
    root = out if out.name == "checkpoints" else out / "checkpoints"
    if found := [path for path in list_checkpoints(root) if step_of(path) >= step]:
        raise CheckpointError(
            f"{root}: holds {list_some([path.name for path in found])}, which a run would resume from instead of "
            f"{checkpoint_path(root, step).name}; choose another directory"
        )
    return root


def weight_specs(config: RunConfig) -> dict[str, TensorSpec]:
    table = parameter_table(config.model)
    halved = held_in_bf16(table, config.optim, config.precision)
    dtypes = {name: torch.bfloat16 if name in halved else torch.float32 for name in table}
    return {f"{PARAMETER_PREFIX}{name}": TensorSpec(row.shape, dtypes[name]) for name, row in table.items()}


def state_specs(config: RunConfig) -> dict[str, TensorSpec]:
    states = optimizer_states(parameter_table(config.model), config.optim)
    return {f"{_OPTIM_PREFIX}{name}": TensorSpec(shape, STATE_DTYPES[dtype]) for name, (shape, dtype) in states.items()}


def _new_meta(meta: CheckpointMeta, config: RunConfig, position: str) -> CheckpointMeta:
    """What it says about itself: written now, by this version, and permanent."""
    fields: dict[str, Any] = {"config": config.model_dump(mode="json"), "ephemeral": False}
    if position == "zero":
        fields |= {"step": 0, "phase": config.phases[0].name, "tokens_consumed": 0, "samples_consumed": {}}
        fields |= {"data_fingerprint": {}, "tokenizer_fingerprint": meta.tokenizer_fingerprint}
        return CheckpointMeta(**fields)
    written_now = {"created", "git_revision", "versions"}
    return CheckpointMeta(**{name: value for name, value in meta if name not in written_now} | fields)


def _files_of_source(checkpoint: Path) -> dict[str, bytes]:
    return {name: (checkpoint / name).read_bytes() for name in read_manifest(checkpoint).files if is_source_file(name)}


def write_checkpoint(final: Path, planner: LazyPlanner, meta: CheckpointMeta, files: Mapping[str, bytes]) -> None:
    partial = None
    try:
        partial = make_partial(final)
        plan = {name: torch.empty(spec.shape, dtype=spec.dtype, device="meta") for name, spec in planner.specs.items()}
        records = write_shards(partial, plan, planner, file_bytes=_FILE_BYTES)
        records |= write_files(partial, files)
        write_meta(partial, meta)
        write_manifest(partial, {**records, META_FILE: record_file(partial / META_FILE)})
        publish(partial, final)
    except OSError as error:
        raise CheckpointError(describe_os_error(error, f"writing {final}")) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)  # not there if all went well
