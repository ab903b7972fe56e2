"""Files of the user's in which variables are set: shell scripts, .env files, Dockerfiles, YAML.

What a file is says its name; a file that is none of the others is read as a shell script. Files come from anywhere: a
size, UTF-8 and no null byte are asked of them before they are read.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from glmforge.errors import ConfigError
from glmforge.files import read_text, shown
from glmforge_ops.environment.lint.assignment import Assignment, Reading
from glmforge_ops.environment.lint.shell import read_shell

MAX_BYTES = 512 * 1024
"""A hundred times the longest script that somebody wrote by hand."""
_IGNORE = "env-lint: ignore"
"""In a comment on a line, or on the line above it."""
_KEY_VALUE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=(?P<value>.*)")
_DOCKER = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S*)")
# Of a line without the spaces around it.
_YAML = re.compile(r"(?:-\s+)?(?P<quote>[\"']?)(?P<name>[A-Z][A-Z0-9_]*_[A-Z0-9_]*)(?P=quote)\s*:\s(?P<value>.*)")
_YAML_PAIR = re.compile(r"-\s+(?P<quote>[\"']?)(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>.*?)(?P=quote)")
_YAML_NAME = re.compile(r"(?:-\s+)?name:\s*[\"']?(?P<name>[A-Z][A-Z0-9_]*)[\"']?")
_YAML_VALUE = re.compile(r"(?:-\s+)?value:(?P<value>.*)")
_YAML_EXPORT = re.compile(r"(?:-\s+)?(?P<command>export\s+[A-Z].*)")
_COMMENT = re.compile(r"(?<!\s)\s+#")


def read_file(path: Path) -> Reading:
    """What the file sets. Raises `ConfigError` for what is no text of a sensible size."""
    text = read_text(path, error=ConfigError, max_bytes=MAX_BYTES)
    if "\0" in text:
        raise ConfigError(f"{shown(path)}: cannot be read: holds null bytes; is it a script?")
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    lines = text.split("\n")
    ignored = {number for number, line in enumerate(lines, 1) if _IGNORE in line}
    ignored |= {number + 1 for number in ignored if lines[number - 1].lstrip().startswith("#")}
    source, name = shown(path), path.name.lower()
    if name.endswith(".env") or name.startswith(".env"):
        return Reading(source, tuple(_of_key_values(lines)), ignored=frozenset(ignored))
    if "dockerfile" in name or "containerfile" in name:
        return Reading(source, tuple(_of_dockerfile(lines)), ignored=frozenset(ignored))
    if name.endswith((".yaml", ".yml")):
        return Reading(source, tuple(_of_yaml(lines)), ignored=frozenset(ignored))
    try:
        found = read_shell(text)
    except ConfigError as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from None
    return Reading(source, found.assignments, found.exported_names, found.used_names, frozenset(ignored))


def read_environment(environment: Mapping[str, str]) -> Reading:
    """Variables of a process."""
    return Reading("environment", tuple(Assignment(name, value, 0) for name, value in environment.items()))


def _of_key_values(lines: list[str]) -> Iterator[Assignment]:
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("#") and (found := _KEY_VALUE.fullmatch(line.strip())):
            yield Assignment(found["name"], _plain(found["value"]), number)


def _of_dockerfile(lines: list[str]) -> Iterator[Assignment]:
    """`ENV A=b C=d`, over several lines if they end in a backslash, and the older `ENV A b`."""
    number = 0
    while number < len(lines):
        first, joined = number + 1, lines[number].strip()
        number += 1
        while joined.endswith("\\") and number < len(lines):
            joined = joined[:-1] + " " + lines[number].strip()
            number += 1
        word, _, rest = joined.partition(" ")
        if word.upper() != "ENV":
            continue
        pairs = [(found["name"], _plain(found["value"])) for found in _DOCKER.finditer(rest)]
        rest = rest.strip()
        if "=" not in rest.split(" ")[0]:
            name, _, value = rest.partition(" ")
            pairs = [(name, _plain(value))]
        yield from (Assignment(name, value, first) for name, value in pairs)


def _of_yaml(lines: list[str]) -> Iterator[Assignment]:
    """`NAME: value`, `- NAME=value`, `- name: NAME` with `value:` next to it, and commands that export.

    Line by line, since a reader of YAML tells no line numbers and stops at templates.
    """
    name = None
    for number, line in enumerate((line.strip() for line in lines), 1):
        if found := _YAML_EXPORT.fullmatch(line):
            yield from read_shell(found["command"], number).assignments
        elif found := _YAML_PAIR.fullmatch(line) or _YAML.fullmatch(line):
            yield Assignment(found["name"], _plain(found["value"]), number)
        elif name is not None and (found := _YAML_VALUE.fullmatch(line)):
            yield Assignment(name, _plain(found["value"]), number)
        found = _YAML_NAME.fullmatch(line)
        name = found["name"] if found else None


def _plain(value: str) -> str | None:
    """Without quotes and a comment behind it; None if it is put in later (`$OTHER`, `{{ other }}`)."""
    value = value.strip()
    if len(value) > 1 and value[0] in "\"'" and value.find(value[0], 1) > 0:
        quote = value[0]
        value = value[1 : value.index(quote, 1)]
        return value if quote == "'" or "$" not in value else None
    value = _COMMENT.split(value, maxsplit=1)[0].strip()
    return None if "$" in value or "{{" in value else value
