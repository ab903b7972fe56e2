"""Pydantic's validation errors in the user's words.

Each mistake becomes one line: where it was written, the dotted key, what is wrong, and the nearest valid key.

    configs/run.yaml:12: optim.schedul: unknown key; did you mean 'schedule'?

Keys that are missing from one section share a line. A file that is wrong all over gets the first mistakes only.
"""

import difflib
import re
import reprlib
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from glmforge.config.deepspeed import DeepSpeedSection
from glmforge.config.model import ModelConfig, Strict
from glmforge.config.schema import RunConfig
from glmforge.config.tree import KeyPath, Node, child, locate
from glmforge.files import escaped, shown

# Keys that the loader has consumed before pydantic looks: never unknown, but what a misspelled one may mean.
_LOADER_KEYS = {RunConfig: ["extends"], ModelConfig: ["preset"], DeepSpeedSection: ["file"]}


_MAX_ERRORS = 200  # that are looked at; which of them follow from others takes the square of their number
_MAX_MISTAKES = 20  # that are shown
_LINE = re.compile(r":\d+$")


class Mistake(NamedTuple):
    """What is wrong with a configuration in one place; `str` of it is a line for the user.

    Attributes:
        place: where it was written, as `file:line`.
        key: dotted; of the section where a key is missing, empty for the whole.
        message: what is wrong, and what to write instead.
    """

    place: str
    key: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


def explain(error: ValidationError, cls: type[Strict], tree: Node) -> str:
    """One line per mistake (per file without lines) that pydantic found in `tree` when reading it as `cls`."""
    found = mistakes(error, cls, tree)
    lines: dict[str, str] = {}
    for number, mistake in enumerate(found[:_MAX_MISTAKES]):
        # A file without lines, such as config.json, is one place: all that is wrong there is one line.
        place = mistake.place if not _LINE.search(mistake.place) else f"{number}"
        lines[place] = f"{lines[place]}; {mistake._replace(place='')}" if place in lines else str(mistake)
    if len(found) > _MAX_MISTAKES:
        lines["more"] = f"{found[0].place}: more errors; the first {_MAX_MISTAKES} are shown"
    return "\n".join(map(escaped, lines.values()))  # names come from the file as they are


def suggest(name: str, valid: Iterable[str]) -> str:
    """Suggestions for a name that is not in `valid`: the nearest, or all."""
    names = list(valid)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names)}"


def mistakes(error: ValidationError, cls: type[Strict], tree: Node) -> list[Mistake]:
    """What pydantic found wrong in `tree` when reading it as `cls`, by key."""
    problems: dict[tuple[tuple[str | int, ...], str], list[ErrorDetails]] = {}
    every = error.errors(include_url=False)[:_MAX_ERRORS]
    for details in every:
        if _is_consequence(details, every):
            continue
        kind = "missing" if details["type"] == "missing" else "wrong"
        problems.setdefault((_path(details, tree), kind), []).append(details)
    return [_mistake(cls, tree, path, same) for (path, _), same in problems.items()]


def _is_consequence(details: ErrorDetails, every: Sequence[ErrorDetails]) -> bool:
    """Whether an error is there only because of another one: pydantic counts the items of a list that are right."""
    place = details["loc"]
    below = any(other["loc"][: len(place)] == place and len(other["loc"]) > len(place) for other in every)
    return details["type"] == "default_factory_not_called" or (details["type"] == "too_short" and below)


def _path(details: ErrorDetails, tree: Node) -> tuple[str | int, ...]:
    """The key an error is about; for a missing key, its section.

    pydantic appends the names of union branches to a path, and `refuse` names the field it blames beside it.
    """
    path = details["loc"]
    if details["type"] == "combination":
        blamed = details["ctx"]["field"].split(".")
        return (*path, *(int(part) if part.isdecimal() else part for part in blamed))
    known: list[str | int] = []
    for part in path:
        below = child(tree, part)
        if below is None:
            break
        known, tree = [*known, part], below
    return tuple(known)


def _mistake(cls: type[Strict], tree: Node, path: KeyPath, same: list[ErrorDetails]) -> Mistake:
    """The mistakes at one key as one; there are several if a value fits no branch of a union."""
    if same[0]["type"] == "missing":
        message = f"missing, without a default: {', '.join(str(details['loc'][-1]) for details in same)}"
    else:
        first, *others = dict.fromkeys(_describe(details, cls, path) for details in same)
        message = " or ".join([first, *(other.removeprefix("should be ") for other in others)])
    if message.startswith("should "):
        message += f", not {reprlib.repr(same[0]['input'])}"
    return Mistake(locate(tree, path), shown(".".join(map(str, path))), message)


def _describe(details: ErrorDetails, cls: type[Strict], path: KeyPath) -> str:
    match details["type"]:
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
        case "literal_error" if near := _nearest(details["input"], details["ctx"]["expected"]):
            return f"unknown '{details['input']}'; did you mean '{near}'?"
    return details["msg"].removeprefix("Input ").removeprefix("String ")


def _nearest(value: object, expected: str) -> str | None:
    """Of the legal values, which pydantic gives as "'a', 'b' or 'c'", the one that is nearly `value`."""
    near = difflib.get_close_matches(value, re.findall(r"'([^']*)'", expected), 1) if isinstance(value, str) else []
    return near[0] if near else None


def _unknown_key(cls: type[Strict], path: KeyPath) -> str:
    """Suggest the nearest key of the same section, else the same name in another section."""
    *section, name = path
    owners = _section(cls, section)
    keys = [key for owner in owners for key in (*owner.model_fields, *_LOADER_KEYS.get(owner, []))]
    nearest = difflib.get_close_matches(str(name), keys, n=1, cutoff=0.6)
    if not nearest:
        nearest = [key for key in _dotted_keys(cls, "") if key.split(".")[-1] == name][:1]
    if nearest:
        return f"unknown key; did you mean '{nearest[0]}'?"
    return f"unknown key; valid here: {', '.join(dict.fromkeys(keys))}"


def _section(cls: type[Strict], path: KeyPath) -> list[type[Strict]]:
    """The classes that may read the section at `path`, which has indexes of lists and keys of mappings as well."""
    models, is_key = [cls], False
    for part in path:
        if is_key or isinstance(part, int):
            is_key = False
            continue
        annotations = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        models = [model for annotation in annotations for model in _models(annotation)]
        is_key = any(map(_is_mapping, annotations))
    return models


def _dotted_keys(cls: type[Strict], prefix: str) -> Iterator[str]:
    for name, field in cls.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Strict):
            yield from _dotted_keys(field.annotation, f"{prefix}{name}.")


def _is_mapping(annotation: Any) -> bool:
    """Whether an annotation is `dict[...]`, or may be one."""
    return dict in {typing.get_origin(kind) for kind in (annotation, *typing.get_args(annotation))}


def _models(annotation: Any) -> Iterator[type[Strict]]:
    """The configuration classes inside an annotation such as `list[PhaseConfig]`."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)
