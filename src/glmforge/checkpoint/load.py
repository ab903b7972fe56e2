"""Read a checkpoint into tensors that exist already, on as many ranks as the run has now.

Nothing is read before the checkpoint has proved whole and every name, shape and type has proved to fit: a
refused load leaves the tensors as they were. The layout may be another one than saved it, in every axis: a part
of a tensor knows where it lies in the whole, and each rank reads the stored parts that overlap its own. The ranks
divide the checking of checksums among themselves.
"""

import logging
import math
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from glmforge.checkpoint.collective import all_gather, rank, run_each, run_on_rank_zero, run_together, world_size
from glmforge.checkpoint.fit import check_fit, specs_of_all_ranks
from glmforge.checkpoint.format.manifest import find_problems, summarize_problems
from glmforge.checkpoint.format.meta import CheckpointMeta, read_meta
from glmforge.checkpoint.format.read import CachingReader, read_into, stored_tensors
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, is_lite
from glmforge.checkpoint.format.store import (
    checkpoint_path,
    delete_checkpoint,
    list_checkpoints,
    raise_none_whole,
    set_aside_after,
    step_of,
    warn_broken,
    was_ever_whole,
)
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.node_local.local import LocalStep, find_local_problems, is_one_place, own_share, survey
from glmforge.checkpoint.node_local.pending import clear_up
from glmforge.checkpoint.save import RNG_PREFIX, promote, rng_name
from glmforge.errors import CheckpointError

logger = logging.getLogger(__name__)


class _Candidate(NamedTuple):
    """A checkpoint on shared storage (`path`), or one on nodes' own disks."""

    step: int
    path: Path | None
    local: LocalStep | None


def load_latest(
    root: Path,
    tensors: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    local_root: Path | None = None,
    before_step: int | None = None,
    step: int | None = None,
) -> tuple[Path, CheckpointMeta] | None:
    """Load the newest complete checkpoint under `root` or on the nodes' own disks, or None. All
    ranks call this together.

    Args:
        local_root: the run's directory on this node's own disk. A checkpoint there is read from there if all
            ranks see it, else the nodes first put it together under `root`.
        before_step: take one of an earlier step than this, and set later ones aside permanently: the run rolls back.
        step: take that of this step and no other. Later ones are left to the caller.

    A newer one that is broken, be it by a single flipped bit, is named in a warning and the next older one
    taken. What is left on the nodes of a run that died before its first checkpoint was whole is removed, and the
    result is None. Raises `CheckpointError` if there are checkpoints but none is whole, or if the newest complete one
    does not fit; with `step` also if that step does not exist.
    """
    broken: list[str] = []
    candidates = _candidates(root, local_root, before_step)
    if step is not None:
        candidates = _of_step(step, candidates, root)
    for candidate in candidates:
        problems = _find_problems_of(candidate, local_root)
        if not problems:
            path, meta = _load_candidate(candidate, root, local_root, tensors, config)
            if before_step is not None:
                set_aside_everywhere(meta.step, root, local_root)
            return path, meta
        if rank() == 0:
            warn_broken(candidate.path or checkpoint_path(cast(Path, local_root), candidate.step), problems)
        broken += problems
    if broken and step is not None:
        raise CheckpointError(
            f"{checkpoint_path(root, step)} is incomplete: {summarize_problems(broken)}; use another checkpoint"
        )
    if broken and (local_root is None or before_step is not None or not _never_completed(root, candidates)):
        raise_none_whole(root, broken)
    if broken and local_root is not None:
        _remove_begun(root, local_root)
    return None


def load_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    prefix: str = "",
    only: Set[str] | None = None,
    convert: bool = False,
    verify: bool = True,
) -> CheckpointMeta:
    """Load the checkpoint directory `path` in place into `tensors`. All ranks call this together.

    The stored names that begin with `prefix`, or those of them in `only`, must be exactly those that the `tensors` of
    all ranks together have, with the same global shapes and types; which rank holds which part of which of them may
    differ from when they were saved. `config` is this run's configuration, to name the cause if they do not fit.
    `convert` lets types differ: values are converted to those of `tensors`.
    `verify=False` compares sizes but not checksums. Raises `CheckpointError`, on all ranks the same.
    """
    problems = _find_problems_together(path, checksums=verify)
    if problems:
        raise CheckpointError(f"{path} is incomplete: {summarize_problems(problems)}; use an older checkpoint")
    return _load_whole(path, tensors, config, prefix, only, convert=convert)


def load_rng_state(path: Path) -> Tensor | None:
    """This rank's generator state in the checkpoint `path` (uint8), None if none was saved.

    With another number of ranks than saved it, no rank's state has a successor, and the result is None on all; as it
    is where some rank's was not saved, or lay on a node that is gone. All ranks call this together.
    """
    if read_meta(path).world_size != world_size():
        return None
    reader = CachingReader(path)
    stored = stored_tensors(reader.read_metadata(), rng_name(rank())).get(rng_name(rank()))
    if not all(all_gather(stored is not None)) or stored is None:
        return None
    state = torch.empty(stored.size, dtype=stored.properties.dtype)
    read_into({rng_name(rank()): state}, reader)
    return state


