"""One run at a time in a run's directory: rank 0 holds it, and all ranks hear of a refusal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmforge.checkpoint.collective import broadcast
from glmforge.errors import GlmforgeError
from glmforge.parallel.world import World
from glmforge.runtime.lease import Lease

POLL_S = 0.5


@contextmanager
def run_lock(directory: Path, world: World, lease_s: float) -> Iterator[None]:
    """Hold `directory` within the block. All ranks call this together; raises on all of them what rank 0 meets.

    Raises `HeldError` if another process works there; a holder that may be gone is waited for, for `lease_s` seconds.
    """
    lease = Lease(directory, "glmforge train", lease_s=lease_s)
    try:
        while not _attempt_together(lease, world):
            time.sleep(POLL_S)
        yield
    finally:
        lease.release()


def _attempt_together(lease: Lease, world: World) -> bool:
    """One attempt of rank 0, with the same outcome on all ranks."""
    outcome: bool | GlmforgeError = False
    if world.is_main:
        try:
            outcome = lease.attempt()
        except GlmforgeError as error:
            outcome = error
    outcome = broadcast(outcome, 0)
    if isinstance(outcome, GlmforgeError):
        raise outcome
    return outcome
