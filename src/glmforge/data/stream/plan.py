"""Which samples the steps of a phase take, one batch after another.

A batch is a range of the phase's samples, all ranks together. The next one is found from the samples consumed and
from nothing else, so a run goes on at any sample, with another batch size or past samples that it omits, and a
phase of a billion steps is never a list.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from glmforge.config.phase import PhaseConfig


class BatchRange(NamedTuple):
    """Samples [first, first + size) of a phase: one optimizer step of all ranks."""

    first: int
    size: int

    @property
    def stop(self) -> int:
        return self.first + self.size


def planned_batches(phase: PhaseConfig, consumed: int, skipped: Sequence[Sequence[int]] = ()) -> Iterator[BatchRange]:
    """The batches that are left of a phase.

    Args:
        phase: its batch sizes and its length.
        consumed: samples that are behind; the first batch begins there.
        skipped: ranges [start, stop) to omit. A batch that would touch one is not taken, and the next begins at
            its stop.
    """
    num_samples, first = phase.num_samples, consumed
    while first < num_samples:
        batch = BatchRange(first, phase.batch_size_at(first))
        blocked = [stop for start, stop in skipped if start < batch.stop and first < stop]
        if blocked:
            first = max(blocked)
        else:
            yield batch
            first = batch.stop
