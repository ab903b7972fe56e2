"""Save adapters while a run trains, each rank for itself: no collective, no message, no byte between ranks.

    saver = AdapterSaver(root, config.checkpoint, tensors, info, run_name=config.name)  # all ranks together, once
    saver.save(step, tensors, meta, rng_state=state)    # from this step on as `CheckpointSaver`

What a save of a whole model must agree on at every step is known here from the start: who writes what (`layout`). How
the ranks know that a checkpoint is whole, without asking each other:

* **On storage that all nodes share** each writes its files and its part into one hidden directory, and the rank that
comes
  last publishes it (`node_local.pending`). It also deletes what `keep_last` does not keep; a whole newer checkpoint is
  then in its place, so the last good one stays.
* **On nodes' own disks** (`checkpoint.local_dir`) each writes into its node's `step-N`, and the parts of all ranks of
  a copy make it whole, as of every node-local checkpoint. Both tiers stay there: nothing is copied over the network
  until a resume needs it, or `glmforge adapter gather` collects it. No node sees whether the others have written, so
  it deletes by what it can know: a rank that fails says so in the trainer's next step, beside the other votes
  (`failed_elsewhere`), and by two saves later every rank has heard. Only saves that are at least so old and of which
  nothing was heard count as good; the newest `keep_last` good ones and all that are newer stay.

A rank that cannot write (a full disk) removes what it has written and reports it; the others go on, and the checkpoint
is never published. If more than `max_failed_saves` in a row have failed on a rank, it ends, and with it the run.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from glmforge.checkpoint.adapter.layout import agree
from glmforge.checkpoint.adapter.write import AdapterInfo, save_rank
from glmforge.checkpoint.collective import run_each, run_on_rank_zero
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX
from glmforge.checkpoint.format.store import (
    checkpoint_path,
    delete_checkpoint,
    list_checkpoints,
    note_whole,
    remove_leftovers,
    step_of,
)
from glmforge.checkpoint.node_local.local import place_of, survey
from glmforge.checkpoint.node_local.parts_of_ranks import local_root
from glmforge.checkpoint.node_local.pending import (
    clear_up,
    is_pending,
    pending_path,
    publish_if_whole,
    said_to_have_failed,
)
from glmforge.checkpoint.policy.background import BackgroundSaver, Job
from glmforge.checkpoint.policy.retain import delete_old_checkpoints
from glmforge.checkpoint.save import with_rng_state
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from glmforge.runtime.os_errors import describe_os_error

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S = 1800.0
_LOOK_EVERY_S = 0.05
_HEARD_AFTER = 2
"""Saves after which every rank has heard if one has failed: the failure is known at the next one, and voted on in the
step after that."""


@dataclass(frozen=True)
class _Local:
    """A save on nodes' own disks that this rank has come to the end of."""

    number: int
    step: int
    ephemeral: bool


