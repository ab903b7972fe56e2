"""Models and runs that ship with the package, as YAML beside this file.

A preset is called by its bare name wherever a file could stand: `model: demo`, `extends: demo`,
`glmforge model show glm46_355b`, `glmforge train demo`.
"""

import difflib
from pathlib import Path

from glmforge.errors import ConfigError
from glmforge.files import shown

_DIRECTORY = Path(__file__).parent
_KINDS = {"model": _DIRECTORY, "run": _DIRECTORY / "runs"}


def preset_names(kind: str = "model") -> list[str]:
    """Names of the presets of a kind, 'model' or 'run', sorted."""
    return sorted(path.stem for path in _KINDS[kind].glob("*.yaml"))


def is_preset_name(text: str) -> bool:
    """Whether `text` is written as a preset's name rather than as a path."""
    return "/" not in text and not Path(text).suffix


def preset_path(name: str, kind: str = "model") -> Path:
    """The file of a preset. Raises `ConfigError` with the nearest name for one that does not exist."""
    names = preset_names(kind)
    if name in names:
        return _KINDS[kind] / f"{name}.yaml"
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else "a file needs its suffix."
    raise ConfigError(f"no {kind} preset or file named '{shown(name)}': {hint} Presets: {', '.join(names)}")
