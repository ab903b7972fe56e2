"""How many processor cores a process may use, and what keeps threads that wait from taking them from others.

On a CPU every operator is shared by a team of OpenMP threads that meet at its end. Whoever comes first waits by
spinning, which is fastest on idle cores; where other processes want them too, a thread spins away the very core that
its teammate needs. libgomp, which PyTorch is built with, spins for some milliseconds by default; `limit_spinning` cuts
that to the microseconds that pass between two operators. On busy cores: `docs/lab-notes/kernels.md`.

Nothing here imports torch: the environment has to be set before it is.
"""

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

logger = logging.getLogger(__name__)

SPIN_COUNT = "1000"
"""What libgomp itself takes once a process has more threads than cores; it cannot see other processes' threads."""
WAIT_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Let idle OpenMP threads sleep soon, unless the user has said how they wait. Returns whether anything was set.

    To be called before torch is imported; processes that this one starts inherit it.
    """
    if any(name in environment for name in WAIT_SETTINGS):
        return False
    environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    environment["KMP_BLOCKTIME"] = "0"  # milliseconds; for a PyTorch built with Intel's OpenMP
    return True


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that this process may use: those it is bound to, or fewer where a container's quota allows fewer."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(float(bound), _quota(cgroup))


def busy_cores() -> float:
    """Cores that were wanted over the last minute, by all processes (the load average); 0 where it is not known."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def warn_if_crowded(num_threads: int, cores: float, busy: float) -> bool:
    """Log one line if `num_threads` are more than the cores or than other processes leave free. Returns whether."""
    if num_threads > cores:
        logger.warning("%d threads compete for %g cores: set OMP_NUM_THREADS=%d", num_threads, cores, max(1, cores))
    elif num_threads > 1 and busy > cores:
        logger.warning(
            "other processes use %.1f of %g cores: training will be slow; OMP_NUM_THREADS=1 may be faster", busy, cores
        )
    else:
        return False
    return True


def _quota(cgroup: Path) -> float:
    """Cores by the quota of control groups, version 2 or 1; infinite without one."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return float("inf")
    return float("inf") if limit in ("max", "-1") else int(limit) / int(period)
