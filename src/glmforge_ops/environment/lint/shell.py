"""Assignments in a shell script: bash, sh, sbatch.

A reader of words and quotes, not an interpreter. It knows how variables get into an environment: `export`, `declare
-x`, `env`, before a command, defaults (`${NAME:=value}`), and options of srun, mpirun and docker, also on `#SBATCH`
lines. Text in several lines of quotes or a here-document is read as a script of its own, which it mostly is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from glmforge.errors import ConfigError
from glmforge_ops.environment.lint.assignment import Assignment

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)\+?=(?P<value>.*)", re.DOTALL)
_DEFAULT = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*):?=(?P<value>[^{}$`]*)\}")
_OR_ELSE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*):?-(?P<value>[^{}$`]*)\}")
_USED = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_HERE = re.compile(r"<<(?P<tabs>-?)\s*(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote)")
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_OPTION = re.compile(r"--(?:export|env|genv)(?:=(?P<list>.*))?|-(?:x|e|genv|env)")
_OPENING, _CLOSING = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}
_LEADING = {"then", "else", "elif", "do", "!", "{", "}", "(", "time", "exec", "nohup", "command", "sudo", "builtin"}
_EXPORTING = {"export", "declare", "typeset", "local", "readonly", "setenv"}
_LEVELS = 3
"""Scripts within scripts that are read."""
_UNCLOSED = 100
"""Quotes without an end, after which a file is taken to be no script."""
_SPEAKING = {"echo", "printf", "[", "[[", "test", "let", "grep", "sed", "awk"}
"""Commands whose arguments only look like assignments."""


@dataclass(frozen=True)
class _Command:
    words: tuple[str, ...]
    line: int
    depth: int


@dataclass(frozen=True)
class ShellText:
    """What a shell script says: its assignments, what it exports by name and what it uses."""

    assignments: tuple[Assignment, ...]
    exported_names: frozenset[str]
    used_names: frozenset[str]


def read_shell(text: str, first_line: int = 1, level: int = 0) -> ShellText:
    """All assignments of a script; above `level` 0 it is part of another one, and what it sets may never be set."""
    text, documents = _without_documents(text)
    found: list[Assignment] = []
    exported: set[str] = set()
    parts = [(body, line) for line, body in documents]
    exports_all = False
    for command in _commands(text):
        exports_all |= command.words[:2] in (("set", "-a"), ("set", "-o allexport")) or "allexport" in command.words
        for assignment in _assignments(command):
            found.append(
                replace(
                    assignment,
                    line=assignment.line + first_line - 1,
                    conditional=level > 0 or command.depth > 0,
                    exported=assignment.exported or exports_all,
                )
            )
        exported |= _exported_names(command)
        parts += [(text, command.line - 1) for word in command.words for text in _texts_in_quotes(word)]
    inner = [read_shell(body, first_line + line, level + 1) for body, line in parts] if level < _LEVELS else []
    return ShellText(
        tuple(sorted([*found, *(one for part in inner for one in part.assignments)], key=lambda one: one.line)),
        frozenset(exported).union(*(part.exported_names for part in inner)),
        frozenset(_USED.findall(text)).union(*(part.used_names for part in inner)),
    )


def _texts_in_quotes(word: str) -> list[str]:
    """Quoted texts of several lines within a word: `task='...'`."""
    if "\n" not in word:
        return []
    return [text[1] or text[2] for text in _QUOTED.finditer(word) if "\n" in text[0]]


def _without_documents(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The script with here-documents blanked, and those with the number of lines before each."""
    lines, documents = text.split("\n"), []
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if (here := _HERE.search(line)) and not line.lstrip().startswith("#") and "<<<" not in line:
            start = at
            while at < len(lines) and (lines[at].lstrip("\t") if here["tabs"] else lines[at]) != here["end"]:
                at += 1
            documents.append((start, "\n".join(lines[start:at])))
            lines[start : at + 1] = [""] * len(lines[start : at + 1])
    return "\n".join(lines), documents


def _commands(text: str) -> Iterator[_Command]:
    """Words between separators, quotes kept; `depth` counts the ifs, loops and functions around a command."""
    depth = 0
    for words, line in _split(text):
        plain = [word for word in words if word]
        while plain and (plain[0] in _LEADING or plain[0] in _OPENING | _CLOSING):
            first = plain.pop(0)
            depth += (first in _OPENING or first == "{") - (first in _CLOSING or first == "}")
        if plain and plain[-1] == "{":  # name() {
            depth += 1
            plain.pop()
        if plain:
            yield _Command(tuple(plain), line, max(depth, 0))