class AdapterSaver(BackgroundSaver):
    """Saves adapters under `root`, or on the node's own disk if `config.local_dir` is set.

    Args:
        root: the run's checkpoints on storage that all nodes share.
        tensors: this rank's part of what will be saved, as later saves pass it; of a mode other than full only the
            parameters ("model.<name>") are saved.
        run_name: names the run's directory in `config.local_dir`.
        writes_files: this rank's saves may have `files`.

    All ranks make it together; that is the only time that they communicate.
    """

    def __init__(
        self,
        root: Path,
        config: CheckpointConfig,
        tensors: Mapping[str, Tensor],
        info: AdapterInfo,
        *,
        run_name: str,
        rng_state: Tensor | None = None,
        writes_files: bool = False,
    ) -> None:
        super().__init__(root, config)
        self.info = info
        self.local_root = local_root(config.local_dir, run_name) if config.local_dir is not None else None
        place = self.local_root or root
        run_each(lambda: place.mkdir(parents=True, exist_ok=True))
        where = ("shared",) if self.local_root is None else place_of(place)
        self.plan = agree(self._saved(tensors, rng_state), where, writes_files=writes_files)
        self._number = 0
        self._local: list[_Local] = []
        self._failed: set[int] = set()
        self._published = False
        if self.local_root is None:
            run_on_rank_zero(lambda: _clear_up_all(root))
        else:
            self._local = self._found_locally(self.local_root)

    def failed_elsewhere(self) -> None:
        """Some rank has said that its last save failed: neither this save nor the one before counts as good."""
        self._failed |= {self._number, self._number - 1}

    def write(self, job: Job) -> tuple[Path, int]:
        self._number += 1
        save = f"{self.plan.session}-{self._number:08d}"
        root, step = self.local_root or self.root, job.step
        tensors = self._saved(job.tensors(), job.rng_state)
        is_local = self.local_root is not None
        directory = checkpoint_path(root, step) if is_local else pending_path(root, step, save)
        self._published = False
        if self.plan.rank in self.plan.slices:
            verify = self.config.verify_after_save
            save_rank(directory, self.plan, tensors, job.meta, self.info, save=save, files=job.files, verify=verify)
            self._published = not is_local and _publish(root, step, save)
        if is_local:
            self._local = [one for one in self._local if one.step < step]  # later ones are of a course that was left
            self._local.append(_Local(self._number, step, job.meta.ephemeral))
        elif job.durable:
            self._published |= _wait_until_published(root, step, save)
        return checkpoint_path(root, step), self.plan.num_bytes

    def delete_old(self) -> None:
        with _or_warned():
            if self.local_root is not None:
                self._delete_local(self.local_root)
            elif self._published:
                clear_up(self.root, before=f"{self.plan.session}-{self._number:08d}")
                self._delete_shared()

    def _delete_shared(self) -> None:
        for _ in delete_old_checkpoints(self.root, self.config):
            pass

    def _found_locally(self, root: Path) -> list[_Local]:
        """What earlier starts have left whole, oldest first. Deleted is what is incomplete and not newer than the
        newest, here or on shared storage, and there what was assembled to go on from and need not stay."""
        found = survey(root)
        whole = [one for one in reversed(found) if not one.is_incomplete]
        newest = max([one.step for one in whole] + [step_of(path) for path in list_checkpoints(self.root)], default=-1)
        with _or_warned():
            remove_leftovers(checkpoint_path(root, 0))
            for one in found:
                if one.is_incomplete and one.step <= newest:
                    with suppress(FileNotFoundError):  # the other ranks of the node are at it as well
                        delete_checkpoint(checkpoint_path(root, one.step))
                        logger.warning("deleted %s: %s", checkpoint_path(root, one.step), one.describe())
            if self.plan.rank == 0:
                self._delete_shared()
                if whole:
                    note_whole(self.root)
        return [_Local(-_HEARD_AFTER, one.step, one.ephemeral) for one in whole]

    def _delete_local(self, root: Path) -> None:
        config = self.config
        heard = [one for one in self._local if one.number <= self._number - _HEARD_AFTER]
        good = [one for one in heard if one.number not in self._failed]
        if not good:
            return
        if self.plan.rank == 0:
            note_whole(self.root)
        doomed = [one for one in heard if one not in good and one.step < good[-1].step]
        doomed += [one for one in good if one.ephemeral][: -config.keep_ephemeral]
        permanent, every = [one for one in good if not one.ephemeral], config.keep_every_steps
        doomed += [one for one in permanent[: -config.keep_last] if every is None or one.step % every]
        for one in doomed:
            with suppress(FileNotFoundError):  # the other ranks of the node are at it as well
                delete_checkpoint(checkpoint_path(root, one.step))
        self._local = [one for one in self._local if one not in doomed]

    def _saved(self, tensors: Mapping[str, Tensor], rng_state: Tensor | None) -> dict[str, Tensor]:
        if self.info.mode == "full":
            return with_rng_state(tensors, rng_state)
        return {name: tensor for name, tensor in tensors.items() if name.startswith(PARAMETER_PREFIX)}


def _clear_up_all(root: Path) -> None:
    """At the start of a run, before anything writes or deletes there."""
    clear_up(root)
    remove_leftovers(checkpoint_path(root, 0))


@contextmanager
def _or_warned() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("could not delete old checkpoints: %s", describe_os_error(error))


def _publish(root: Path, step: int, save: str) -> bool:
    """`publish_if_whole`; what cannot be published now is at the next start."""
    try:
        return publish_if_whole(root, step, save)
    except OSError as error:
        raise CheckpointError(f"step {step} could not be published: {describe_os_error(error)}") from error


def _wait_until_published(root: Path, step: int, save: str) -> bool:
    """Wait for the other ranks; whether it was this one that published. Raises `CheckpointError` if one has failed."""
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while is_pending(root, step, save) or not checkpoint_path(root, step).exists():
        if _publish(root, step, save):
            return True
        if failures := said_to_have_failed(pending_path(root, step, save)):
            raise CheckpointError(failures[0])
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"{pending_path(root, step, save)}: timed out after {_LONGEST_WAIT_S:.0f} s waiting for all ranks to "
                "write; put output_dir on storage that all nodes share, and use checkpoint.local_dir for local disks"
            )
        time.sleep(_LOOK_EVERY_S)
    return False
