"""The files of an order and their units: what is there already, and what it takes to give a file its name.

A file is put together under NAME.partial, each unit in its place; a journal beside tells the SHA-256 of those that have
arrived. Neither is believed: after an interruption the units are read and compared. When all are there, the file is
forced to the disk, read back from it, and takes its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from glmforge_ops.hosts.on_node.wire import CHUNK
from glmforge_ops.storage.node.work import Refused, StillAlive, sync_directory

STATE = ".staged"
_SAME = ("directory", "name", "size", "mtime_ns", "unit_bytes")


class Units:
    """The `files` of an order, below `root`. Their names come from outside as relative ones that have been checked."""

    def __init__(self, root: str, files: list[dict[str, Any]], unit_bytes: int) -> None:
        self.root, self.files, self.unit_bytes = Path(root), files, unit_bytes

    def path(self, at: int) -> Path:
        return self.root / self.files[at]["directory"] / self.files[at]["name"]

    def partial(self, at: int) -> Path:
        path = self.path(at)
        return path.with_name(path.name + ".partial")

    def spans(self, at: int) -> list[tuple[int, int]]:
        """Offset and length of every unit; a file without bytes has none."""
        size = self.files[at]["size"]
        return [(start, min(self.unit_bytes, size - start)) for start in range(0, size, self.unit_bytes)]

    def survey(self, verify: bool) -> list[dict[str, Any]]:
        """For every file whether it has its name, and the SHA-256 of the units that are good (None: lacking)."""
        noted, found, alive = self._read_journals(), [], StillAlive()
        for at in range(len(self.files)):
            units, spans = noted.get(self._key(at), {}), self.spans(at)
            have = [units.get(unit) for unit in range(len(spans))]
            named = self._is_copy(at) and None not in have
            path = self.path(at) if named else self.partial(at)
            if not named or verify:
                have = self._compare(path, spans, have, alive)
            if named and None in have:
                path.rename(self.partial(at))  # damaged where it lay
                named = False
            found.append({"named": named, "units": have})
        return found

    def check_space(self, found: list[dict[str, Any]]) -> None:
        """Raise `Refused` unless there is room for what is lacking."""
        needed = sum(
            span[1]
            for at, one in enumerate(found)
            for unit, span in enumerate(self.spans(at))
            if not one["units"][unit]
        )
        free = shutil.disk_usage(self.root).free
        if needed > free:
            raise Refused(
                f"{self.root}: {needed / 1e9:.3g} GB are to be copied there and {free / 1e9:.3g} GB are free; "
                "make room, or choose another disk"
            )

    def write(self, at: int, offset: int, pieces: Iterable[bytes]) -> str:
        """Put bytes in their place; returns their SHA-256."""
        path, digest = self.partial(at), hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            if os.fstat(descriptor).st_size != self.files[at]["size"]:
                os.ftruncate(descriptor, self.files[at]["size"])
            for piece in pieces:
                digest.update(piece)
                view = memoryview(piece)
                while view:
                    written = os.pwrite(descriptor, view, offset)
                    offset += written
                    view = view[written:]
        finally:
            os.close(descriptor)
        return digest.hexdigest()

    def accept(self, at: int, unit: int, digest: str, wanted: str) -> dict[str, Any]:
        """Note a unit that has arrived, if it is what was wanted."""
        if digest != wanted:
            return {"damaged": [unit]}
        row = dict(zip(_SAME, self._key(at))) | {"unit": unit, "sha256": digest}  # noqa: B905 - Python 3.9
        with self._journal(self.files[at]["directory"]).open("ab") as journal:
            journal.write(b"\n" + json.dumps(row).encode() + b"\n")  # after a line that was cut off, too
        return {"ok": True}

    def check(self, at: int, unit: int, wanted: str) -> dict[str, Any]:
        """Whether a unit is what it should be; a file with a damaged one loses its name."""
        path = self.path(at) if self._is_copy(at) else self.partial(at)
        units: list[str | None] = [None] * len(self.spans(at))
        units[unit] = wanted
        if self._compare(path, self.spans(at), units, StillAlive())[unit] is not None:
            return {"ok": True}
        if path == self.path(at):
            path.rename(self.partial(at))
        return {"damaged": [unit]}

    def publish(self, at: int, units: list[str]) -> dict[str, Any]:
        """Force the file to the disk, read it back, and give it its name."""
        file, partial, path, alive = self.files[at], self.partial(at), self.path(at), StillAlive()
        if not file["size"]:
            self.write(at, 0, ())
        descriptor = os.open(partial, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            whole = hashlib.sha256()
            found = [digest_of(descriptor, *span, alive, whole) for span in self.spans(at)]
            if damaged := [unit for unit, digest in enumerate(found) if digest != units[unit]]:
                return {"damaged": damaged}
            if file.get("sha256") not in (None, whole.hexdigest()):
                partial.unlink()
                raise Refused(f"{path}: SHA-256 differs from the one noted when it was made: the original is damaged")
            os.utime(descriptor, ns=(file["mtime_ns"], file["mtime_ns"]))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.rename(path)
        sync_directory(path.parent)
        return {"ok": True}

    def finish(self, origins: dict[str, str]) -> dict[str, Any]:
        """All files are there: note which, for whoever asks whether a set is whole."""
        for directory in sorted({file["directory"] for file in self.files}):
            files = {file["name"]: file["size"] for file in self.files if file["directory"] == directory}
            content = {"directory": directory, "origin": origins.get(directory), "files": files}
            _write_durably(self._marker(directory), json.dumps(content, indent=1))
            self._shorten_journal(directory)
        sync_directory(self.root / STATE)
        return {"ok": True}

    def unmark(self, found: list[dict[str, Any]]) -> None:
        """What is not whole any more is not said to be."""
        for at, one in enumerate(found):
            marker = self._marker(self.files[at]["directory"])
            if not one["named"] and marker.exists():
                marker.unlink()

    def _key(self, at: int) -> tuple[Any, ...]:
        file = self.files[at]
        return (file["directory"], file["name"], file["size"], file["mtime_ns"], self.unit_bytes)

    def _journal(self, directory: str) -> Path:
        return self.root / STATE / f"{hashlib.sha256(directory.encode()).hexdigest()[:12]}.jsonl"

    def _marker(self, directory: str) -> Path:
        return self._journal(directory).with_suffix(".complete.json")

    def _read_journals(self) -> dict[tuple[Any, ...], dict[int, str]]:
        noted: dict[tuple[Any, ...], dict[int, str]] = {}
        for journal in {self._journal(file["directory"]) for file in self.files}:
            _read_journal(journal, noted)
        return noted

    def _shorten_journal(self, directory: str) -> None:
        """One line for each unit of files that are there."""
        noted: dict[tuple[Any, ...], dict[int, str]] = {}
        journal = self._journal(directory)
        _read_journal(journal, noted)
        rows = [
            json.dumps(dict(zip(_SAME, key)) | {"unit": unit, "sha256": digest})  # noqa: B905 - Python 3.9
            for key, units in noted.items()
            if (self.root / key[0] / key[1]).exists()
            for unit, digest in units.items()
        ]
        _write_durably(journal, "".join(f"{row}\n" for row in rows))

    def _is_copy(self, at: int) -> bool:
        """As a run tells a good copy: by length and time of change, to the second."""
        try:
            found = self.path(at).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        file = self.files[at]
        same = (found.st_size, int(found.st_mtime)) == (file["size"], file["mtime_ns"] // 10**9)
        return stat.S_ISREG(found.st_mode) and same

    def _compare(
        self, path: Path, spans: list[tuple[int, int]], units: list[str | None], alive: StillAlive
    ) -> list[str | None]:
        """The noted units that the file really holds."""
        good: list[str | None] = [None] * len(spans)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return good
        try:
            for unit, span in enumerate(spans):
                if units[unit] is not None and digest_of(descriptor, *span, alive) == units[unit]:
                    good[unit] = units[unit]
        except OSError as error:
            sys.stderr.write(f"{path}: cannot be read: {error.strerror}\n")
        finally:
            os.close(descriptor)
        return good


def digest_of(descriptor: int, offset: int, length: int, alive: StillAlive, also: Any = None) -> str | None:
    """SHA-256 of a part of a file, None if it is shorter; the bytes are given to the hash `also` as well."""
    digest = hashlib.sha256()
    while length > 0:
        piece = os.pread(descriptor, min(CHUNK, length), offset)
        if not piece:
            return None
        digest.update(piece)
        if also is not None:
            also.update(piece)
        offset, length = offset + len(piece), length - len(piece)
        alive()
    return digest.hexdigest()


def _read_journal(journal: Path, noted: dict[tuple[Any, ...], dict[int, str]]) -> None:
    try:
        lines = journal.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = json.loads(line)
            noted.setdefault(tuple(row[name] for name in _SAME), {})[row["unit"]] = row["sha256"]
        except (ValueError, KeyError, TypeError):
            continue  # cut off; what it told of is fetched anew


def _write_durably(file: Path, text: str) -> None:
    partial = file.with_name(file.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)
