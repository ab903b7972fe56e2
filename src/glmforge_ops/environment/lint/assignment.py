"""What a file of the user's says about environment variables: a list of assignments, whatever the file's language."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """One variable set in one place.

    Attributes:
        value: None where it is not known before the script runs (`$OTHER`, `$(command)`).
        line: counted from 1; 0 for a variable of a process.
        exported: whether programs see it; False for a shell's own variable.
        only_if_unset: a default, as in `${NAME:-value}`, which gives way to what is set already.
        for_one_command: holds for the command on the same line alone.
        conditional: inside an if, a case, a loop or a function.
    """

    name: str
    value: str | None
    line: int
    exported: bool = True
    only_if_unset: bool = False
    for_one_command: bool = False
    conditional: bool = False


@dataclass(frozen=True)
class Reading:
    """All that was found in one file.

    Attributes:
        exported_names: variables that are exported somewhere, whatever their value.
        used_names: variables that the file reads itself.
        ignored: lines whose findings the user does not want to see.
    """

    source: str
    assignments: tuple[Assignment, ...]
    exported_names: frozenset[str] = frozenset()
    used_names: frozenset[str] = frozenset()
    ignored: frozenset[int] = frozenset()
