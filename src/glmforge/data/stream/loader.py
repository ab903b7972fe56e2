"""Batches ahead of time.

The loader walks through a phase's steps while reading processes prepare the next batches. The reading is
torch's DataLoader; what is to be read is a function of the step, so the whole state of a loader is how many
samples the run has consumed, and its batches do not depend on the number of reading processes.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from glmforge.data.stream.batch import Batch
from glmforge.data.stream.phase import PhaseStream
from glmforge.errors import DataError


class Loader:
    """Iterates over one rank's batches of a phase, from where it stands to the phase's end.

    Args:
        stream: the phase's samples.
        num_steps: length of the phase.
        rank: this process among the data ranks.
        world: number of data ranks.
        num_workers: reading processes; 0 reads in this process when a batch is asked for.
        prefetch: batches that each reading process prepares ahead.

    Attributes:
        samples_consumed: samples of the phase in the batches handed out so far, over all ranks. Set it to
            resume.
    """

    def __init__(
        self,
        stream: PhaseStream,
        num_steps: int,
        *,
        rank: int = 0,
        world: int = 1,
        num_workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        self.samples_consumed = 0
        self._batch_size = stream.batch_size
        self._num_steps = num_steps
        self._batches = _Batches(stream, rank, world)
        self._num_workers = num_workers
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left; one counts as consumed from when it is handed out.

        Raises:
            DataError: `samples_consumed` lies inside a batch, as after a change of the batch size.
        """
        first_step, inside = divmod(self.samples_consumed, self._batch_size)
        if inside:
            raise DataError(
                f"batch_size {self._batch_size}: does not divide the {self.samples_consumed:,} samples of "
                "the phase that were consumed before; resume with the batch size of the checkpoint"
            )
        reader = DataLoader(
            self._batches,
            batch_size=None,
            sampler=range(first_step, self._num_steps),
            num_workers=self._num_workers,
            prefetch_factor=self._prefetch if self._num_workers else None,
            generator=torch.Generator(),  # or it would draw from, and so change, the global random state
        )
        for batch in reader:
            self.samples_consumed += self._batch_size
            yield batch


class _Batches(Dataset[Batch]):
    """Step -> the rank's batch."""

    def __init__(self, stream: PhaseStream, rank: int, world: int) -> None:
        self._stream, self._rank, self._world = stream, rank, world

    def __getitem__(self, step: int) -> Batch:
        return self._stream.batch(step, self._rank, self._world)
