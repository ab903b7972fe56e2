"""What a checkpoint says about itself: `meta.json`, small and readable without torch's formats.

It holds the position in the training (step, tokens, samples of each phase), the identity of what was trained
on, and where the run came from (config, code, libraries). The tensors are in the shards beside it.
"""

import functools
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

import glmforge
from glmforge.checkpoint.collective import world_size
from glmforge.config.model import Strict
from glmforge.errors import CheckpointError

META_FILE = "meta.json"
FORMAT_VERSION = 1

_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors")


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of glmforge, Python and the libraries that can change results."""
    versions = {"glmforge": glmforge.__version__, "python": platform.python_version()}
    return versions | {library: metadata.version(library) for library in _LIBRARIES}


@functools.cache
def git_revision() -> str | None:
    """Commit of the repository that tracks this package, '+dirty' if files differ; None outside of one."""
    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
    commit = _git("rev-parse", "HEAD") if tracked else None
    return commit and commit + ("+dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class CheckpointMeta(Strict):
    """The contents of `meta.json`. What has a default is filled in by the machine that saves."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a hook's state may hold them

    format_version: PositiveInt = FORMAT_VERSION
    step: NonNegativeInt = Field(description="optimizer steps done")
    phase: str = Field(description="phase that the last step belonged to")
    tokens_consumed: NonNegativeInt = Field(description="over all phases and ranks")
    samples_consumed: dict[str, int] = Field(description="phase name -> samples, the loader's whole state")
    config: dict[str, Any] = Field(description="the run's effective configuration")
    data_fingerprint: str
    tokenizer_fingerprint: str
    hooks: dict[str, Any] = Field(default={}, description="hook name -> its JSON state")
    world_size: PositiveInt = Field(default_factory=world_size)
    created: str = Field(default_factory=_now, description="UTC, ISO 8601")
    git_revision: str | None = Field(default_factory=git_revision)
    versions: dict[str, str] = Field(default_factory=library_versions)


def read_meta(path: Path) -> CheckpointMeta:
    """Read `meta.json` of a checkpoint directory. Raises `CheckpointError` if it cannot be understood."""
    file = path / META_FILE
    try:
        text = file.read_text(encoding="utf-8")
        return CheckpointMeta.model_validate_json(text)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}); is {path} a checkpoint?") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: is not text; take an older checkpoint") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CheckpointError(
            f"{file}: {where}: {first['msg']}; it is damaged or of another glmforge version "
            f"(this one reads format {FORMAT_VERSION})"
        ) from error
