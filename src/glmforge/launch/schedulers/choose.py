"""Which scheduler a launcher hands its jobs to."""

from glmforge.errors import LaunchError
from glmforge.launch.schedulers.base import Scheduler


def scheduler_of(launcher: str) -> Scheduler:
    """Raises `LaunchError` for a launcher that this version does not know."""
    raise LaunchError(f"{launcher}: no scheduler of this name is known")
