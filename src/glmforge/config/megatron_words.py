"""Command lines of Megatron-LM's `pretrain_gpt.py`: which arguments exist, and how scripts write them.

`megatron_arguments.tsv` lists names, types and defaults of release core_v0.16.1, and what each is in a run. Of a shell
script only assignments, arrays and the program's line are read: nothing is executed, and what would have to be is an
error.
"""

import argparse
import difflib
import itertools
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from glmforge.errors import ConfigError
from glmforge.files import shown

_MAX_EXPANDED = 1_000_000
_QUOTED = r"""'[^']*'|"[^"]*"|"""
_ASSIGNED = re.compile(
    rf"^[ \t]*(?:export[ ]+)?([A-Za-z_]\w*)(\+?)=(?:\(((?:{_QUOTED}[^()'\"])*)\)|((?:{_QUOTED}[^\s'\";])*))",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^{}]*))?\}|([A-Za-z_]\w*)|([@*0-9]))")
_PROGRAM = re.compile(r"^(?:.*[\s/])?(\w+)\.py\b[\"']?(.*)$", re.MULTILINE)
_TYPES = {"int": int, "float": float}


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
        nargs = {"1": None, "*": "*", "+": "+"}.get(row.num_values) if not row.num_values.isdigit() else None
        count = int(row.num_values) if row.num_values not in ("0", "1", "*", "+") else nargs
        choices = row.choices.split(",") if row.choices and row.type == "str" else None
        details: dict[str, Any] = {"nargs": count, "type": _TYPES.get(row.type, str), "choices": choices}
        parser.add_argument(
            *row.names.split("|"), dest=name, **({"action": "store_true"} if row.type == "flag" else details)
        )
    found, rest = parser.parse_known_args(list(words))
    problems = []
    for word in rest[:20]:
        nearest = difflib.get_close_matches(word[:80].partition("=")[0], known_arguments(), 1)
        problems.append(f"{shown(word[:80])}{f' (did you mean {nearest[0]}?)' if nearest else ''}")
    if problems:
        raise ConfigError(f"{source}: unknown arguments: {', '.join(problems)}")
    return Arguments(vars(found))


def words_of_script(text: str, source: str) -> list[str]:
    """What follows the program in a shell script or command line; all words where no program is. `ConfigError`."""
    text = re.sub(r"(?m)(^|\s)#.*$", "", text).replace("\\\n", " ")
    programs = sorted(_PROGRAM.findall(text), key=lambda found: "pretrain" not in found[0])
    variables: dict[str, list[str]] = {}
    try:
        for name, plus, array, scalar in _ASSIGNED.findall(text):
            values = shlex.split(array) if array else ["".join(shlex.split(scalar))]
            variables[name] = [*(variables.get(name, []) if plus else []), *values]
        words = shlex.split(programs[0][1] if programs else text)
    except ValueError as error:
        raise ConfigError(f"{source}: cannot be read as a shell script: {error}") from None
    words = list(itertools.takewhile(lambda word: not re.match(r"\d?[;&|<>]", word), words))
    return _Expansion(source, variables).expand(words, 0)


class _Expansion:
    """Words with the values of a script's variables, up to a bound."""

    def __init__(self, source: str, variables: dict[str, list[str]]) -> None:
        self.source, self.variables, self.size = source, variables, 0

    def expand(self, words: Sequence[str], depth: int) -> list[str]:
        """A word that is nothing but one variable may become several, or none."""
        found: list[str] = []
        for word in words:
            if "`" in word or "$(" in word:
                raise ConfigError(f"{self.source}: {shown(word[:80])}: needs the shell; write its value instead")
            variable = _VARIABLE.fullmatch(word)
            if variable is None:
                found.append(_VARIABLE.sub(lambda one: " ".join(self._values(one, depth)), word))
            elif not variable[4]:  # not the script's own arguments
                values = self._values(variable, depth)
                found += values if "[" in word else [part for value in values for part in value.split()]
        return found

    def _values(self, variable: re.Match[str], depth: int) -> list[str]:
        name, default = variable[1] or variable[3], variable[2]
        values = self.variables.get(name, None if default is None else [default])
        if values is None or depth > 10:
            raise ConfigError(f"{self.source}: {variable[0]}: has no value in the script; write it there")
        found = self.expand(values, depth + 1)
        self.size += sum(map(len, found)) + 1
        if self.size > _MAX_EXPANDED:
            raise ConfigError(f"{self.source}: its variables expand to more than {_MAX_EXPANDED:,} characters")
        return found
