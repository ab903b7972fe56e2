"""Packages that come with an extra of glmforge: the error when one is missing.

The core installs without the packages of `glmforge[data]`, `[eval]`, `[gguf]`, `[grammar]`, `[hf]`, `[observe]`,
`[qlora]`, `[ray]` and `[tracking]`. Code that needs one imports it where it is needed; `needed_for` around such an
import, and the command line around all the rest, turn the `ModuleNotFoundError` into one line with the command that
installs it. Which extra brings which package is read from glmforge's own metadata, so that pyproject.toml is the only
place that says so.
"""

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import contextmanager

from glmforge.errors import GlmforgeError

_REQUIREMENT = re.compile(r"\s*(?P<name>[\w.-]+).*;.*\bextra\s*==\s*['\"](?P<extra>[\w.-]+)['\"]")
_COLLECTIONS = ("all", "dev")
"""Extras that are others together, or more than a user needs."""


class MissingPackageError(GlmforgeError):
    """A package that is not installed, and the extra of glmforge that brings it."""

    def __init__(self, what: str, package: str) -> None:
        extra = extra_of(package)
        wanted = f"'glmforge[{extra}]'" if extra else package
        super().__init__(f"{what} needs the package '{package}', which is not installed: pip install {wanted}")


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around the import of a package of an extra.

    Args:
        what: what needs it, at the beginning of the message: "executor 'ray'".

    Raises:
        MissingPackageError: it is not installed. A missing module of glmforge itself passes as what it is, a defect.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise explain(error, what) from error


def explain(error: ModuleNotFoundError, what: str) -> Exception:
    """What to raise instead of `error`: a `MissingPackageError`, or `error` if a module of glmforge is missing."""
    package = (error.name or "").partition(".")[0]
    return error if package in ("", "glmforge") else MissingPackageError(what, package)


def extra_of(module: str) -> str | None:
    """The extra that installs the top-level module, e.g. "data" for "pyarrow"; None if no extra does."""
    return extras().get(_normal(module.partition(".")[0]))


def extras() -> dict[str, str]:
    """Distribution (name as pip compares it) -> the extra that brings it, of the packages that only extras bring."""
    try:
        requirements = importlib.metadata.requires("glmforge") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that was not installed
        return {}
    matches = [match for text in requirements if (match := _REQUIREMENT.match(text))]
    found: dict[str, str] = {}
    for match in matches:
        if match["extra"] not in _COLLECTIONS:
            found.setdefault(_normal(match["name"]), match["extra"])  # of several extras the first
    found.pop("glmforge", None)
    return found


def _normal(name: str) -> str:
    """Names of distributions as pip compares them; our packages' modules are called as their distributions."""
    return re.sub(r"[-_.]+", "-", name).lower()
