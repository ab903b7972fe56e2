"""What a format of the suite is: valid originals, what reads them, and the bombs made for it by hand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

Mutator = Callable[[bytes, Random], bytes]
"""Damages the content of a file; all its choices come from the generator it is given."""


@dataclass(frozen=True)
class Format:
    """One format, described at the top of its test file as `FORMAT`.

    Attributes:
        name: as the command line and the figures call it.
        write: writes a valid original into an empty directory; called once per worker with a generator of fixed
            seed. What `read` returns for the originals must be accepted, which is checked before any mutation.
        read: reads the directory as the project does, by the same functions that its commands call. It may raise
            `GlmforgeError` and nothing else.
        mutators: for the files (glob patterns relative to the directory, first match wins) how they are damaged;
            a file that matches none is left whole.
        bombs: name -> what writes the bomb over an original.
        damages_directory: whether files are also removed, swapped, replaced by FIFOs and the like.
        lines: most lines of a refusal; more than 1 only where each mistake is documented to have a line.
        events: audit events (see `worker`) that belong to the reading, such as "exec" of a template engine.
    """

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], object]
    mutators: Mapping[str, Mutator]
    bombs: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    damages_directory: bool = True
    lines: int = 1
    events: frozenset[str] = frozenset()

    def mutator(self, file: str) -> Mutator | None:
        """How `file`, a path relative to the directory, is damaged."""
        return next((damage for pattern, damage in self.mutators.items() if Path(file).match(pattern)), None)