def _candidates(root: Path, local_root: Path | None, before_step: int | None) -> list[_Candidate]:
    """All checkpoints, newest first; of one step, those on shared storage first."""
    run_each(lambda: None)  # no rank writes any more, so whole but unpublished saves would stay unpublished
    run_on_rank_zero(lambda: clear_up(root))
    found = [_Candidate(step_of(path), path, None) for path in run_on_rank_zero(lambda: list_checkpoints(root))]
    if local_root is not None:
        found += [_Candidate(local.step, None, local) for local in survey(local_root)]
    stop = math.inf if before_step is None else before_step
    return sorted((c for c in found if c.step < stop), key=lambda c: -c.step)  # stable: in a step, the order is kept


def _of_step(step: int, candidates: list[_Candidate], root: Path) -> list[_Candidate]:
    """Those of one step. Raises `CheckpointError`, which lists the others, if it does not exist."""
    found = [candidate for candidate in candidates if candidate.step == step]
    if not found:
        steps = sorted({candidate.step for candidate in candidates}, reverse=True)
        there = f"available: {list_some([f'step-{other}' for other in steps])}" if steps else "there are none"
        raise CheckpointError(f"{root}: has no checkpoint of step {step:,}; {there}")
    return found


def _find_problems_of(candidate: _Candidate, local_root: Path | None) -> list[str]:
    if candidate.path is not None:
        return _find_problems_together(candidate.path, checksums=True)
    assert candidate.local is not None
    assert local_root is not None
    if candidate.local.is_incomplete:
        return [candidate.local.describe()]
    return find_local_problems(local_root, candidate.local)


def _never_completed(root: Path, candidates: list[_Candidate]) -> bool:
    """Whether the run has never had a complete checkpoint: these are what it was writing when it died."""
    found = [candidate.local for candidate in candidates]
    if not all(local is not None and local.is_incomplete for local in found):
        return False
    # Ranks that save without a word between them say "saved" of their own part.
    alone = any(part.sufficient for local in found if local is not None for part in local.parts)
    return run_on_rank_zero(lambda: not was_ever_whole(root, by_events=not alone))


def _remove_begun(root: Path, local_root: Path) -> None:
    def remove() -> None:
        for path in list_checkpoints(local_root):
            with suppress(FileNotFoundError):  # the other ranks of the node are at it as well
                delete_checkpoint(path)

    run_each(remove)
    if rank() == 0:
        logger.warning("%s: no complete checkpoint yet; the run starts over, and incomplete saves are removed", root)


def _load_candidate(
    candidate: _Candidate,
    root: Path,
    local_root: Path | None,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any] | None,
) -> tuple[Path, CheckpointMeta]:
    path = candidate.path
    if path is None:
        assert candidate.local is not None
        assert local_root is not None
        path = checkpoint_path(local_root, candidate.step)
        if not candidate.local.is_everywhere and not is_one_place(local_root):
            path = promote(root, local_root, candidate.step, own_share(local_root, candidate.local))
    return path, _load_whole(path, tensors, config)


def set_aside_everywhere(step: int, root: Path, local_root: Path | None, *, keep: bool = False) -> list[str]:
    """`set_aside_after` under `root` and on the nodes' own disks; names, as rank 0 sees them. All ranks together."""
    aside = run_on_rank_zero(lambda: set_aside_after(root, step, keep=keep))
    if local_root is not None:
        aside += run_each(lambda: set_aside_after(local_root, step, keep=keep))
    if aside and rank() == 0:
        logger.info("rolling back to step %d; set aside: %s", step, ", ".join(path.name for path in aside))
    return [path.name for path in aside]


def _find_problems_together(path: Path, *, checksums: bool) -> list[str]:
    shares = run_together(lambda: find_problems(path, checksums=checksums, part=rank(), num_parts=world_size()))
    return sorted({problem for share in shares for problem in share})


def _load_whole(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any] | None,
    prefix: str = "",
    only: Set[str] | None = None,
    *,
    convert: bool = False,
) -> CheckpointMeta:
    reader = CachingReader(path)
    if run_each(lambda: is_lite(path)):
        tensors = _without_moments(path, tensors)
    wanted = specs_of_all_ranks(tensors)

    def check() -> CheckpointMeta:
        meta = read_meta(path)
        stored = stored_tensors(reader.read_metadata(), prefix)
        asked = {n: s for n, s in stored.items() if not n.startswith(RNG_PREFIX) and (only is None or n in only)}
        check_fit(path, asked, wanted, meta, config, convert=convert)
        return meta

    meta = run_each(check)
    run_each(lambda: read_into(tensors, reader))
    return meta


def _without_moments(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a checkpoint of mode lite has; the optimizer begins anew, which is said."""
    moments = [tensor for name, tensor in tensors.items() if not name.startswith(PARAMETER_PREFIX)]
    for tensor in moments:
        tensor.detach().zero_()
    if moments and rank() == 0:
        logger.warning(
            "%s has only weights and data position (checkpoint.mode lite); optimizer moments and RNG restart",
            path,
        )
    return {name: tensor for name, tensor in tensors.items() if name.startswith(PARAMETER_PREFIX)}
