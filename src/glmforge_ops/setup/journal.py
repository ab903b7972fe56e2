"""The journal of a cluster's setup: what is about to be changed is written down, and on the disk, before it is.

One line of JSON each: `{"id": 7, "host": ..., "change": ..., "before": ...}` before a change, `{"made": [7, 8]}` or
`{"not_made": [9]}` after it, `{"undone": [8, 7]}`. An interruption leaves entries of which nobody knows whether they
were made: undo looks, and takes back what there is. Private keys are not in it, only their checksums; the former
content of files that were replaced is, so it is readable by its owner alone.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from glmforge.errors import HostError
from glmforge.files import kind_of, parse_json, read_text, shown
from glmforge.runtime.durable import fsync_directory
from glmforge_ops.setup.change import HERE, Planned, Record

NAME = "journal.jsonl"
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Entry:
    """A change that was made, or may have been."""

    id: int
    host: str
    change: Record
    before: Record


class Journal:
    """The journal in `directory`, which is made with it. Use `opened`, which lets in one at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / NAME
        self._read()

    @classmethod
    @contextmanager
    def opened(cls, directory: Path) -> Iterator[Self]:
        """For changing; raises `HostError` if somebody else has it open."""
        missing = _missing(directory)
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HostError(
                    f"{shown(directory / NAME)}: another setup of this cluster is running; wait for it"
                ) from None
            journal = cls(directory)
            journal._cut_unfinished_line()
            if not journal.entries and not journal.made_directories:
                journal.made_directories = missing
                journal._write({"directories": [str(path) for path in missing]})
            try:
                yield journal
            finally:
                if not journal.entries and journal.file.exists():
                    journal.remove()
        finally:
            os.close(descriptor)

    @property
    def open_entries(self) -> list[Entry]:
        """What is to be undone, the last change first."""
        return [entry for entry in reversed(self.entries) if entry.id not in self._settled]

    def written(self, host: str, path: str) -> str | None:
        """The checksum of what this setup wrote there last."""
        for entry in self.open_entries:
            if (entry.host, entry.change["path"]) == (host, path):
                return str(entry.change.get("sha256"))
        return None

    def intend(self, planned: Sequence[Planned]) -> list[Entry]:
        """Write down what is about to be changed."""
        entries: list[Entry] = []
        for each in planned:
            record = each.change.record(with_text=False)
            entries.append(Entry(len(self.entries), each.change.host, record, dict(each.before)))
            self.entries.append(entries[-1])
        if entries:
            self._write(*(vars(entry) for entry in entries))
        return entries

    def settle(self, what: str, entries: Iterable[Entry]) -> None:
        """`what` became of the entries: "made", "not_made", "undone"."""
        ids = [entry.id for entry in entries]
        if ids:
            self._write({what: ids})
            self._settled |= set(ids) if what != "made" else set()

    def remove(self) -> None:
        """The journal itself and the directories that were made for it, after everything has been undone."""
        self.file.unlink()
        for path in reversed(self.made_directories):
            with contextlib.suppress(OSError):
                path.rmdir()

    def _write(self, *records: Mapping[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(record) + "\n" for record in records)
            stream.flush()
            os.fsync(stream.fileno())
        fsync_directory(self.directory)

    def _read(self) -> None:
        self.entries: list[Entry] = []
        self.made_directories: list[Path] = []
        self._settled: set[int] = set()
        if kind_of(self.file, error=HostError) is None:
            return
        lines = read_text(self.file, error=HostError, max_bytes=_MAX_BYTES).split("\n")
        for number, line in enumerate(lines[:-1], start=1):  # an interruption leaves a last line without its end
            source = f"{shown(self.file)}:{number}"
            record = parse_json(line, dict, source=source, error=HostError)
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError):
                raise HostError(f"{source}: is not of a setup's journal; restore the file") from None

    def _cut_unfinished_line(self) -> None:
        content = self.file.read_bytes()
        if content and not content.endswith(b"\n"):
            with self.file.open("r+b") as stream:
                stream.truncate(content.rfind(b"\n") + 1)

    def _take(self, record: Mapping[str, Any]) -> None:
        if "directories" in record:
            self.made_directories = [Path(path) for path in record["directories"]]
        elif "change" in record:
            change, before = dict(record["change"]), dict(record["before"])
            if change["kind"] not in ("directory", "file", "line") or not isinstance(change["path"], str):
                raise ValueError
            self.entries.append(Entry(int(record["id"]), str(record["host"]), change, before))
        for name in ("not_made", "undone"):
            self._settled |= set(record.get(name, ()))


def is_here(entry: Entry) -> bool:
    return entry.host == HERE


def _missing(path: Path) -> list[Path]:
    """The directories that are not there yet, from the top."""
    return [each for each in (*reversed(path.absolute().parents), path.absolute()) if not each.exists()]
