"""glmforge as it is installed without any extra: what only extras bring is hidden from the import system.

`environment` gives the variables of processes for which that holds, and for those that they start. Run as a program,
this carries out command lines of glmforge one after the other in one process, which imports torch only once.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

_HIDDEN = "HIDDEN_MODULES"


def hidden_modules() -> list[str]:
    """Top-level modules of the distributions that glmforge's extras bring and its own requirements do not."""
    everything = {extra for extra in importlib.metadata.metadata("glmforge").get_all("Provides-Extra") or []}
    hidden = reached("glmforge", frozenset(everything)) - reached("glmforge", frozenset())
    modules = importlib.metadata.packages_distributions()
    return sorted(name for name, owners in modules.items() if {_normal(owner) for owner in owners} <= hidden)


def environment(directory: Path) -> dict[str, str]:
    """Variables of a process without extras; `directory` gets the file by which it is started so."""
    (directory / "sitecustomize.py").write_text("from helpers.core_only import hide\nhide()\n")
    paths = [str(directory), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), _HIDDEN: ",".join(hidden_modules())}


def hide() -> None:
    """Let no import find the modules that the environment names."""
    hidden = frozenset(os.environ[_HIDDEN].split(","))
    sys.meta_path[:] = [_Without(finder, hidden) for finder in sys.meta_path]


class _Without:
    """A finder that does not find what is hidden."""

    def __init__(self, finder: Any, hidden: frozenset[str]) -> None:
        self._finder, self._hidden = finder, hidden

    def find_spec(self, name: str, *arguments: Any) -> Any:
        return None if name.partition(".")[0] in self._hidden else self._finder.find_spec(name, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def reached(distribution: str, extras: frozenset[str]) -> set[str]:
    """Names of all distributions that `distribution` with `extras` asks for, directly or not."""
    from packaging.requirements import Requirement

    reached, todo, seen = set[str](), [(distribution, extras)], set[tuple[str, frozenset[str]]]()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            texts = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        reached.add(_normal(name))
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                todo.append((_normal(requirement.name), frozenset(requirement.extras)))
    return reached


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _carry_out(arguments: list[str]) -> dict[str, Any]:
    from glmforge.cli.app import main

    sys.argv = ["glmforge", *arguments]
    status, errors = 0, io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001  whatever it is, it is told, and the next command runs
            traceback.print_exc()
            status = -1
    return {"status": status, "stderr": errors.getvalue()}


if __name__ == "__main__":
    print(json.dumps([_carry_out(arguments) for arguments in json.load(sys.stdin)]))
