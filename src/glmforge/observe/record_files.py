"""JSONL files that records go to: the run's memory. TensorBoard's (`glmforge.observe.tensorboard`) are a view of it.

`metrics.jsonl` has one JSON object per line, written unbuffered, so a killed process loses at most the
line it was writing. Opening the file again repairs that: the cut line goes. A run resumed from its checkpoint
of step k also drops everything from the first record past step k on, because these steps are trained again;
the file always tells one story. Records come in the order of their steps, so both repairs are one truncation,
which is atomic by itself and costs no second copy of the file.

JSON knows neither NaN nor infinity, but a diverging run is when metrics matter most: such numbers are written
as the strings "NaN", "Infinity" and "-Infinity" (the convention of protobuf's JSON form), and `read_jsonl`
turns them back.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from glmforge.errors import GlmforgeError
from glmforge.files import open_regular, read_end, shown
from glmforge.observe.metric_table import LABEL, TEXT, MetricTable, label_text
from glmforge.observe.metrics import Record
from glmforge.runtime.lease import ensure_writable

_MAX_LINE = 1 << 26
"""Bytes; a longer line is not a record."""

END_BYTES = 1 << 16
"""What `last_records` reads of the end of a file."""

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunFileError(GlmforgeError):
    """A file of a run directory that is missing, damaged or cannot be written."""


class JsonlFile:
    """Appends records to a JSONL file, one unbuffered line each.

    Args:
        path: the file; missing folders are made, an existing file is repaired and continued.
        resume_step: the step the run resumes after; records past it are dropped. None keeps every whole one.

    Raises:
        RunFileError: a line other than the last is damaged, or the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume_step: int | None = None) -> None:
        self.path = Path(path)
        ensure_writable(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _repair(self.path, resume_step)
            # Unbuffered: after a failed write nothing is left that close() would try again.
            self._file = open_regular(self.path, "ab", buffering=0)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def write(self, record: Mapping[str, object]) -> None:
        """Append one record and hand it to the operating system: it survives the end of this process.

        What cannot be written whole is taken back, so that the file can be continued once there is space again.
        """
        ensure_writable(self.path)
        append_whole(self._file, encode_line(record), self.path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def append_whole(file: BinaryIO, content: bytes, path: Path) -> None:
    """Append to an unbuffered file; what cannot be written whole is taken back. Raises `RunFileError` naming `path`."""
    size = os.fstat(file.fileno()).st_size
    try:
        while content:
            content = content[file.write(content) :]  # short when a disk is filling up
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise unwritable(path, error) from error


def scalars(table: MetricTable, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record but its step, each under its tag; text and tables are left to the JSONL file.

    One number per source becomes a scalar per source. One number per layer becomes a scalar per layer, numbered from 0,
    but only of the few records that have the table `expert_load` too: hundreds of scalars in every record would make
    TensorBoard's files many times as large.
    """
    rows = [table[name] for name in record if name != "step"]
    of_record = [label_text(record[row.name]) for row in rows if row.kind is LABEL]
    with_lists = "source" in record or "expert_load" in record
    for row in rows:
        value = record[row.name]
        if row.kind in (TEXT, LABEL) or (isinstance(value, list) and (not with_lists or len(row.labels) > 1)):
            continue
        for labels, number in row.points(value):
            yield "/".join((row.tag, *of_record, *labels)), number


def encode_line(record: Mapping[str, object]) -> bytes:
    """A record as a line of a JSONL file."""
    plain = {name: _encode(value) for name, value in record.items()}
    return json.dumps(plain, allow_nan=False).encode("ascii") + b"\n"


def read_jsonl(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a JSONL file in order; a cut last line, as a killed run leaves it, is skipped.

    Raises:
        RunFileError: the file is missing, or a line other than the last is damaged.
    """
    return [record for _, record in _whole_lines(Path(path))]


def last_records(path: Path) -> list[Record]:
    """The records at the end of a JSONL file in order, [] if there is no file: as fast for a long one.

    A last line that was cut is omitted. Raises `RunFileError` if another line is damaged, or it is no plain file.
    """
    lines = [line for line in _end_lines(path) if line.strip()]
    found = [decode_line(line) for line in lines]
    if None in found[:-1]:
        raise RunFileError(f"{shown(path)}: line {lines[found.index(None)][:80]!r} is corrupt; delete that line")
    return [record for record in found if record is not None]


def newest_records(path: Path, *words: str) -> Iterator[Record]:
    """The records at the end, newest first; damaged lines are omitted. Raises `RunFileError`: it is no plain file.

    Args:
        words: decode only lines that have one of these as a string.
    """
    wanted = [f'"{word}"'.encode() for word in words]
    for line in reversed(_end_lines(path)):
        if not wanted or any(word in line for word in wanted):
            record = decode_line(line)
            if record is not None:
                yield record


def _end_lines(path: Path) -> list[bytes]:
    """Whole ones, but perhaps the last."""
    if not path.exists():
        return []
    content = read_end(path, error=RunFileError, max_bytes=END_BYTES)
    return content.split(b"\n")[1 if len(content) == END_BYTES else 0 :]


def _whole_lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    """Every line with its record, up to a cut last line."""
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise RunFileError(f"{path}: no such file; pass the directory of a run that has trained") from error
    except OSError as error:
        raise RunFileError(f"{path}: cannot be read ({error.strerror}); restore the run's file") from error
    with file:
        number, following = 1, file.readline(_MAX_LINE)
        while following:
            line, following = following, file.readline(_MAX_LINE)
            record = decode_line(line)
            if record is not None:
                yield line, record
            elif following:
                raise RunFileError(
                    f"{path}: line {number} is not a JSON object; delete that line, the other lines are usable"
                )
            number += 1


def _repair(path: Path, resume_step: int | None) -> None:
    """Truncate the file after its last whole record of a step that the run keeps."""
    kept, last_line = 0, b"\n"
    for line, record in _whole_lines(path):
        if resume_step is not None and record.get("step", 0) > resume_step:
            break
        kept, last_line = kept + len(line), line
    if kept < path.stat().st_size:
        os.truncate(path, kept)
    if not last_line.endswith(b"\n"):
        with open_regular(path, "ab") as file:
            file.write(b"\n")


def _encode(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _encode(one) for key, one in value.items()}
    return [_encode(one) for one in value] if isinstance(value, list) else value


def decode_line(line: bytes) -> Record | None:
    """The record on a line of a JSONL file; None for a line that was cut or is no JSON object."""
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:  # JSONDecodeError or UnicodeDecodeError: the line was cut
        return None
    if not isinstance(record, dict):
        return None
    suspect = any(f'"{word}"'.encode() in line for word in _NON_FINITE)
    return {name: _decode(value) for name, value in record.items()} if suspect else record


def _decode(value: Any) -> Any:
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _decode(one) for key, one in value.items()}
    return [_decode(one) for one in value] if isinstance(value, list) else value


def unwritable(path: Path, error: OSError) -> RunFileError:
    """The error for a file that the operating system refuses to write."""
    return RunFileError(f"{path}: cannot be written ({error.strerror}); free some space or fix its permissions")
