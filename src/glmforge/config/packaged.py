"""Configurations and examples that come with the package, wherever it is installed: list them, copy them.

In the source tree they lie at the top, where a reader looks for them; `glmforge/packaged` leads there, and holds copies
of them in a wheel. Presets of `glmforge.config.presets` are called by name and need no copy; these are to be changed.
"""

import itertools
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from glmforge.config.explain import suggest
from glmforge.errors import ConfigError
from glmforge.files import read_text, shown

_LEFT_OUT = {"__pycache__", "__init__.py"}
_MAX_FILES = 32


@dataclass(frozen=True)
class Packaged:
    """`name` as a user gives it: a configuration without its ending, an example's folder. `about`: its first words."""

    name: str
    path: Path
    about: str


def packaged() -> list[Packaged]:
    """All of them: configurations, then examples. Raises `ConfigError` if the installation has none."""
    return [*_configurations(), *_examples()]


def copy_packaged(name: str, target: Path) -> list[Path]:
    """Copy one to `target`, a folder or a file's name that ends in .yaml, with what it extends beside it.

    Nothing is overwritten. Returns what was written. Raises `ConfigError`.
    """
    known = {each.name: each for each in packaged()}
    if name not in known:
        raise ConfigError(f"{shown(name)}: no such configuration or example; {suggest(name, known)}")
    source = known[name].path
    if source.is_dir():
        copies = _of_folder(source, target / source.name if target.is_dir() else target)
    else:
        copies = _of_file(source, target if target.suffix in (".yaml", ".yml") else target / source.name)
    for _, copy in copies:
        if copy.exists() or copy.is_symlink():
            raise ConfigError(f"{shown(copy)}: already exists; remove it, or choose another path")
    try:
        for original, copy in copies:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(original, copy)
    except OSError as error:
        raise ConfigError(f"{shown(error.filename)}: cannot be written ({error.strerror}); choose another") from None
    return [copy for _, copy in copies]


def _root(kind: str) -> Path:
    root = Path(str(files("glmforge"))) / "packaged" / kind
    if not root.is_dir():
        raise ConfigError(f"{root}: missing, this installation has no {kind}; reinstall glmforge")
    return root


def _configurations() -> Iterator[Packaged]:
    for path in sorted(_root("configs").glob("*.yaml")):
        yield Packaged(path.stem, path, _about(path))


def _examples() -> Iterator[Packaged]:
    """A folder is an example, or holds several that have a README of their own."""
    root = _root("examples")
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name not in _LEFT_OUT:
            yield Packaged(f"examples/{path.name}", path, _about_folder(path))


def _about(path: Path) -> str:
    """The first sentence of the comment that a configuration begins with."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), read_text(path, error=ConfigError).splitlines())
    text = " ".join(line.lstrip("# ").strip() for line in lines)
    return re.split(r"(?<=[a-z0-9)])\.(?: |$)", text)[0]


def _about_folder(path: Path) -> str:
    readme = path / "README.md"
    if readme.is_file():
        return read_text(readme, error=ConfigError).partition("\n")[0].lstrip("# ").strip()
    return ", ".join(sorted(each.name for each in path.iterdir() if each.name not in _LEFT_OUT))


def _of_folder(source: Path, target: Path) -> list[tuple[Path, Path]]:
    inside = sorted(path for path in source.rglob("*") if path.is_file() and not _LEFT_OUT & set(path.parts))
    return [(path, target / path.relative_to(source)) for path in inside]


def _of_file(source: Path, target: Path) -> list[tuple[Path, Path]]:
    """A configuration, then those that it extends, which keep their names: they are found beside it."""
    found = {source: target}
    waiting = [source]
    while waiting:
        for base in _bases(waiting.pop()):
            if base not in found and len(found) < _MAX_FILES:
                found[base] = target.with_name(base.name)
                waiting.append(base)
    return list(found.items())


def _bases(path: Path) -> list[Path]:
    """Files, not presets. The file is our own: it loads."""
    extends = (yaml.safe_load(read_text(path, error=ConfigError)) or {}).get("extends", [])
    names = [extends] if isinstance(extends, str) else extends
    return [path.with_name(name) for name in names if path.with_name(name).is_file()]
