"""Save again and again beside training: one thread that copies aside, writes and reports; the caller decides how to
write.

Subclasses say how a checkpoint gets to the disk (`write`) and which older ones go (`delete_old`). This class has what
concerns training: the copy in memory (`staging`), one save at a time, the time that training waited, what is said of
failures. The thread shares with training the interpreter lock (writing, hashing and copying let go of it) and nothing
else: no generator, no CUDA stream, no tensor of the model.

Reading processes are forked at the start of a phase, also during a save: none was seen to hang because of it
(`docs/lab-notes/checkpoints.md`).
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.checkpoint.policy.staging import StagedCopy, Staging
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from glmforge.observe.alive import Alive, quiet
from glmforge.runtime.waiting import STEP_S, join

logger = logging.getLogger(__name__)


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
class Job:
    """A save that is due."""

    step: int
    tensors: Callable[[], Mapping[str, Tensor]]
    """Gives them when they are there to be written."""
    meta: CheckpointMeta
    rng_state: Tensor | None
    files: Mapping[str, bytes]
    durable: bool
    started: float


class BackgroundSaver(ABC):
    """Saves under `root`. All ranks use it together, and call the same methods in the same order.

    Args:
        alive: called as long as training waits for a save that gets on.
    """

    def __init__(self, root: Path, config: CheckpointConfig, alive: Alive = quiet) -> None:
        self.root, self.config, self.alive = root, config, alive
        self._has_advanced = False
        self._staging = Staging()
        self._copy: StagedCopy | None = None
        self._thread: threading.Thread | None = None
        self._outcome: SaveReport | BaseException | None = None
        self._blocked = 0.0
        self._reports: list[SaveReport] = []
        self._errors_in_a_row: list[str] = []

    @abstractmethod
    def write(self, job: Job) -> tuple[Path, int]:
        """Write the checkpoint; where it lies now and how large it is. Raises `CheckpointError`."""

    @abstractmethod
    def delete_old(self) -> None:
        """Delete what need not stay; nothing is raised."""

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
        files: Mapping[str, bytes] = {},
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
            rng_state = None if rng_state is None else rng_state.clone()
            job = Job(step, copy.finish, meta, rng_state, files, False, started)
            self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=True)
            self._thread.start()
            self._copy = copy
            self._blocked = time.perf_counter() - started
            return
        self._run(Job(step, lambda: tensors, meta, rng_state, files, durable, started))
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
            join(self._thread)
        if isinstance(self._outcome, BaseException):
            logger.warning("the last save failed: %s", self._outcome)

    def advance(self) -> None:
        """To be called by `write` for every piece; reports progress to the waiting caller."""
        self._has_advanced = True
        if self._thread is None:  # it is training that writes
            self._tell_advance()

    def _tell_advance(self) -> None:
        if self._has_advanced:
            self._has_advanced = False
            self.alive("saving a checkpoint")

    def _join(self) -> None:
        if self._thread is not None:
            while self._thread.is_alive():
                self._thread.join(STEP_S)
                self._tell_advance()
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
                f"{len(errors)} save{'s' if len(errors) > 1 else ''} in a row failed, exceeding "
                f"checkpoint.max_failed_saves = {allowed}; the last: {errors[-1]}"
            )

    def _run(self, job: Job) -> None:
        try:
            self._outcome = self._save(job)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that trains, by the next call
            self._outcome = error

    def _save(self, job: Job) -> SaveReport:
        error, num_bytes = None, 0
        path = checkpoint_path(self.root, job.step)
        try:
            path, num_bytes = self.write(job)
        except CheckpointError as failure:
            error = str(failure)
        seconds = time.perf_counter() - job.started
        if error is None:
            self.delete_old()
        ephemeral = job.meta.ephemeral
        return SaveReport(job.step, path, ephemeral, 0.0, seconds, num_bytes, num_bytes / seconds, error)
