"""Batches ahead of time.

Reading processes prepare the batches that come next while the model computes. The processes are torch's DataLoader's;
which batch is to be read is a range of samples, so they share no state, and what they read does not depend on how
many they are.

A cluster's warning signals reach every process of a job, and a reading process that died of one would take the
trainer with it while it saves. Reading processes therefore end only when their parent ends them, or is gone.
"""

import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from glmforge.data.stream.batch import Batch
from glmforge.data.stream.plan import BatchRange
from glmforge.errors import DataError, GlmforgeError

_DEATHS = ("exited unexpectedly", "killed by signal")
"""What DataLoader's RuntimeError says when a reading process is gone."""

_OF_THE_PARENT = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}


class Batches(Protocol):
    """Any rank's slice of any range of samples; see `glmforge.data.stream.phase.PhaseStream`."""

    def batch(self, first: int, size: int, rank: int = 0, world: int = 1) -> Batch: ...


class Loader:
    """Iterates over one rank's share of batches; closing or dropping the iterator ends the reading processes.

    Args:
        stream: the phase's samples.
        batches: which to read, of all ranks together; taken up as they are needed, reading ahead included.
        rank: this process among the data ranks.
        world: number of data ranks.
        num_workers: reading processes; 0 reads in this process when a batch is requested.
        prefetch: batches that each reading process prepares ahead.
        pin_memory: hand out batches in page-locked memory; does nothing where there is no GPU.
    """

    def __init__(
        self,
        stream: Batches,
        batches: Iterable[BatchRange],
        *,
        rank: int = 0,
        world: int = 1,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        self._reader = DataLoader(
            _Batches(stream, rank, world),
            batch_size=None,
            sampler=batches,
            num_workers=num_workers,
            prefetch_factor=prefetch if num_workers else None,
            pin_memory=pin_memory and torch.cuda.is_available(),
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # or it would draw from, and so change, the global random state
        )

    def __iter__(self) -> Generator[Batch, None, None]:
        """The batches in order.

        Raises:
            DataError: a batch cannot be read, or a reading process was killed.
        """
        with _signals_held():  # which the processes inherit: they are born deaf, not deafened a moment later
            batches = iter(self._reader)
        try:
            while (batch := _next(batches)) is not None:
                if isinstance(batch, GlmforgeError):
                    raise batch
                yield batch
        finally:
            del batches  # ends its processes, which an error on its way up would keep alive


def _next(batches: Iterator[Batch | GlmforgeError]) -> Batch | GlmforgeError | None:
    try:
        return next(batches, None)
    except RuntimeError as error:
        if any(words in str(error) for words in _DEATHS):
            raise DataError(f"data.num_workers: {_one_line(error)}; out of memory? Try fewer workers") from error
        raise


class _Batches(Dataset[Batch | GlmforgeError]):
    """Range of samples -> the rank's batch, or why it failed: raised here, it would arrive with a traceback."""

    def __init__(self, stream: Batches, rank: int, world: int) -> None:
        self._stream, self._rank, self._world = stream, rank, world

    def __getitem__(self, batch: BatchRange) -> Batch | GlmforgeError:
        try:
            return self._stream.batch(batch.first, batch.size, self._rank, self._world)
        except GlmforgeError as error:
            return error


def _one_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[0].rstrip(". ")


@contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts(worker: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)  # where processes are not forked, nothing is inherited
    threading.Thread(target=_wait_for_the_parents_signal, args=(os.getppid(),), daemon=True).start()


def _wait_for_the_parents_signal(parent: int) -> None:
    while True:
        info = signal.sigwaitinfo(_OF_THE_PARENT)
        if info.si_signo == signal.SIGTERM and info.si_pid == parent:
            os._exit(0)
