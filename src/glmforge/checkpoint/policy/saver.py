"""Save a run again and again while it trains: in the background, in two tiers, and whatever the disk does.

    saver = CheckpointSaver(root, config.checkpoint, run_name=config.name)
    saver.save(step, tensors, meta, ephemeral=True)  # returns at once; from here the tensors must not change ...
    saver.finish_copy()  # ... until this returns, which is to be called before each update
    for report in saver.poll(): ...                  # what has become of earlier saves
    saver.save(last_step, tensors, meta, durable=True)
    saver.close()

One thread copies aside (`staging`), writes, checks and publishes; retention follows. The copy runs beside the next
step's forward and backward pass, which change nothing that is saved; what is no tensor is taken at the call. There is
one save at a time: the next waits for the one before, and that counts as time blocked. What the thread shares with
training:

* the process groups: it has one of its own, on gloo, so that neither takes the other's messages;
* the interpreter lock: writing, hashing and copying let go of it, planning (Python, milliseconds per thousand tensors)
  does not;
* nothing else: no generator, no CUDA stream, no tensor of the model.

Reading processes are forked at the start of a phase, also during a save: none was seen to hang because of it
(`docs/lab-notes.md`).

A save that fails (full disk, vanished directory, contents that read back differently) leaves the run going and nothing
of itself on the disk, and is reported; when more than `max_failed_saves` in a row have failed, the next call raises.
All ranks see the same outcomes in the same order. A save with `durable=True` returns when everything is on the disk
and in place, or raises.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from glmforge.checkpoint.collective import all_gather, communicating_over, rank, run_on_rank_zero, world_size
from glmforge.checkpoint.format.manifest import read_manifest
from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.format.store import checkpoint_path, note_whole
from glmforge.checkpoint.node_local.parts_of_ranks import local_root
from glmforge.checkpoint.policy.retain import apply_retention, retain_local
from glmforge.checkpoint.policy.staging import StagedCopy, Staging
from glmforge.checkpoint.save import promote, save_checkpoint, save_local
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError

logger = logging.getLogger(__name__)

_COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""How long ranks wait for the slowest disk. Ranks that died are noticed at once, by their closed connections."""


@dataclass(frozen=True)
class SaveReport:
    """What has become of a save. Bytes are those of all ranks."""

    step: int
    path: Path
    """Where it lies; if it failed, where it was to lie."""
    ephemeral: bool
    seconds_blocked: float
    """How long training waited: in the call, for the save before too, and in `finish_copy`. A wait of the GPU's own
    for its copy is not in it."""
    seconds_total: float
    """From the call until everything was on the disk, checked and in its last place."""
    num_bytes: int
    bytes_per_second: float
    error: str | None = None


@dataclass(frozen=True)
class _Job:
    step: int
    tensors: Callable[[], Mapping[str, Tensor]]
    """Gives them when they are there to be written."""
    meta: CheckpointMeta
    rng_state: Tensor | None
    started: float


