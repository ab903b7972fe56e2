"""Units as this machine gives them to nodes: read at the source, or passed on from a node that has them."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.errors import HostError
from glmforge.runtime.ssh import Ssh, last_line
from glmforge_ops.hosts.on_node.wire import CHUNK
from glmforge_ops.storage.connection import TRANSFER, Connection, NodeRefused
from glmforge_ops.storage.sources import SourceFile
from glmforge_ops.storage.swarm import Task, Unit, Way


class SourceError(HostError):
    """The source cannot be read, or is not what it was: nothing that is sent on would be right."""


@dataclass
class Supply:
    """The files, cut into units; at nodes they lie below `root`.

    `count` is told how many bytes have been read from the source. Each node is given by a thread of its own.
    """

    files: Sequence[SourceFile]
    unit_bytes: int
    root: Path
    ssh: Ssh
    python: str
    count: Callable[[int], None]
    _givers: dict[str, Connection] = field(default_factory=dict)

    def num_units(self, file: int) -> int:
        """Of a file; none of an empty one."""
        return -(-self.files[file].size // self.unit_bytes)

    def length(self, unit: Unit) -> int:
        """In bytes."""
        return min(self.unit_bytes, self.files[unit[0]].size - unit[1] * self.unit_bytes)

    def pieces(self, task: Task, taker: str) -> Iterator[bytes]:
        """The bytes of the unit. Raises `HostError` if the node that has it does not give it, before the first byte;
        `SourceError` while it is read.
        """
        if task.way is Way.SOURCE:
            return self._read(task)
        # What another node gives must be here before it is announced: a unit cannot be taken back half-way.
        return iter([b"".join(self._relayed(task, taker))])

    def _read(self, task: Task) -> Iterator[bytes]:
        file = self.files[task.unit[0]]
        start = task.unit[1] * self.unit_bytes
        left = self.length(task.unit)
        try:
            with file.original.open("rb", buffering=0) as source:
                while left:
                    status = os.fstat(source.fileno())
                    piece = os.pread(source.fileno(), min(CHUNK, left), start)
                    if not piece or (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
                        raise SourceError(f"{file.original}: changed while it was staged; start again when it is whole")
                    start, left = start + len(piece), left - len(piece)
                    self.count(len(piece))
                    yield piece
        except OSError as error:
            raise SourceError(f"{file.original}: cannot be read ({error.strerror}); make it readable") from None

    def _relayed(self, task: Task, taker: str) -> Iterator[bytes]:
        """A unit from a node that has it, to this machine; the connection is kept for the next one."""
        file, (_, unit), length = self.files[task.unit[0]], task.unit, self.length(task.unit)
        giver = self._givers.get(taker)
        try:
            if giver is None or giver.host != task.giver:
                self.leave(taker)
                giver = self._givers[taker] = Connection(task.giver, self.ssh, self.python, TRANSFER)
                giver.start({"mode": "serve", "root": str(self.root)})
            asked = {"directory": file.directory, "name": file.name, "offset": unit * self.unit_bytes, "length": length}
            answer = giver.ask(asked)
            if "error" in answer:
                raise NodeRefused(last_line(str(answer["error"])))
            yield from giver.read(length)
        except HostError:
            self.leave(taker)
            raise

    def leave(self, taker: str) -> None:
        """End the connection that was kept for the node."""
        if (giver := self._givers.pop(taker, None)) is not None:
            giver.kill()
            giver.close()
