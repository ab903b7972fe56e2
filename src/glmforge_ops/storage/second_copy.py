"""Second copies of a run's checkpoints: on another file system, or on a machine that ssh reaches.

    DESTINATION/<run>/checkpoints/step-00000120/     as in the run itself
    DESTINATION/<run>/config.yaml, tokenizer/ ...    so that the copy is a run that can be resumed and talked to

The newest whole checkpoint is copied, read back there and compared with its manifest before it gets its name; what is
interrupted goes on where it was. Then older copies are removed, never the one that has just been read back. The way is
that of staging (`glmforge_ops.storage`): the other machine needs Python and nothing of ours.

A copy reads a checkpoint that the run may delete at any moment, when a later one is whole: then that one is copied.
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest
from glmforge.checkpoint.format.store import latest_checkpoint
from glmforge.errors import CheckpointError, HostError
from glmforge.files import shown
from glmforge.observe.run import RunDirectory
from glmforge.runtime.hostfile import LOCAL, parse_hosts
from glmforge.runtime.ssh import Ssh
from glmforge_ops.storage.connection import COPIES, Connection, NodeLost, NodeRefused
from glmforge_ops.storage.sources import SourceFile

logger = logging.getLogger(__name__)

UNIT_BYTES = 64 << 20
_CHUNK = 1 << 20
_LOCK = ".copy.lock"
_HOST_AND_DIRECTORY = re.compile(r"(?P<host>[^/:]+):(?P<directory>/.*)", re.DOTALL)
_ATTEMPTS = 3

Report = Callable[[int, int], None]
"""Called with the bytes sent and those to send."""


@dataclass(frozen=True)
class Destination:
    """Where copies of runs are kept: a directory of `host`, which is this machine unless it is named."""

    host: str
    directory: Path

    def __str__(self) -> str:
        return str(self.directory) if self.host in LOCAL else f"{self.host}:{self.directory}"


@dataclass(frozen=True)
class Copied:
    """A checkpoint that is whole at the destination now. `sent_bytes` are those that went there."""

    name: str
    num_files: int
    num_bytes: int
    sent_bytes: int
    seconds: float
    removed: tuple[str, ...]


class _Gone(Exception):
    """The run has deleted the checkpoint while it was copied."""


def parse_destination(text: str) -> Destination:
    """DIRECTORY, or HOST:/DIRECTORY. Raises `HostError`."""
    if found := _HOST_AND_DIRECTORY.fullmatch(text):
        names = parse_hosts(found["host"], "--to")
        if len(names) != 1:
            raise HostError(f"--to {shown(text)}: names more than one host; give one")
        return Destination(names[0], Path(found["directory"]))
    if not text or re.match(r"[^/]+:", text):
        raise HostError(f"--to {shown(text)}: give a directory, or HOST:/DIRECTORY with an absolute path")
    return Destination(LOCAL[0], Path(text).absolute())


def copy_newest(
    run: Path,
    destination: Destination,
    ssh: Ssh,
    *,
    keep: int = 2,
    python: str = "python3",
    unit_bytes: int = UNIT_BYTES,
    unless: str | None = None,
    report: Report = lambda done, total: None,
) -> Copied | None:
    """Copy the newest whole checkpoint of a run; None if it is called `unless`.

    Raises:
        CheckpointError: the run has no whole checkpoint, or its newest one is damaged.
        HostError: the destination cannot be reached or written, or has no room.
    """
    root = RunDirectory(run)
    if not root.checkpoints.is_dir():
        raise CheckpointError(f"{shown(run)}: has no checkpoints; give the directory of a run that has saved")
    for _ in range(_ATTEMPTS):
        newest = latest_checkpoint(root.checkpoints)
        if newest is None:
            raise CheckpointError(f"{root.checkpoints}: no checkpoint there yet; wait for the run's first")
        if newest.name == unless:
            return None
        try:
            return _Copying(run, newest, destination, unit_bytes, report).run(ssh, python, keep)
        except _Gone:
            logger.info("%s was deleted by the run while it was copied; taking the next", newest)
    raise CheckpointError(
        f"{root.checkpoints}: checkpoints are deleted faster than they are copied; raise checkpoint.keep_last"
    )


class _Copying:
    def __init__(self, run: Path, checkpoint: Path, destination: Destination, unit_bytes: int, report: Report) -> None:
        self._run, self._checkpoint, self._destination = run.absolute(), checkpoint, destination
        self._unit_bytes, self._report = unit_bytes, report
        self._sent = 0

    def run(self, ssh: Ssh, python: str, keep: int) -> Copied:
        began, name = time.monotonic(), self._checkpoint.name.removesuffix(".replaced")
        files = self._files()
        try:
            with ExitStack() as stack:
                node = Connection(self._destination.host, ssh, python, COPIES)
                stack.callback(node.close)
                node.start({"root": str(self._destination.directory / self._run.name), "lock": _LOCK})
                node.answer()
                self._transfer(node, None, list(_files_of_run(self._run)))
                if node.ask({"do": "verify", "name": name})["problem"] is not None or not self._is_same(node, files):
                    self._transfer(node, name, files)
                    node.ask({"do": "name", "name": name})
                removed = node.ask({"do": "rotate", "keep": keep, "safe": name})["removed"]
        except (NodeLost, NodeRefused) as error:
            raise HostError(f"{self._destination}: {error}") from None
        num_bytes = sum(file.size for file in files)
        seconds = time.monotonic() - began
        return Copied(name, len(files), num_bytes, self._sent, seconds, tuple(map(str, removed)))

    def _files(self) -> list[SourceFile]:
        """What the checkpoint consists of, the manifest last."""
        try:
            listed = read_manifest(self._checkpoint).files
            files = [_describe(self._checkpoint / name, sha256=record.sha256) for name, record in listed.items()]
            manifest = self._checkpoint / MANIFEST_FILE
            digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
            return [*files, _describe(manifest, sha256=digest)]
        except FileNotFoundError as error:
            raise _Gone from error

    def _is_same(self, node: Connection, files: Sequence[SourceFile]) -> bool:
        """Whether the whole checkpoint of that name at the destination is this one, and not of an earlier course."""
        manifest = files[-1]
        answer = node.ask({"do": "digest", "name": f"{self._checkpoint.name.removesuffix('.replaced')}"})
        return answer.get("sha256") == manifest.sha256

    def _transfer(self, node: Connection, name: str | None, files: Sequence[SourceFile]) -> None:
        """Send what is lacking, unit by unit, and have every file read back."""
        orders = [file.as_order() for file in files]
        found = node.ask({"do": "open", "name": name, "files": orders, "unit_bytes": self._unit_bytes})["files"]
        counts = [-(-file.size // self._unit_bytes) for file in files]
        if not isinstance(found, list) or [len(one["units"]) for one in found] != counts:
            raise NodeLost("gave an answer that is none")
        total = sum(file.size for file in files)
        for at, (file, one) in enumerate(zip(files, found, strict=True)):
            if one["named"]:
                continue
            units = one["units"]
            for _ in range(2):
                for unit in [unit for unit, digest in enumerate(units) if digest is None]:
                    units[unit] = self._send(node, file, at, unit)
                    self._report(min(self._sent, total), total)
                damaged = node.ask({"do": "publish", "file": at, "units": units}).get("damaged", [])
                if not damaged:
                    break
                for unit in damaged:
                    units[unit] = None
            else:
                raise NodeLost(f"{file.name}: what was written is not what is on its disk, twice; look at the disk")

    def _send(self, node: Connection, file: SourceFile, at: int, unit: int) -> str:
        length = min(self._unit_bytes, file.size - unit * self._unit_bytes)
        digest, sent = hashlib.sha256(), 0
        node.tell({"do": "put", "file": at, "unit": unit})
        for piece in _read(file.original, unit * self._unit_bytes, length):
            digest.update(piece)
            node.send(piece)
            sent += len(piece)
        if sent != length:
            raise _Gone
        self._sent += length
        if "damaged" in node.ask({"sha256": digest.hexdigest()}):
            raise NodeLost(f"{file.name}: arrives damaged; look at its link and memory")
        return digest.hexdigest()


def _files_of_run(run: Path) -> Iterator[SourceFile]:
    """The small files that make a directory of checkpoints a run."""
    root = RunDirectory(run)
    for path in (root.config, root.adapters, root.info):
        if path.is_file():
            yield _describe(path)
    if root.tokenizer.is_dir():
        for path in sorted(root.tokenizer.iterdir()):
            if path.is_file():
                yield _describe(path, directory="tokenizer")


def _describe(path: Path, directory: str = "", sha256: str | None = None) -> SourceFile:
    status = path.stat()
    return SourceFile(path, directory, path.name, status.st_size, status.st_mtime_ns, sha256)


def _read(path: Path, offset: int, length: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as source:
            source.seek(offset)
            while length and (piece := source.read(min(_CHUNK, length))):
                length -= len(piece)
                yield piece
    except FileNotFoundError as error:
        raise _Gone from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def follow(
    copy: Callable[[str | None], Copied | None],
    interval_s: float,
    tell: Callable[[Copied], None],
    wait: Callable[[float], Any] = time.sleep,
) -> None:
    """Copy every checkpoint that comes, until the caller's process is interrupted. What fails is tried again.

    Args:
        copy: copies the newest one, unless it has the name it is given.
        wait: between two looks.
    """
    last: str | None = None
    while True:
        try:
            done = copy(last)
            if done is not None:
                last = done.name
                tell(done)
        except (HostError, CheckpointError) as error:
            logger.warning("%s; trying again in %.0f s", error, interval_s)
        wait(interval_s)
