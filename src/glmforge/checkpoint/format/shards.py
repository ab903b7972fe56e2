"""What one rank writes: its share of the tensors, in DCP's format, hashed on the way to the disk.

DCP plans which rank writes what, and writes it. Its writer is extended in four ways:

* Files are hashed while they are written, so that nothing must be read again for its checksum. torch's own CRC-32
  of every tensor, which no reader of these files looks at, is omitted for that: it is a third of the arithmetic.
* The disk begins with what has been written at once, without waiting for the system's write-back: most of
  a checkpoint would otherwise wait in memory for the final `fsync`.
* A large share is cut into several files, written and hashed by one thread each: torch, `hashlib` and `write` let go
  of the interpreter lock. DCP's own threads are not used: an error in one of them is lost, and the save succeeds
  without that thread's tensors.
* Errors are put into words where they happen. A full disk surfaces as a `RuntimeError` of torch's zip writer with the
  `OSError` as its context, which is lost when the error is sent to the other ranks.
"""

import errno
import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.serialization import set_crc32_options

from glmforge.checkpoint.collective import current_group, raise_failures
from glmforge.checkpoint.format.manifest import FileRecord
from glmforge.checkpoint.format.writers import BalancedSavePlanner, item_bytes
from glmforge.errors import CheckpointError
from glmforge.observe.units import format_bytes
from glmforge.runtime.os_errors import describe_os_error
from glmforge.runtime.waiting import map_in_threads

_METADATA = ".metadata"

_MAX_FILES = 4
_MIN_FILE_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20  # written from the cache that hashing has filled
_WRITE_BACK_BYTES = 16 << 20

# DCP warns whenever it works for one process alone, which is no accident here. For good and not around each call:
# the filters are the whole process's, and saves run beside training.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


def write_shards(
    directory: Path,
    tensors: dict[str, Tensor],
    planner: SavePlanner | None = None,
    *,
    file_bytes: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, FileRecord]:
    """Write this rank's share of `tensors` to `directory` and return its files. All ranks call this together.

    The files are on the disk when this returns. Rank 0's include DCP's metadata. `file_bytes` is for a `planner` that
    makes tensors when they are written: DCP lets go of them at the end of a file, so files are about so large, and
    written one after the other. `advance` is called, from several threads, at every piece that goes to the disk. Raises
    `CheckpointError`, on all ranks the same.
    """
    writer = _ShardWriter(directory, sum(t.numel() * t.element_size() for t in tensors.values()), file_bytes, advance)
    with dcp_errors_in_words():
        save(tensors, storage_writer=writer, planner=planner or BalancedSavePlanner(), process_group=current_group())
    return writer.records


class _ShardWriter(FileSystemWriter):
    """`records` is what this rank has written."""

    def __init__(self, path: Path, total_bytes: int, file_bytes: int | None, advance: Callable[[], None]) -> None:
        super().__init__(path, thread_count=1)
        self.total_bytes = total_bytes
        self.file_bytes = file_bytes
        self.records: dict[str, FileRecord] = {}
        self.fs = _HashingFileSystem(self.records, advance)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        with self._errors_in_words():
            return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        files = _share_out(plan.items) if self.file_bytes is None else _cut(plan.items, self.file_bytes)
        plans = [
            replace(plan, items=items, storage_data=type(plan.storage_data)(f"{plan.storage_data.prefix}{n or ''}"))
            for n, items in enumerate(files)
        ]

        def write(plan: SavePlan) -> list[WriteResult]:
            return FileSystemWriter.write_data(self, plan, planner).value()

        num_threads = len(plans) if self.file_bytes is None else 1
        # The option is a thread's own in torch 2.13.
        written = map_in_threads(write, plans, num_threads, at_start=lambda: set_crc32_options(False))
        with self._errors_in_words():
            results = [result for of_file in written for result in of_file]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        with self._errors_in_words():
            super().finish(metadata, results)
        self.records[_METADATA] = self.records.pop(f"{_METADATA}.tmp")  # the name that DCP writes it under

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(self._describe(error)) from error
        except RuntimeError as error:  # torch's zip writer, after its file refused a write
            if not isinstance(error.__context__, OSError):
                raise
            raise CheckpointError(self._describe(error.__context__)) from error

    def _describe(self, error: OSError) -> str:
        directory = Path(self.path)
        message = describe_os_error(error, f"writing {directory}")
        if error.errno != errno.ENOSPC:
            return message
        available = shutil.disk_usage(directory).free + _size_of(directory)
        lacking = self.total_bytes - available
        enough = f": at least {format_bytes(lacking)} more" if lacking > 0 else ""
        return f"{message} (the checkpoint takes {format_bytes(self.total_bytes)}{enough})"


