"""Variables that hold secrets: their values go from process to process, and into no file, log or screen of glmforge.

A launched job's options say `***` in place of such a value, which means: taken from the environment of the user who
submits the job.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from glmforge.errors import ConfigError, LaunchError

HIDDEN = "***"

_NAME = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASS(?:W|PHRASE)|CREDENTIAL|AUTH(?!OR)|APIKEY|(?:^|_)(?:KEYS?|PAT|PWD)(?:_|$)", re.IGNORECASE
)
_URL = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_DIRECTORIES = {"PWD", "OLDPWD"}


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable of this name looks like a secret, or its value holds a URL with a password."""
    return (_NAME.search(name) is not None and name not in _DIRECTORIES) or _URL.search(value) is not None


def take_secrets(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with `***` for secret values, which are put into this process's environment instead.

    Raises `ConfigError`, without the value.
    """
    taken = dict(variables)
    for name, value in variables.items():
        text = value if isinstance(value, str) else str(value)
        if text == HIDDEN or not is_secret(name, text):
            continue
        taken[name] = HIDDEN
        try:
            os.environ[name] = text
        except ValueError:  # a null byte, or a name with an equals sign
            raise ConfigError(f"env.{name!r}: invalid variable name or value; correct it") from None
    return taken


def require_secrets(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> None:
    """Raises `LaunchError` for variables that a job takes from this environment, and that are not there."""
    missing = ", ".join(name for name in names if name not in environment)
    if missing:
        raise LaunchError(
            f"env: the value of {missing} is not stored in the job's files; set it in the environment, and submit again"
        )
