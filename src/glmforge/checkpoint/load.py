"""Read a checkpoint into tensors that exist already, on as many ranks as the run has now.

Nothing is read before the checkpoint has proved whole and every name, shape and type has proved to fit: a
refused load leaves the tensors as they were. The layout may be another one than saved it, in every axis: a part
of a tensor knows where it lies in the whole, and each rank reads the stored parts that overlap its own. The ranks
divide the checking of checksums among themselves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from glmforge.checkpoint.collective import rank, run_each, run_on_rank_zero, run_together, world_size
from glmforge.checkpoint.fit import check_fit, specs_of_all_ranks
from glmforge.checkpoint.manifest import find_problems, summarize_problems
from glmforge.checkpoint.meta import CheckpointMeta, read_meta
from glmforge.checkpoint.read import CachingReader, StoredTensors, read_into, stored_tensors
from glmforge.checkpoint.save import RNG_PREFIX, rng_name
from glmforge.checkpoint.store import list_checkpoints, raise_none_whole, warn_broken
from glmforge.errors import CheckpointError


def load_latest(
    root: Path, tensors: Mapping[str, Tensor], *, config: Mapping[str, Any] | None = None
) -> tuple[Path, CheckpointMeta] | None:
    """Load the newest whole checkpoint under `root`; None if there is none at all. All ranks call this
    together.

    A newer one that is broken, be it by a single flipped bit, is named in a warning and the next older one
    taken. Raises `CheckpointError` if there are checkpoints but none is whole, or if the newest whole one
    does not fit.
    """
    broken: list[str] = []
    for path in run_on_rank_zero(lambda: list_checkpoints(root)):
        problems = _find_problems_together(path, checksums=True)
        if not problems:
            return path, _load_whole(path, tensors, config, prefix="")
        if rank() == 0:
            warn_broken(path, problems)
        broken += problems
    if broken:
        raise_none_whole(root, broken)
    return None


def load_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    prefix: str = "",
    verify: bool = True,
) -> CheckpointMeta:
    """Load the checkpoint directory `path` in place into `tensors`. All ranks call this together.

    The stored names that begin with `prefix` must be exactly those that the `tensors` of all ranks together have,
    with the same global shapes and types; which rank holds which part of which of them may differ from when they
    were saved. `config`
    is this run's configuration, to name the cause if they do not fit. `verify=False` compares sizes but not
    checksums. Raises `CheckpointError`, on all ranks the same.
    """
    problems = _find_problems_together(path, checksums=verify)
    if problems:
        raise CheckpointError(f"{path} is not whole: {summarize_problems(problems)}; take an older checkpoint")
    return _load_whole(path, tensors, config, prefix)


def load_rng_state(path: Path) -> Tensor | None:
    """This rank's generator state in the checkpoint `path` (uint8), None if none was saved.

    With another number of ranks than saved it, no rank's state has a successor, and the result is None on
    all.
    """
    if read_meta(path).world_size != world_size():
        return None
    return StoredTensors(path, verify=False).get(rng_name(rank()))


def _find_problems_together(path: Path, *, checksums: bool) -> list[str]:
    shares = run_together(lambda: find_problems(path, checksums=checksums, part=rank(), num_parts=world_size()))
    return sorted({problem for share in shares for problem in share})


def _load_whole(
    path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None, prefix: str
) -> CheckpointMeta:
    reader = CachingReader(path)
    wanted = specs_of_all_ranks(tensors)

    def check() -> CheckpointMeta:
        meta = read_meta(path)
        stored = stored_tensors(reader.read_metadata(), prefix)
        check_fit(path, {n: s for n, s in stored.items() if not n.startswith(RNG_PREFIX)}, wanted, meta, config)
        return meta

    meta = run_each(check)
    run_each(lambda: read_into(tensors, reader))
    return meta