class _HashingFileSystem(FileSystem):
    """Records what is written through it, under the names of the files."""

    def __init__(self, records: dict[str, FileRecord], advance: Callable[[], None]) -> None:
        self.records, self.advance = records, advance

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as file:
            stream = _HashingStream(file, self.advance)
            yield stream
        self.records[Path(path).name] = FileRecord(size=stream.size, sha256=stream.hash.hexdigest())


class _HashingStream(io.RawIOBase):
    """A file that is written from its beginning to its end."""

    def __init__(self, file: Any, advance: Callable[[], None]) -> None:
        self.file, self.hash, self.size = file, hashlib.sha256(), 0
        self.advance = advance
        self._handed_over = 0  # bytes that the disk has begun with

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK_BYTES):
            chunk = view[start : start + _CHUNK_BYTES]
            self.hash.update(chunk)
            self.file.write(chunk)
            self.size += len(chunk)
            if self.size - self._handed_over >= _WRITE_BACK_BYTES:
                self._hand_over()
                self.advance()
        return len(view)

    def _hand_over(self) -> None:
        """Have the disk begin with what has been written; what it has finished with may leave memory."""
        with suppress(OSError):  # some network file systems take no such advice
            start, length = self._handed_over, self.size - self._handed_over
            os.posix_fadvise(self.file.fileno(), start, length, os.POSIX_FADV_DONTNEED)
        self._handed_over = self.size

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def fileno(self) -> int:
        self.file.flush()  # who asks for it is about to force the file to the disk
        return int(self.file.fileno())

    def flush(self) -> None:
        if not self.file.closed:
            self.file.flush()


def _share_out(items: list[WriteItem]) -> list[list[WriteItem]]:
    """The items of each of this rank's files, of about equal size, the largest item first."""
    total = sum(map(item_bytes, items))
    files: list[list[WriteItem]] = [[] for _ in range(min(_MAX_FILES, max(1, total // _MIN_FILE_BYTES)))]
    sizes = [0] * len(files)
    for item in sorted(items, key=item_bytes, reverse=True):
        smallest = sizes.index(min(sizes))
        files[smallest].append(item)
        sizes[smallest] += item_bytes(item)
    return files


def _cut(items: list[WriteItem], file_bytes: int) -> list[list[WriteItem]]:
    """The items in order, in files that end when they have reached `file_bytes`."""
    files: list[list[WriteItem]] = [[]]
    size = 0
    for item in items:
        if size >= file_bytes:
            files.append([])
            size = 0
        files[-1].append(item)
        size += item_bytes(item)
    return files


@contextmanager
def dcp_errors_in_words(*, alone: bool = False) -> Iterator[None]:
    """Turn the failures that DCP gathered from all ranks into one `CheckpointError`; `alone`, those of this rank.

    Whatever is not a failure of the disk or of the user is a defect, or Ctrl-C, and stays what it is.
    """
    try:
        yield
    except CheckpointException as error:
        causes = {r: cause for r, (cause, _) in error.failures.items()}
        for cause in causes.values():
            if isinstance(cause, KeyboardInterrupt):
                raise cause from error
            if not isinstance(cause, OSError | CheckpointError):
                raise RuntimeError(str(error)) from error
        messages = {r: describe_os_error(c) if isinstance(c, OSError) else str(c) for r, c in causes.items()}
        if alone:
            raise CheckpointError(*messages.values()) from error
        raise_failures(messages)


def _size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())
