"""Ranks that outlive the supervisor that started them: they end by themselves, and are waited for."""

import socket
import time
from collections.abc import Collection
from pathlib import Path

from glmforge.observe.job_records import AttemptDirectory, RankRecord
from glmforge_ops.jobs.supervisor.bell import Bell
from glmforge_ops.jobs.supervisor.verdict.evidence import read_ranks

_MARGIN_S = 10.0


def wait_for_ranks(directory: AttemptDirectory, lost: Collection[str], grace_s: float, bell: Bell) -> None:
    """Until none runs any more, as far as can be seen from here, at most for their grace and some seconds.

    Those of nodes in `lost` are not waited for: nobody can say when they have ended.
    """
    deadline = time.monotonic() + grace_s + _MARGIN_S
    while time.monotonic() < deadline:
        ranks, _ = read_ranks(directory.root)
        if not any(_may_run(rank) for rank in ranks if rank.node not in lost):
            return
        bell.wait(0.2)


def _may_run(rank: RankRecord) -> bool:
    if rank.ended is not None:
        return False
    return rank.host != socket.gethostname() or Path(f"/proc/{rank.pid}").exists()
