"""Save a run again and again while it trains: in the background, in two tiers, surviving disk errors.

    saver = CheckpointSaver(root, config.checkpoint, run_name=config.name)
    saver.save(step, tensors, meta, ephemeral=True)  # returns at once; from here the tensors must not change ...
    saver.finish_copy()  # ... until this returns, which is to be called before each update
    for report in saver.poll(): ...                  # what has become of earlier saves
    saver.save(last_step, tensors, meta, durable=True)
    saver.close()

One thread copies aside, writes, checks and publishes (`background`); retention follows. The copy runs beside the next
step's forward and backward pass, which change nothing that is saved; what is no tensor is taken at the call. There is
one save at a time: the next waits for the one before, and that counts as time blocked. All ranks agree on each save,
over a process group of its own, on gloo, so that neither the thread nor training takes the other's messages; planning
(Python, milliseconds per thousand tensors) holds the interpreter lock.

A save that fails (full disk, vanished directory, contents that read back differently) leaves the run going and nothing
of itself on the disk, and is reported; when more than `max_failed_saves` in a row have failed, the next call raises.
All ranks see the same outcomes in the same order. A save with `durable=True` returns when everything is on the disk
and in place, or raises.
"""

import logging
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from glmforge.checkpoint.collective import all_gather, communicating_over, rank, run_on_rank_zero, world_size
from glmforge.checkpoint.format.manifest import read_manifest
from glmforge.checkpoint.format.store import checkpoint_path, note_whole
from glmforge.checkpoint.node_local.parts_of_ranks import local_root
from glmforge.checkpoint.policy.background import BackgroundSaver, Job, SaveReport
from glmforge.checkpoint.policy.retain import apply_retention, retain_local
from glmforge.checkpoint.save import promote, save_checkpoint, save_local
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from glmforge.observe.alive import Alive, quiet

__all__ = ["CheckpointSaver", "SaveReport"]

logger = logging.getLogger(__name__)

_COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""How long ranks wait for the slowest disk. Ranks that died are noticed at once, by their closed connections."""


class CheckpointSaver(BackgroundSaver):
    """Saves under `root`, by way of the node's own disk if `config.local_dir` is set. All ranks use it together.

    Args:
        root: the run's checkpoints on storage that all nodes share.
        run_name: names the run's directory in `config.local_dir`.
    """

    def __init__(self, root: Path, config: CheckpointConfig, *, run_name: str, alive: Alive = quiet) -> None:
        super().__init__(root, config, alive)
        self.local_root = local_root(config.local_dir, run_name) if config.local_dir is not None else None
        self._group = dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT) if world_size() > 1 else None
        self._noted_whole = False

    def write(self, job: Job) -> tuple[Path, int]:
        with communicating_over(self._group):
            return self._write(job)

    def delete_old(self) -> None:
        with communicating_over(self._group):
            self._delete_old()

    def _write(self, job: Job) -> tuple[Path, int]:
        """Where the checkpoint lies now and how large it is."""
        verify, local = self.config.verify_after_save, self.local_root
        tensors = job.tensors()
        if local is None:
            path = save_checkpoint(
                self.root,
                job.step,
                tensors,
                job.meta,
                rng_state=job.rng_state,
                files=job.files,
                verify=verify,
                advance=self.advance,
            )
            return path, run_on_rank_zero(lambda: sum(record.size for record in read_manifest(path).files.values()))
        part = save_local(
            local,
            job.step,
            tensors,
            job.meta,
            rng_state=job.rng_state,
            files=job.files,
            verify=verify,
            advance=self.advance,
        )
        if not self._noted_whole:
            run_on_rank_zero(lambda: note_whole(self.root))
            self._noted_whole = True
        num_bytes = sum(all_gather(sum(record.size for record in part.files.values())))
        if job.meta.ephemeral:
            return checkpoint_path(local, job.step), num_bytes
        return promote(self.root, local, job.step, [part], verify=verify, advance=self.advance), num_bytes

    def _delete_old(self) -> None:
        """A checkpoint that cannot be deleted is no reason to call the new one a failure."""
        config = self.config
        try:
            apply_retention(self.root, config)
            if self.local_root is not None:
                retain_local(self.local_root, config.keep_ephemeral, self.root)
        except CheckpointError as error:
            if rank() == 0:
                logger.warning("could not delete old checkpoints: %s", error)
