"""Find settings that do nothing or do harm (`known_bad.toml`) in scripts, or in the environment of a process.

Plain assignments are read anywhere in a line: `export NAME=value`, `NAME=value command`, `ENV NAME value` of a
Dockerfile, `-x NAME=value`, `NAME: value` of YAML. A value that is computed (`$OTHER`) is not judged. A line with, or
below, the comment `# env-lint: ignore` is skipped.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from glmforge.config.secrets import is_secret
from glmforge.errors import ConfigError
from glmforge.files import read_text, shown
from glmforge_ops.environment.table import packaged

Severity = Literal["error", "warning"]

MAX_BYTES = 512 << 10
_MAX_SHOWN = 60
_IGNORE = "env-lint: ignore"
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY")
_VALUE = r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"';&|]*)"
_ASSIGNED = re.compile(rf"(?:^|[\s;&|,(\"':={{-])(?P<name>[A-Z][A-Z0-9_]+)=(?!=){_VALUE}")
_NAMED = re.compile(rf"^\s*(?:ENV|-)?\s*[\"']?(?P<name>[A-Z][A-Z0-9_]+)[\"']?(?::\s+|\s+){_VALUE}")
_MESSAGE = re.compile(r"\s*(?:echo|printf|grep)\b")


@dataclass(frozen=True)
class Setting:
    """A row of `known_bad.toml`: `values` is a pattern for the whole value; None means any value."""

    name: str
    severity: Severity
    why: str
    instead: str
    values: str | None = None
    example: str | None = None

    def matches(self, value: str | None) -> bool:
        """Whether the row is about this value."""
        if self.values is None or value is None:
            return self.values is None
        return re.fullmatch(self.values, value.strip(), re.IGNORECASE) is not None


@dataclass(frozen=True)
class Finding:
    """A bad setting, where it is, and what to do. `line` is 0 for a process's environment."""

    source: str
    line: int
    severity: Severity
    name: str
    value: str | None
    problem: str
    instead: str

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@cache
def known_bad() -> tuple[Setting, ...]:
    """The rows of `known_bad.toml`."""
    rows = tomllib.loads(packaged("known_bad.toml"))["setting"]
    return tuple(Setting(name, **row) for row in rows for name in row.pop("names"))


def lint_files(paths: Iterable[Path]) -> list[Finding]:
    """What is wrong in these files, in their order. Raises `ConfigError` for one that cannot be read."""
    return [finding for path in paths for finding in _lint_file(path)]


def lint_environment(environment: Mapping[str, str]) -> list[Finding]:
    """What is wrong with the variables of a process; it may hold secrets."""
    return [found for name, value in environment.items() for found in _judge("environment", 0, name, value)]


def _lint_file(path: Path) -> Iterator[Finding]:
    text = read_text(path, error=ConfigError, max_bytes=MAX_BYTES)
    if "\0" in text:
        raise ConfigError(f"{shown(path)}: cannot be read: contains null bytes; is it a script?")
    source, is_ignored = shown(path), False
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        skip, is_ignored = is_ignored or _IGNORE in line, line.lstrip().startswith("#") and _IGNORE in line
        for name, written in () if skip else _settings(line):
            value = _plain(written)
            yield from _judge(source, number, name, value)
            if name in _SECRETS and value:
                why, instead = "a secret in a file that others read", "set it outside of files"
                yield Finding(source, number, "warning", name, None, why, instead)


def _settings(line: str) -> Iterator[tuple[str, str]]:
    """Name and value, as written, of each assignment of a line."""
    code = re.sub(r"(^|\s)#(?!SBATCH\b|PBS\b).*", "", line)
    if _MESSAGE.match(code):
        return
    yield from ((found["name"], found["value"]) for found in _ASSIGNED.finditer(code))
    if found := _NAMED.match(code):
        yield found["name"], found["value"]


def _plain(written: str) -> str | None:
    """Without quotation marks; None for what is computed later."""
    quoted = len(written) > 1 and written[0] in "\"'" and written[0] == written[-1]
    value = written[1:-1] if quoted else written.rstrip(",")
    is_computed = ("$" in value or "`" in value) and not (quoted and written[0] == "'")
    return None if is_computed or "{{" in value else value


def _judge(source: str, line: int, name: str, value: str | None) -> Iterator[Finding]:
    for row in _rows(name):
        if row.matches(value):
            hidden = value is None or is_secret(name, value)
            text = None if hidden or value is None else shown(value[:_MAX_SHOWN])
            yield Finding(source, line, row.severity, name, text, row.why, row.instead)
            return


@cache
def _rows(name: str) -> tuple[Setting, ...]:
    """Those of one variable, those for certain values first."""
    return tuple(sorted((row for row in known_bad() if row.name == name), key=lambda row: row.values is None))


def known_bad_markdown() -> str:
    """The linter's table of `docs/cluster-env.md`."""
    lines = ["| severity | setting | why | instead |", "|---|---|---|---|"]
    for row in known_bad():
        setting = row.name if row.values is None else f"{row.name}={row.example}"
        lines.append(f"| {row.severity} | {setting} | {row.why} | {row.instead} |")
    return "\n".join(lines) + "\n"
