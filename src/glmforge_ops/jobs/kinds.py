"""A name among the jobs: of a job, of a sweep or of a chain.

All of them are directories side by side. Who names one of another kind is told so, and not that it is damaged.
"""

from pathlib import Path
from typing import Literal

from glmforge.config.launch import JOB_NAME
from glmforge.errors import LaunchError
from glmforge.files import shown

_FILES = {"job": "job.yaml", "sweep": "sweep.json", "chain": "chain.json"}
_COMMANDS = {"job": "jobs", "sweep": "sweep", "chain": "chain"}


def directory_of(jobs: Path, name: str, kind: Literal["sweep", "chain"]) -> Path:
    """Of the sweep or chain of this name, whether it is there or not.

    Raises `LaunchError` if it can be no name (a path, or nothing), or is the name of something else.
    """
    if not JOB_NAME.fullmatch(name):
        raise LaunchError(f"{shown(name) or '(nothing)'}: is no name of a {kind}; give that of one in {shown(jobs)}")
    root = jobs / name
    for other, file in _FILES.items():
        if other != kind and (root / file).exists():
            raise LaunchError(f"{name}: is a {other}, and no {kind}; see 'glmforge {_COMMANDS[other]} show {name}'")
    return root
