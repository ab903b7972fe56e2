"""What a checkpoint says about itself: `meta.json`, small and readable without torch's formats.

It holds the position in the training (step, tokens, samples of each phase), the identity of what was trained
on, and where the run came from (config, code, libraries). The tensors are in the shards beside it.
"""

import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from glmforge.checkpoint.collective import world_size
from glmforge.checkpoint.format.wording import describe_invalid
from glmforge.config.model import Strict
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.files import read_bytes
from glmforge.observe.environment import git_revision, library_versions
from glmforge.runtime.durable import write_durably

# JSON has no pairs.
SampleRange = Annotated[tuple[NonNegativeInt, NonNegativeInt], Field(strict=False)]

META_FILE = "meta.json"
FORMAT_VERSION = 1
_MAX_BYTES = 16 << 20
_INSTEAD = {
    "mixtures": "return large state of the batch source from its state_files(), not its state_dict()",
    "hooks": "store less in that hook's state_dict()",
}


@functools.cache
def _versions() -> dict[str, str]:
    return library_versions()


@functools.cache
def _revision() -> str | None:
    return git_revision(Path(__file__).parent)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class CheckpointMeta(Strict):
    """The contents of `meta.json`. What has a default is filled in by the machine that saves."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a hook's state may hold them

    format_version: PositiveInt = FORMAT_VERSION
    step: NonNegativeInt = Field(description="optimizer steps done")
    phase: str = Field(description="phase of the last step")
    tokens_consumed: NonNegativeInt = Field(description="over all phases and ranks")
    samples_consumed: dict[str, int] = Field(description="phase name -> samples, the loader's whole state")
    config: dict[str, Any] = Field(description="the run's effective configuration")
    data_fingerprint: dict[str, Any] = Field(description="phase name -> what its samples depend on")
    tokenizer_fingerprint: str
    hooks: dict[str, Any] = Field(default={}, description="hook name -> its JSON state")
    ephemeral: bool = Field(default=False, description="deleted when later ones exist, see `checkpoint.keep_ephemeral`")
    skipped_samples: dict[str, list[SampleRange]] = Field(
        default={}, description="phase name -> ranges [first, stop) of skipped samples"
    )
    mixtures: dict[str, Any] = Field(default={}, description="record of the data mixtures used so far")
    nonfinite_steps: NonNegativeInt = Field(default=0, description="skipped steps in a row up to this one")
    total_nonfinite_steps: NonNegativeInt = Field(default=0, description="skipped steps of the run")
    rollbacks: NonNegativeInt = Field(default=0, description="rollbacks so far")
    stopped: str | None = Field(default=None, description="why the run stopped before its last phase ended")
    measured: dict[str, float] = Field(
        default={},
        exclude_if=lambda measured: not measured,
        description="what was measured at this step: held-out metrics, each the mean over all sources, and benchmarks",
    )
    extra_models: dict[str, Any] = Field(
        default={},
        exclude_if=lambda models: not models,
        description="name -> configuration of each additional trained model",
    )
    world_size: PositiveInt = Field(default_factory=world_size)
    created: str = Field(default_factory=_now, description="UTC, ISO 8601")
    git_revision: str | None = Field(default_factory=_revision)
    versions: dict[str, str] = Field(default_factory=_versions)


def stored_config(path: Path, meta: CheckpointMeta, fix: str = "read it with the glmforge that wrote it") -> RunConfig:
    """The configuration in the `meta` of the checkpoint `path`. Raises `CheckpointError`, which ends with `fix`."""
    try:
        return RunConfig.model_validate(meta.config)
    except ValidationError as error:
        where, message = describe_invalid(error)
        version = meta.versions.get("glmforge", "unknown")
        raise CheckpointError(
            f"{path / META_FILE}: its configuration does not fit this glmforge ({where}: {message}; it was written by "
            f"version {version}); {fix}"
        ) from error


def meta_text(meta: CheckpointMeta) -> str:
    """`meta` as `meta.json` has it. Raises `CheckpointError` if that would be too large to be read again."""
    text = meta.model_dump_json(indent=1)
    size = len(text.encode()) + 1
    if size <= _MAX_BYTES:
        return text
    fields = json.loads(text)
    name = _largest(fields)
    inner = fields[name] if isinstance(fields[name], dict) else {}
    where = f"{name}.{_largest(inner)}" if inner else name
    raise CheckpointError(
        f"{META_FILE} would have {size:,} bytes, more than the {_MAX_BYTES:,} that can be read back; most of it is "
        f"in field '{where}': {_INSTEAD.get(name, 'make it smaller')}"
    )


def write_meta(directory: Path, meta: CheckpointMeta) -> None:
    """Write `meta.json` and force it to the disk. Raises `CheckpointError` if it is too large, `OSError`."""
    write_durably(directory / META_FILE, meta_text(meta))


def _largest(fields: dict[str, Any]) -> str:
    return max(fields, key=lambda name: len(json.dumps(fields[name])))


def read_meta(path: Path) -> CheckpointMeta:
    """Read `meta.json` of a checkpoint directory. Raises `CheckpointError` if it cannot be understood."""
    file = path / META_FILE
    if not file.exists():
        raise CheckpointError(f"{file}: no such file; is {path} a checkpoint?")
    content = read_bytes(file, error=CheckpointError, max_bytes=_MAX_BYTES)
    try:
        return CheckpointMeta.model_validate_json(content)
    except ValidationError as error:
        where, message = describe_invalid(error)
        raise CheckpointError(
            f"{file}: {where}: {message}; damaged, or from another glmforge version "
            f"(this one reads format {FORMAT_VERSION})"
        ) from error
