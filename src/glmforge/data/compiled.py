"""Loops over bytes: compiled by numba at their first use, and kept on the disk.

numba keeps what it compiled of a function for as long as the function's own file does not change. A loop that calls one
of another file would keep the old machine code when that other file changes. So what is kept lies in a directory
that is named by the contents of all files with compiled loops, of this package and of the loop's own: any change to one
of them compiles all anew.

It is beside the package or, where that cannot be written, in the user's cache; NUMBA_CACHE_DIR, if set, names another
place, such as a node's own disk on a cluster. numba runs what lies there, so a directory that is not beside the package
must be the user's alone; without one, every process compiles anew.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, overload

import numba
from numba import njit
from numpy.typing import NDArray

from glmforge.files import make_private

_log = logging.getLogger(__name__)

_MARK = b"compiled"
_KEPT_VERSIONS = 3


@overload
def compiled(function: Callable[..., Any], **options: Any) -> Any: ...
@overload
def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function at its first use; other threads run beside it.

        @compiled
        def count(text: NDArray[np.uint8]) -> int: ...

        @compiled(inline="always")
        def is_space(byte: int) -> bool: ...

    `options` are numba's, see `numba.njit`.
    """
    if function is None:
        return lambda decorated: compiled(decorated, **options)
    settings: Any = numba.config
    directory = _directory(_package_of(function))
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(directory or "")
    try:
        return njit(cache=directory is not None, nogil=True, **options)(function)
    finally:
        settings.CACHE_DIR = before


def non_allocating(function: Callable[..., Any]) -> Any:
    """Compile a function that makes no arrays, nor calls one that does; an allocation is an error of compilation.

    numba otherwise counts references to the arrays that a function takes, at every call that it does not inline:
    for a small function called per character that costs more than what it does. Without numba's run time there is
    nothing to count.
    """
    return compiled(function, _nrt=False)


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written: to a compiled function the two are types, and each is compiled for."""
    view = array.view()
    view.flags.writeable = False
    return view


_PACKAGE = Path(__file__).parents[1]


def _package_of(function: Callable[..., Any]) -> Path:
    """The directory of the outermost package that `function` is defined in."""
    depth = function.__module__.count(".")
    return Path(function.__code__.co_filename).parents[max(depth - 1, 0)]


@cache
def _directory(package: Path) -> Path | None:
    """Where compiled loops are kept; None if nowhere, after a warning that says why."""
    name = f"compiled-{_version(_PACKAGE, package)}"
    beside = package / "__pycache__"  # who can write there can change the loops themselves
    places = [beside, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glmforge"]
    if os.environ.get("NUMBA_CACHE_DIR"):
        places = [Path(os.environ["NUMBA_CACHE_DIR"])]
    reason = ""
    for place in places:
        directory = place / name
        try:
            if place == beside:
                directory.mkdir(parents=True, exist_ok=True)
            else:
                make_private(directory)
        except OSError as error:
            reason = str(error)
            continue
        if os.access(directory, os.W_OK):
            _forget_old_versions(directory)
            return directory
        reason = f"{directory} cannot be written"
    _log.warning("the cache of compiled loops is not writable, each process recompiles them: %s", reason)
    return None


def _version(*packages: Path) -> str:
    """A hash of all files with compiled loops."""
    digest = hashlib.sha256(numba.__version__.encode())
    for package in dict.fromkeys(packages):
        for path in sorted(package.rglob("*.py")):
            source = path.read_bytes()
            if _MARK in source:
                digest.update(str(path.relative_to(package)).encode() + b"\0" + source)
    return digest.hexdigest()[:16]


def _forget_old_versions(directory: Path) -> None:
    others = sorted(directory.parent.glob("compiled-*"), key=_changed, reverse=True)
    for other in others[_KEPT_VERSIONS:]:
        if other != directory:
            shutil.rmtree(other, ignore_errors=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has just removed it
        return 0.0
