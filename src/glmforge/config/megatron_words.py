"""Command lines of Megatron-LM's `pretrain_gpt.py`: which arguments exist, and how scripts write them.

`megatron_arguments.tsv` lists names, types and defaults of release core_v0.16.1, and what each is in a run. Of a shell
script only assignments, arrays and the program's line are read: nothing is executed, and what would have to be is an
error.
"""

import argparse
import difflib
import itertools
import math
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from glmforge.errors import ConfigError
from glmforge.files import shown

_MAX_EXPANDED = 100_000
_QUOTED = r"""'[^']*'|"[^"]*"|"""
_ASSIGNED = re.compile(
    rf"(?:^|;)[ \t]*(?:export[ ]+)?([A-Za-z_]\w*)(\+?)=(?:\(((?:{_QUOTED}[^()'\"])*)\)|((?:{_QUOTED}[^\s'\";])*))",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^{}]*))?\}|(\w+)|[@*])")
_PROGRAM = re.compile(r"^(?:.*[\s/])?(\w+)\.py\b[\"']?(.*)$", re.MULTILINE)


def _whole(text: str) -> int:
    if len(text) > 18:
        raise ValueError
    return int(text)


def _real(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


_TYPES = {"int": _whole, "float": _real}


class Argument(NamedTuple):
    """A row of the table: all names separated by |, number of values as argparse has it (0: a flag), and so on."""

    names: str
    num_values: str
    type: str
    default: str
    choices: str
    use: str


@cache
def known_arguments() -> dict[str, Argument]:
    """All arguments of the release by their first name."""
    lines = Path(__file__).with_name("megatron_arguments.tsv").read_text().splitlines()
    rows = [Argument(*line.split("\t")) for line in lines if not line.startswith("#")]
    return {row.names.split("|")[0]: row for row in rows}


class Arguments(dict[str, Any]):
    """What a command line gives. `value(name)` is that or Megatron's default (None, False), and counts as used."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        self.used: set[str] = set()

    def value(self, name: str) -> Any:
        self.used.add(name)
        row = known_arguments()[name]
        default = _TYPES.get(row.type, str)(row.default) if row.default else False if row.num_values == "0" else None
        found = self.get(name, default)
        return found[0] if row.num_values == "+" and isinstance(found, list) and len(found) == 1 else found

    def unused(self) -> list[str]:
        """What was given and never asked for."""
        return [name for name in self if name not in self.used]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {shown(message[:500])}")


def parse_arguments(words: Sequence[str], source: str) -> Arguments:
    """Check names, numbers of values, types and choices. Raises `ConfigError`, which names every unknown argument."""
    parser = _Parser(source, allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for name, row in known_arguments().items():
        nargs = int(row.num_values) if row.num_values.isdigit() else row.num_values
        choices = row.choices.split(",") if row.choices and row.type == "str" else None
        details = {"nargs": None if nargs == 1 else nargs, "type": _TYPES.get(row.type, str), "choices": choices}
        of_kind: dict[str, Any] = {"action": "store_true"} if row.type == "flag" else details
        parser.add_argument(*row.names.split("|"), dest=name, **of_kind)
    found, rest = parser.parse_known_args(list(words))
    if rest:
        nearest = [difflib.get_close_matches(word[:80].partition("=")[0], known_arguments(), 1) for word in rest[:20]]
        named = [
            f"{shown(w[:80])}{f' (did you mean {n[0]}?)' if n else ''}" for w, n in zip(rest, nearest, strict=False)
        ]
        raise ConfigError(f"{source}: unknown arguments: {', '.join(named)}")
    return Arguments(vars(found))


def words_of_script(text: str, source: str) -> list[str]:
    """What follows the program in a shell script or command line; all words where no program is. `ConfigError`.

    Variables and arrays are put in as text, so values with spaces in them come apart.
    """
    text = re.sub(r"(?m)(^|\s)#.*$", "", text).replace("\\\n", " ")
    variables: dict[str, str] = {}
    for name, plus, array, scalar in _ASSIGNED.findall(text):
        earlier = variables.get(name, "") + " " if plus else ""
        value = array.replace("\n", " ") or scalar.strip("'\"")
        variables[name] = earlier + re.sub(rf"\$\{{{name}:?-([^{{}}]*)\}}", r"\1", value)  # X=${X:-default}

    def value_of(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        value = variables.get(name, found[2]) if name else ""  # $@: the script's own arguments
        if value is None:
            raise ConfigError(f"{source}: {found[0]}: has no value in the script; write it there")
        return value

    programs = sorted(_PROGRAM.findall(text), key=lambda found: "pretrain" not in found[0])
    command, expansions = programs[0][1] if programs else text, 0
    while _VARIABLE.search(command):
        command = _VARIABLE.sub(value_of, re.sub(r'"(\$(?:\w+|[@*]|\{[^{}"]*\}))"', r"\1", command))
        expansions += 1
        if expansions > 10 or len(command) > _MAX_EXPANDED:
            raise ConfigError(f"{source}: its variables refer to each other too deeply; write their values instead")
    if "$(" in command or "`" in command:
        raise ConfigError(f"{source}: the command needs the shell; write values instead of $(...)")
    try:
        return list(itertools.takewhile(lambda word: not re.match(r"\d?[;&|<>]", word), shlex.split(command)))
    except ValueError as error:
        raise ConfigError(f"{source}: cannot be read as a shell script: {error}") from None
