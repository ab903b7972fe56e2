"""Records as TensorBoard's event files.

Written here and not by `SummaryWriter`, which takes 0.5 ms of the interpreter for a record of a large run, most of it
for a checksum in Python and a thread of its own (`docs/lab-notes/observability.md`): the format is a few lines, the
messages are TensorBoard's, the checksum is the package crc32c's. A record is one event and one system call.

A file is a sequence of records as TensorFlow writes them: length (uint64), its checksum, the event, its checksum.
"""

import itertools
import os
import socket
import struct
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

from glmforge.extras import needed_for
from glmforge.files import open_regular
from glmforge.observe.bus import Kind
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import METRICS, Record
from glmforge.observe.record_files import append_whole, scalars, unwritable

_FILES = itertools.count()
"""Of this process: names of two files of the same second differ."""


class TensorBoardFile:
    """Writes each number of a record as a TensorBoard scalar under the tag its metric has in the table.

    Labels become parts of the tag: first those of the record (an evaluation's source; task, length and depth of
    needles), then the metric's own. Nothing is buffered.

    Args:
        directory: TensorBoard's log directory of this run.
        resume_step: the step the run resumes after; TensorBoard hides what was logged past it.
        table: has a row for each name in the records.

    Raises:
        MissingPackageError: a package of the extra `observe` is not installed.
        RunFileError: the directory cannot be written.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, resume_step: int | None = None, table: MetricTable = METRICS
    ) -> None:
        check_installed()
        self.directory, self._table = Path(directory), table
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_FILES)}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(self.directory / name, "ab", buffering=0)
        except OSError as error:
            raise unwritable(self.directory, error) from error
        self._append(file_version="brain.Event:2")
        if resume_step is not None:
            from tensorboard.compat.proto.event_pb2 import SessionLog

            self._append(step=resume_step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, record: Mapping[str, object]) -> None:
        """Write the numbers of a record at its `step`; see `scalars`. Raises `RunFileError`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars(self._table, record)]
        self._append(step=record["step"], summary=Summary(value=values))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, **fields: Any) -> None:
        """TensorBoard reads no further than a damaged record, so none is left."""
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(event))
        append_whole(self._file, b"".join((length, _checksum(length), event, _checksum(event))), self.directory)


class TensorBoard:
    """Metrics, evaluations, needles and benchmarks, each in a directory of their own: two writers that resume would
    hide each other's records. Raises `MissingPackageError` where TensorBoard is not installed."""

    name = "TensorBoard"

    def __init__(self, directory: Path, kinds: Collection[Kind] = (Kind.METRICS,)) -> None:
        check_installed()
        names = {Kind.METRICS: "", Kind.EVALUATION: "evaluation", Kind.NEEDLES: "needles", Kind.BENCHMARK: "benchmarks"}
        self._directories = {kind: directory / name for kind, name in names.items() if kind in kinds}
        self._open: dict[Kind, TensorBoardFile] = {}

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self.close()
        for kind, directory in self._directories.items():
            self._open[kind] = TensorBoardFile(directory, resume_step=step, table=table)

    def write(self, kind: Kind, record: Record) -> None:
        if kind in self._directories:
            self._open[kind].write(record)

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def check_installed() -> None:
    """Raises `MissingPackageError` where a package is missing."""
    with needed_for("observe.tensorboard: true"):
        import crc32c  # noqa: F401
        import tensorboard  # noqa: F401


def _checksum(content: bytes) -> bytes:
    """CRC32C, rotated and moved as TensorFlow does, so that a checksum of a checksum is not zero."""
    from crc32c import crc32c

    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