class CheckpointSaver:
    """Saves under `root`, by way of the node's own disk if `config.local_dir` is set. All ranks use it together.

    Args:
        root: the run's checkpoints on storage that all nodes share.
        run_name: names the run's directory in `config.local_dir`.
    """

    def __init__(self, root: Path, config: CheckpointConfig, *, run_name: str) -> None:
        self.root, self.config = root, config
        self.local_root = local_root(config.local_dir, run_name) if config.local_dir is not None else None
        self._group = dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT) if world_size() > 1 else None
        self._noted_whole = False
        self._staging = Staging()
        self._copy: StagedCopy | None = None
        self._thread: threading.Thread | None = None
        self._outcome: SaveReport | BaseException | None = None
        self._blocked = 0.0
        self._reports: list[SaveReport] = []
        self._errors_in_a_row: list[str] = []

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the buffers that background saves copy into, so that not even the first one waits for fresh memory."""
        if self.config.background:
            self._staging.start(tensors).finish()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        meta: CheckpointMeta,
        *,
        rng_state: Tensor | None = None,
        ephemeral: bool = False,
        durable: bool = False,
    ) -> None:
        """Save the state as it is now. All ranks call this together; arguments are those of `save_checkpoint`.

        In the background `tensors` are still being copied when this returns: they must not be written to before
        `finish_copy` has been called. Everything else may change at once.

        With `durable=True` (a run's end) it returns when the checkpoint is in its last place, and raises
        `CheckpointError` if this failed. Otherwise it raises only if too many earlier saves in a row have failed.
        """
        started = time.perf_counter()
        self._join()
        if not durable:  # the last one is worth another try
            self._raise_if_too_many_failed()
        meta = meta.model_copy(update={"ephemeral": ephemeral})
        if self.config.background and not durable:
            copy = self._staging.start(tensors)
            job = _Job(step, copy.finish, meta, None if rng_state is None else rng_state.clone(), started)
            self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=True)
            self._thread.start()
            self._copy = copy
            self._blocked = time.perf_counter() - started
            return
        self._run(_Job(step, lambda: tensors, meta, rng_state, started))
        self._blocked = time.perf_counter() - started
        failed = self._take_outcome()
        if durable and failed is not None:
            raise CheckpointError(failed)
        self._raise_if_too_many_failed()

    def finish_copy(self) -> None:
        """Wait, if it must be, until the tensors of the last save may change. Nothing is communicated, or raised."""
        if self._copy is not None:
            started = time.perf_counter()
            self._copy.wait()
            self._copy = None
            self._blocked += time.perf_counter() - started

    def poll(self) -> list[SaveReport]:
        """Reports of the saves that have ended since the last call. This rank's own view: nothing is communicated."""
        if self._thread is not None and not self._thread.is_alive():
            self._join()
        reports, self._reports = self._reports, []
        return reports

    def wait(self) -> None:
        """Wait until no save is running. Raises `CheckpointError`, on all ranks, if too many in a row have failed."""
        self._join()
        self._raise_if_too_many_failed()

    def close(self) -> None:
        """Wait until no save is under way; nothing is raised, so that what ended the run is what is seen."""
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._outcome, BaseException):
            logger.warning("the last save did not finish: %s", self._outcome)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = self._copy = None
            self._take_outcome()

    def _take_outcome(self) -> str | None:
        """Note what has become of the save that has ended; its error, if it failed."""
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        self._reports.append(replace(outcome, seconds_blocked=self._blocked))
        self._errors_in_a_row = [] if outcome.error is None else [*self._errors_in_a_row, outcome.error]
        return outcome.error

    def _raise_if_too_many_failed(self) -> None:
        errors, allowed = self._errors_in_a_row, self.config.max_failed_saves
        if len(errors) > allowed:
            raise CheckpointError(
                f"{len(errors)} save{'s' if len(errors) > 1 else ''} in a row failed, more than "
                f"checkpoint.max_failed_saves = {allowed}; the last: {errors[-1]}"
            )

    def _run(self, job: _Job) -> None:
        try:
            with communicating_over(self._group):
                self._outcome = self._save(job)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that trains, by the next call
            self._outcome = error

    def _save(self, job: _Job) -> SaveReport:
        error, num_bytes = None, 0
        path = checkpoint_path(self.root, job.step)
        try:
            path, num_bytes = self._write(job)
        except CheckpointError as failure:
            error = str(failure)
        seconds = time.perf_counter() - job.started
        if error is None:
            self._delete_old()
        ephemeral = job.meta.ephemeral
        return SaveReport(job.step, path, ephemeral, 0.0, seconds, num_bytes, num_bytes / seconds, error)

    def _write(self, job: _Job) -> tuple[Path, int]:
        """Where the checkpoint lies now and how large it is."""
        verify, local = self.config.verify_after_save, self.local_root
        tensors = job.tensors()
        if local is None:
            path = save_checkpoint(self.root, job.step, tensors, job.meta, rng_state=job.rng_state, verify=verify)
            return path, run_on_rank_zero(lambda: sum(record.size for record in read_manifest(path).files.values()))
        part = save_local(local, job.step, tensors, job.meta, rng_state=job.rng_state, verify=verify)
        if not self._noted_whole:
            run_on_rank_zero(lambda: note_whole(self.root))
            self._noted_whole = True
        num_bytes = sum(all_gather(sum(record.size for record in part.files.values())))
        if job.meta.ephemeral:
            return checkpoint_path(local, job.step), num_bytes
        return promote(self.root, local, job.step, [part], verify=verify), num_bytes

    def _delete_old(self) -> None:
        """A checkpoint that cannot be deleted is no reason to call the new one a failure."""
        config = self.config
        try:
            apply_retention(self.root, config.keep_last, config.keep_every_steps, keep_ephemeral=config.keep_ephemeral)
            if self.local_root is not None:
                retain_local(self.local_root, config.keep_ephemeral, self.root)
        except CheckpointError as error:
            if rank() == 0:
                logger.warning("old checkpoints were not deleted: %s", error)