def _split(text: str) -> Iterator[tuple[list[str], int]]:
    """Commands as lists of words with the line at which each begins."""
    words: list[str] = []
    word, line, begun, unclosed = "", 1, 1, 0
    at, end = 0, len(text)
    while at < end:
        here = text[at]
        if here == "\\" and at + 1 < end:
            line += text[at + 1] == "\n"
            word += "" if text[at + 1] == "\n" else text[at : at + 2]
            at += 2
            continue
        if here in "'\"`" or (here == "$" and text[at + 1 : at + 2] in ("(", "{")):
            stop = _end_of_quote(text, at)
            if stop < 0:
                unclosed += 1
                if unclosed > _UNCLOSED:
                    raise ConfigError(f"line {line}: more than {_UNCLOSED} quotes without an end: is it a script?")
                stop = text.find("\n", at)
                stop = end if stop < 0 else stop
            word += text[at:stop]
            line += text.count("\n", at, stop)
            at = stop
            continue
        if here == "#" and not word:
            stop = text.find("\n", at)
            stop = end if stop < 0 else stop
            if text.startswith("#SBATCH", at):
                yield text[at:stop].split(), line
            at = stop
            continue
        if here in " \t\n;&|()<>":
            if word:
                words.append(word)
                word = ""
            if here not in " \t<>" and words:
                yield words, begun
                words = []
            line += here == "\n"
        else:
            if not word and not words:
                begun = line
            word += here
        at += 1
    if word:
        words.append(word)
    if words:
        yield words, begun


def _end_of_quote(text: str, at: int) -> int:
    """Where the quoted or substituted text that begins at `at` ends; -1 if nothing closes it."""
    closers: list[str] = []
    while at < len(text):
        here, inside = text[at], closers[-1] if closers else ""
        if inside == "'":
            at = text.find("'", at)
            if at < 0:
                return -1
            closers.pop()
        elif here == "\\":
            at += 1
        elif here == inside:
            closers.pop()
        elif here == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at += 1
            closers.append(")" if text[at] == "(" else "}")
        elif here in '"`' or (here == "'" and '"' not in closers):
            closers.append(here)
        elif here == "(" and inside == ")":
            closers.append(")")
        at += 1
        if not closers:
            return at
    return -1


def _assignments(command: _Command) -> Iterator[Assignment]:
    words = list(command.words)
    leading = []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        leading.append(words.pop(0))
    for word in leading:
        yield _assigned(word, command.line, exported=bool(words), for_one_command=bool(words))
    if not words:
        return
    for found in (found for word in words for found in _DEFAULT.finditer(word)):
        yield Assignment(found["name"], _unquoted(found["value"]), command.line, exported=False, only_if_unset=True)
    name = words[0].rpartition("/")[2]
    if name in _EXPORTING:
        marked = name in ("export", "setenv") or any(re.fullmatch(r"-\w*x\w*", word) for word in words)
        yield from (_assigned(word, command.line, exported=marked) for word in words[1:] if _ASSIGNMENT.fullmatch(word))
    elif name == "_glmforge_export" and len(words) == 3:
        yield replace(_assigned(f"{words[1]}={words[2]}", command.line, exported=True), only_if_unset=True)
    elif name not in _SPEAKING:
        yield from _of_arguments(words, command.line)


def _of_arguments(words: list[str], line: int) -> Iterator[Assignment]:
    """`env A=b program`, `srun --export=ALL,A=b`, `mpirun -x A=b`, `docker run -e A=b`."""
    for before, word in zip(["", *words], words, strict=False):
        option = _OPTION.fullmatch(word)
        listed = option["list"] if option and option["list"] else word if _OPTION.fullmatch(before) else ""
        for part in _unquoted(listed).split(",") if listed else [word]:
            if _ASSIGNMENT.fullmatch(part) and part[0].isupper():
                yield _assigned(part, line, exported=True, for_one_command=True)


def _exported_names(command: _Command) -> set[str]:
    name, *others = command.words
    marked = name == "export" or (name in ("declare", "typeset") and any("x" in word for word in others[:1]))
    return {word.partition("=")[0] for word in others} if marked else set()


def _assigned(word: str, line: int, *, exported: bool, for_one_command: bool = False) -> Assignment:
    found = _ASSIGNMENT.fullmatch(word)
    assert found is not None
    value, is_default = found["value"], False
    bare = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    if (default := _OR_ELSE.fullmatch(bare)) is not None:
        value, is_default = default["value"], default["name"] == found["name"]
    literal = value.startswith("'") or not re.search(r"[$`]", value)
    known = _unquoted(value) if literal else None
    return Assignment(
        found["name"], known, line, exported=exported, only_if_unset=is_default, for_one_command=for_one_command
    )


def _unquoted(word: str) -> str:
    """A word without its quotes and backslashes."""
    return re.sub(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", lambda found: found[1] or found[2] or found[3] or "", word)
