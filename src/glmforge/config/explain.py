"""Pydantic's validation errors in the user's words.

Each mistake becomes one line: where it was written, the dotted key, what is wrong, and the nearest valid key.

    configs/run.yaml:12: optim.learning_rate: unknown key; did you mean 'lr'?
"""

import difflib
import reprlib
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from glmforge.config.model import Strict
from glmforge.config.tree import Node, Path, child, locate

_WHOLE_PATH_ERRORS = {"missing", "extra_forbidden", "combination"}


def explain(error: ValidationError, cls: type[Strict], tree: Node) -> str:
    """One line per mistake that pydantic found in `tree` when reading it as `cls`."""
    problems: dict[tuple[str | int, ...], list[str]] = {}
    inputs: dict[tuple[str | int, ...], object] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "default_factory_not_called":  # a consequence of another error in the list
            continue
        path = _path(details, tree)
        problems.setdefault(path, []).append(_describe(details, cls, path))
        inputs[path] = details["input"]
    return "\n".join(_line(tree, path, messages, inputs[path]) for path, messages in problems.items())


def _path(details: ErrorDetails, tree: Node) -> tuple[str | int, ...]:
    """The key an error is about: pydantic appends names of union branches, `refuse` names a field beside."""
    path: list[str | int] = list(details["loc"])
    if details["type"] == "combination":
        blamed = details["ctx"]["field"].split(".")
        return (*path, *(int(part) if part.isdecimal() else part for part in blamed))
    if details["type"] in _WHOLE_PATH_ERRORS:
        return tuple(path)
    known: list[str | int] = []
    for part in path:
        below = child(tree, part)
        if below is None:
            break
        known, tree = [*known, part], below
    return tuple(known)


def _line(tree: Node, path: Path, messages: list[str], value: object) -> str:
    first, *others = dict.fromkeys(messages)
    message = " or ".join([first, *(other.removeprefix("should be ") for other in others)])
    if message.startswith("should "):
        message += f", not {reprlib.repr(value)}"
    parts = [locate(tree, path), ".".join(map(str, path)), message]
    return ": ".join(part for part in parts if part)


def _describe(details: ErrorDetails, cls: type[Strict], path: Path) -> str:
    match details["type"]:
        case "missing":
            return "missing, and it has no default"
        case "extra_forbidden":
            return _unknown_key(cls, path)
        case "combination":
            return details["msg"]
        case "model_type" | "dict_type":
            return "should be a mapping of keys to values"
        case "path_type":
            return "should be a path"
        case "too_short":
            return "should not be empty"
    return details["msg"].removeprefix("Input ").removeprefix("String ")


def _unknown_key(cls: type[Strict], path: Path) -> str:
    """Suggest the nearest key of the same section, else the same name in another section."""
    *section, name = path
    keys = list(_section(cls, section).model_fields)
    nearest = difflib.get_close_matches(str(name), keys, n=1, cutoff=0.6)
    if not nearest:
        nearest = [key for key in _dotted_keys(cls, "") if key.split(".")[-1] == name][:1]
    if nearest:
        return f"unknown key; did you mean '{nearest[0]}'?"
    return f"unknown key; valid here: {', '.join(keys)}"


def _section(cls: type[Strict], path: Path) -> type[Strict]:
    """The class that reads the section at `path`."""
    for part in path:
        if isinstance(part, str):
            cls = next(_models(cls.model_fields[part].annotation))
    return cls


def _dotted_keys(cls: type[Strict], prefix: str) -> Iterator[str]:
    for name, field in cls.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Strict):
            yield from _dotted_keys(field.annotation, f"{prefix}{name}.")


def _models(annotation: Any) -> Iterator[type[Strict]]:
    """The configuration classes inside an annotation such as `list[PhaseConfig]`."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)
