"""Does a checkpoint fit the run that needs to load it? First configurations are compared, then names, shapes, types.

DCP itself would load what it finds and convert types silently. A run that goes on from tensors it did not
mean is worse than one that does not start, so every difference is refused here. The tensors of the run are those of
all its ranks: a rank of a pipeline stage has but its layers.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from glmforge.checkpoint.collective import gather_distinct
from glmforge.checkpoint.compatible import check_compatible
from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.format.wording import list_some
from glmforge.errors import CheckpointError

RESERVED_PREFIXES = ("model", "optim", "rng")
"""What names of tensors begin with: weights and optimizer states of the run's model, generators. Those of a further
trained model begin with its name: `critic.model.lm_head.weight`."""


class HasSpec(Protocol):
    """A tensor, or what stands for one."""

    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...


class TensorSpec(NamedTuple):
    """Global shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def specs_of_all_ranks(tensors: Mapping[str, HasSpec]) -> dict[str, TensorSpec]:
    """The tensors that all ranks' `tensors` are together, by name. All ranks call this together."""
    own = {name: TensorSpec(tuple(tensors[name].shape), tensors[name].dtype) for name in sorted(tensors)}
    specs: dict[str, TensorSpec] = {}
    for of_some in gather_distinct(own):
        differing = [name for name in of_some if specs.get(name, of_some[name]) != of_some[name]]
        assert not differing, f"{differing[0]} is {specs[differing[0]]} on one rank, {of_some[differing[0]]} on another"
        specs |= of_some
    return specs


def check_fit(
    path: Path,
    stored: Mapping[str, TensorStorageMetadata],
    wanted: Mapping[str, TensorSpec],
    meta: CheckpointMeta,
    config: Mapping[str, Any] | None,
    *,
    convert: bool = False,
) -> list[str]:
    """Raise `CheckpointError` unless the run may go on from there and `stored` and `wanted` are the same tensors.

    `config` is the loading run's configuration as a mapping like `meta.config`; without it only names, shapes and types
    are compared; with `convert` types may differ. Returns the differences of configuration that the record of the run
    should keep, one line each.
    """
    if config is not None:
        _check_extra_models(path, extra_models(stored), extra_models(wanted))
    notes = _compare_configurations(path, meta, config) if config is not None else []
    differences = list(_differences(stored, wanted, types=not convert))
    if differences:
        cause = _likely_cause(meta, notes) if config is not None else ""
        raise CheckpointError(f"{path} does not fit this run: {'; '.join(differences)}{cause}")
    return notes


def extra_models(names: Iterable[str]) -> list[str]:
    """The further models, such as a critic, that tensors of these names belong to."""
    return sorted({name.partition(".")[0] for name in names} - set(RESERVED_PREFIXES))


def _check_extra_models(path: Path, there: list[str], here: list[str]) -> None:
    fix = "resume with the recipe that wrote it, or start a new run from it (init_from) in another output_dir"
    for name in there:
        if name not in here:
            raise CheckpointError(
                f"{path} does not fit this run: it contains another trained model, '{name}', which this run does not "
                f"train; {fix}"
            )
    for name in here:
        if name not in there:
            raise CheckpointError(
                f"{path} does not fit this run: it lacks the model '{name}', which this run trains; {fix}"
            )


def _compare_configurations(path: Path, meta: CheckpointMeta, config: Mapping[str, Any]) -> list[str]:
    try:
        return check_compatible(meta.config, config, meta.samples_consumed)
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit this run: {error}") from None


def _differences(
    stored: Mapping[str, TensorStorageMetadata], wanted: Mapping[str, TensorSpec], *, types: bool
) -> Iterator[str]:
    if missing := sorted(wanted.keys() - stored.keys()):
        yield f"it lacks {_count(missing)}: {list_some(missing)}"
    if unexpected := sorted(stored.keys() - wanted.keys()):
        yield f"it has {_count(unexpected)} that this run lacks: {list_some(unexpected)}"
    both = sorted(stored.keys() & wanted.keys())
    shapes = [
        f"{name} is {list(stored[name].size)} there and {list(wanted[name].shape)} here"
        for name in both
        if tuple(stored[name].size) != wanted[name].shape
    ]
    if shapes:
        yield f"{_count(shapes)} with another shape: {list_some(shapes)}"
    other_types = [
        f"{name} is {stored[name].properties.dtype} there and {wanted[name].dtype} here"
        for name in both
        if types and stored[name].properties.dtype != wanted[name].dtype
    ]
    if other_types:
        yield f"{_count(other_types)} with another dtype: {list_some(other_types)}"


def _count(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''}"


def _likely_cause(meta: CheckpointMeta, notes: list[str]) -> str:
    changed = [note for note in notes if note.startswith(("model.", "optim."))]
    if changed:
        return f". The configurations differ: {list_some(changed)}; undo that, or start in another output_dir"
    written_by = f"glmforge {meta.versions.get('glmforge', 'unknown')}, revision {meta.git_revision or 'unknown'}"
    return f". The configurations match, so the code differs: it was written by {written_by}"
