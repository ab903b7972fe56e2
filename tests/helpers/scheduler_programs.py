"""Commands of schedulers that give recorded answers."""

from collections.abc import Callable
from pathlib import Path
from shlex import quote

Answers = Callable[..., Path]
"""Writes programs: of each, by the beginning of its arguments, (status, stdout, stderr). Returns the file of calls."""


def scheduler_programs(directory: Path) -> Answers:
    """Programs below `directory`/bin."""
    programs, calls = directory / "bin", directory / "calls"
    programs.mkdir()

    def make(**known: dict[str, tuple[int, str, str]]) -> Path:
        for program, by_arguments in known.items():
            cases = "".join(
                f"{quote(start)}*) printf %s {quote(out)}; printf %s {quote(err)} >&2; exit {status} ;;\n"
                for start, (status, out, err) in by_arguments.items()
            )
            noted = f'echo {program} "$*" >>{quote(str(calls))}'
            (programs / program).write_text(f'#!/bin/sh\n{noted}\ncase "$*" in\n{cases}esac\nexit 99\n')
            (programs / program).chmod(0o755)
        return calls

    return make
