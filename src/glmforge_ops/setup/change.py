"""What setup changes: a directory, a file or a line of a file, on one machine; and how a person reads it."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from glmforge.files import escaped, shown
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.setup.on_node.changes import digest

HERE = ""
"""As a host: this machine, whatever its name."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One thing that is to be there.

    Attributes:
        path: absolute, or below `~/`, the home directory of the account there.
        text: a file's content, or the line without its end.
        secret: its text is never shown nor kept.
        adds: the text begins with what is in the file, so that it may be replaced whoever wrote it.
    """

    host: str
    kind: Literal["directory", "file", "line"]
    path: str
    mode: int
    text: str = ""
    secret: bool = False
    adds: bool = False

    def record(self, with_text: bool = True) -> Record:
        """For the machine that makes it; without the text of files: for the journal."""
        record: Record = {"kind": self.kind, "path": self.path, "mode": self.mode, "secret": self.secret}
        if self.kind == "file" and not with_text:
            return record | {"sha256": digest(self.text)}
        return record | {"text": self.text}


@dataclass(frozen=True)
class Planned:
    """A change that is still to be made, and the state that it meets."""

    change: Change
    before: Mapping[str, Any] = field(default_factory=dict)


def describe(planned: Iterable[Planned]) -> list[str]:
    """Every change in full; the same one on many machines once, with their names."""
    groups: dict[tuple[Any, ...], list[Planned]] = {}
    for each in planned:
        before = (each.before.get("kind"), each.before.get("sha256"))
        groups.setdefault((each.change.kind, each.change.path, each.change.text, *before), []).append(each)
    return [line for group in groups.values() for line in _describe(group)]


def _describe(group: list[Planned]) -> list[str]:
    change, before = group[0].change, group[0].before
    hosts = fold_hosts(each.change.host for each in group)
    where, path = f"{hosts}: " if hosts else "", shown(change.path)
    if change.kind == "directory":
        return [f"{where}make directory {path} ({change.mode:04o})"]
    if change.kind == "line":
        verb = "add to" if before.get("kind") == "file" else f"make ({change.mode:04o})"
        return [f"{where}{verb} {path}", f"  +{escaped(change.text)}"]
    replaced = before.get("kind") == "file"
    head = f"{where}{'replace' if replaced else 'write'} {path} ({change.mode:04o})"
    if change.secret:
        return [f"{head}: a private key, which is not shown"]
    old = str(before.get("text", "")).splitlines() if replaced else []
    diff = list(difflib.unified_diff(old, change.text.splitlines(), lineterm="", n=1))[2:]
    return [head, *(f"  {escaped(line)}" for line in diff if not line.startswith("@@"))]
