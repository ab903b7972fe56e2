"""The linter of environment variables: what is wrong in files of the user's, or in the environment of a process.

An error is what does not do what it says, or does harm: nobody reads it, its value is none, two lines contradict each
other. A warning is what works and is slow, deprecated or doubtful. A line with, or below, the comment
`# env-lint: ignore` is left alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from glmforge.config.secrets import is_secret
from glmforge.files import shown
from glmforge_ops.environment.lint.assignment import Assignment, Reading
from glmforge_ops.environment.lint.contradictions import contradictions
from glmforge_ops.environment.lint.facts import GONE, HARMFUL, RENAMED, SECRETS, UNREAD, Severity
from glmforge_ops.environment.lint.known import FAMILIES, KNOWN, is_read, meant
from glmforge_ops.environment.lint.problem import Problem
from glmforge_ops.environment.lint.reading import read_environment, read_file
from glmforge_ops.environment.lint.values import expected_instead

_MOST_GUESSES = 300
"""Unknown names of a file that are compared with known ones."""
_MOST_SHOWN = 60
"""Characters of a value that a message repeats."""


@dataclass(frozen=True)
class Finding:
    """Something wrong with a variable, where, and what it should be. `line` is 0 for a process's environment."""

    source: str
    line: int
    severity: Severity
    rule: str
    name: str
    value: str | None
    problem: str
    instead: str

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.source}:{self.line}" if self.line else self.source

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def lint_files(paths: Iterable[Path]) -> list[Finding]:
    """What is wrong in these files, in their order. Raises `ConfigError` for one that cannot be read."""
    return [finding for path in paths for finding in lint(read_file(path))]


def lint_environment(environment: Mapping[str, str]) -> list[Finding]:
    """What is wrong with the variables of a process, where secrets may be, and whose other names are its own."""
    return lint(read_environment(environment), is_process=True)


def lint(reading: Reading, *, is_process: bool = False) -> list[Finding]:
    """What is wrong with what was read, by lines."""
    problems: list[Problem] = []
    guesses = 0
    for assignment in reading.assignments:
        own = list(_of_one(assignment, is_process))
        if not own and is_read(assignment.name) is None and guesses < _MOST_GUESSES:
            guesses += 1
            own = list(_of_unknown(assignment, reading, is_process))
        problems += own
    problems += contradictions(reading)
    found = [_finding(reading, problem) for problem in problems if problem.assignment.line not in reading.ignored]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.line)


def _finding(reading: Reading, problem: Problem) -> Finding:
    at = problem.assignment
    hidden = at.value is None or is_secret(at.name, at.value)
    value = None if at.value is None or hidden else shown(at.value[:_MOST_SHOWN])
    return Finding(
        reading.source, at.line, problem.severity, problem.rule, shown(at.name), value, problem.says, problem.instead
    )


def _of_one(assignment: Assignment, is_process: bool) -> Iterator[Problem]:
    """What is wrong with one variable by itself."""
    name, value = assignment.name, assignment.value
    if name in UNREAD:
        yield Problem(assignment, "error", "unread", "no program reads it", UNREAD[name])
        return
    if name in GONE:
        yield Problem(assignment, "error", "gone", "no longer read", GONE[name])
        return
    if name in RENAMED:
        yield Problem(assignment, "warning", "renamed", "its old name, still read", RENAMED[name])
    elif is_read(name) is False:
        guess = meant(name)
        says = "no program reads it (NCCL 2.18 to 2.30, PyTorch to 2.13)"
        yield Problem(assignment, "error" if guess else "warning", "unread", says, guess or "leave it out")
    if value is None:
        return
    if name in SECRETS and value and not is_process:
        yield Problem(assignment, "warning", "secret", "a secret in a file that others read", "set it outside of files")
    if (expected := expected_instead(name, value)) is not None:
        yield Problem(assignment, "error", "value", "not a value that it takes", expected)
        return
    for harm in HARMFUL:
        if harm.name == name and harm.when(value.strip()):
            yield Problem(assignment, harm.severity, "harmful", harm.says, harm.instead)


def _of_unknown(assignment: Assignment, reading: Reading, is_process: bool) -> Iterator[Problem]:
    """A name that is nearly a known one, unless it is a variable of the script's own."""
    name = assignment.name
    if not name.isupper() or "_" not in name or name in KNOWN:
        return
    if not name.startswith(FAMILIES) and (is_process or name in reading.used_names):
        return
    if guess := meant(name):
        yield Problem(assignment, "error", "misspelt", "no program is known that reads it", guess)
