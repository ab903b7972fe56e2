"""`cluster.yaml` of what was found, with every field explained, as `load_cluster` reads it back."""

import contextlib
import os
from pathlib import Path

from glmforge.config.cluster import ClusterConfig
from glmforge.config.load import load_settings
from glmforge.config.tree import parse
from glmforge.errors import ConfigError, HostError
from glmforge.files import kind_of, shown
from glmforge_ops.setup.find import Found
from glmforge_ops.setup.render import render


def config_text(found: Found) -> str:
    """The file's text, checked by reading it. Raises `ConfigError` if what was found makes no configuration."""
    nothing = dict.fromkeys(ClusterConfig.model_fields)
    text = render("cluster.yaml", found=found, settings=nothing | found.settings)
    load_settings(ClusterConfig, parse(text, "cluster.yaml"))
    return text


def refuse_existing(file: Path) -> None:
    """Before anything is asked. Raises `HostError`."""
    if kind_of(file, error=HostError) is not None:
        raise HostError(f"{shown(file)}: is there already; write to another --out, or give --force")


def write_config(file: Path, text: str, force: bool) -> None:
    """Write it, over another file only with `force`. Raises `HostError`."""
    part = file.with_name(f".{file.name}.part")
    try:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        part.write_text(text, encoding="utf-8")
        if force:
            part.replace(file)
            return
        try:
            os.link(part, file)  # fails if it is there, unlike a rename
        finally:
            part.unlink()
    except FileExistsError:
        refuse_existing(file)
        raise
    except OSError as error:
        raise ConfigError(f"{shown(file)}: cannot be written: {error.strerror}; give another --out") from None
