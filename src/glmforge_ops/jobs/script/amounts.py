"""Times and amounts as schedulers write them, and how many nodes a job asks for."""

import math
import re

from glmforge.config.launch import LaunchConfig

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def seconds(text: str) -> float:
    """Of a time as Slurm writes it; infinite for UNLIMITED and the like.

    Without days the last number is seconds, but a single one minutes; with days the first one is hours.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        return math.inf
    parts = [int(part) for part in found["rest"].split(":")]
    if found["days"] is not None:
        hours, minutes, rest = [*parts, 0, 0][:3]
        return ((int(found["days"]) * 24 + hours) * 60 + minutes) * 60 + rest
    if len(parts) == 1:
        return parts[0] * 60
    hours, minutes, rest = [0, *parts][-3:]
    return (hours * 60 + minutes) * 60 + rest


def hours_minutes_seconds(text: str) -> str:
    """A time of Slurm's as PBS writes it, HH:MM:SS."""
    minutes, rest = divmod(int(seconds(text)), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def megabytes(text: str) -> int:
    """Of 64G, 1T, or a plain number, which is megabytes."""
    return math.ceil(int(text.rstrip("KMGT")) * _UNITS[text[-1] if text[-1] in _UNITS else "M"])


def least_nodes(launch: LaunchConfig) -> int:
    """With fewer it never starts. Slurm takes a range of nodes; elsewhere spares are asked for like the others."""
    if launch.launcher == "slurm":
        return launch.supervisor.min_nodes or launch.nodes
    return launch.nodes + launch.supervisor.spare_nodes


def most_nodes(launch: LaunchConfig) -> int:
    """It has use for no more, spares included."""
    if launch.launcher == "slurm":
        return max(launch.nodes, launch.supervisor.max_nodes or 0) + launch.supervisor.spare_nodes
    return least_nodes(launch)
