"""Copy files from shared storage to the own disks of many nodes: the source is read once, nodes serve each other.

This machine reads the source, unit by unit, and sends each to one node; from there it spreads (`swarm`). A node fetches
from another one over ssh, with the keys that the nodes have; nothing is forwarded. A node that reaches no other gets
its units from this machine, which passes them on from a node that has them, so that the source is not read again.

Nodes are independent: one that cannot be reached, has no room, or is lost half-way is named at the end, and the others
get everything. Run again, it sends only what is lacking: what has arrived is told by its checksum.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmforge.errors import HostError
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.place import CACHE_LOCK
from glmforge.runtime.ssh import Ssh, last_line
from glmforge.runtime.waiting import join
from glmforge_ops.storage.connection import TRANSFER, Connection, NodeLost, allow_connections
from glmforge_ops.storage.sources import SourceFile
from glmforge_ops.storage.staged import Report, Staged, StagedNode
from glmforge_ops.storage.supply import SourceError, Supply
from glmforge_ops.storage.swarm import Swarm, Task, Unit, Way

UNIT_BYTES = 64 << 20
"""What is sent, checked and, after an interruption, not sent again at one time."""

_PING_S = 30.0
_DAMAGED_AT_MOST = 5  # arrivals of damaged bytes at one node


@dataclass(frozen=True)
class Check:
    """Somebody got damaged bytes from the node: is the unit there what it should be?"""

    unit: Unit


@dataclass(frozen=True)
class Publish:
    """All units of the file are there."""

    file: int


@dataclass(frozen=True)
class Ping:
    """Nothing to do: is the node still there?"""


Step = Task | Check | Publish | Ping


@dataclass
class Staging:
    """One command's work.

    Attributes:
        ssh, python: how a node is reached, and its Python.
        peer_ssh: how nodes reach each other; None: not at all.
        verify: read what nodes have already, rather than compare length and time of change.
    """

    files: Sequence[SourceFile]
    root: Path
    ssh: Ssh
    python: str = "python3"
    peer_ssh: Ssh | None = None
    verify: bool = True
    at_once: int = 64
    unit_bytes: int = UNIT_BYTES
    report: Report = field(default=lambda staged: None)

    def run(self, hosts: Sequence[str]) -> Staged:
        """Copy to all `hosts`, which are named in the result whatever becomes of them."""
        began = time.monotonic()
        allow_connections(len(hosts))
        self._staged = Staged(len(self.files), sum(f.size for f in self.files), {h: StagedNode(h) for h in hosts})
        self._supply = Supply(self.files, self.unit_bytes, self.root, self.ssh, self.python, self._count_read)
        units = [(at, unit) for at in range(len(self.files)) for unit in range(self._supply.num_units(at))]
        private = [host for host in hosts if host in LOCAL or self.peer_ssh is None]
        self._swarm = Swarm(units, private)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._connections: dict[str, Connection] = {}
        self._starting = threading.Semaphore(self.at_once)
        self._claims: dict[str, dict[Unit, str]] = {}
        self._named: dict[str, set[int]] = {}
        self._to_check: dict[str, list[Unit]] = {host: [] for host in hosts}
        self._to_come = len(hosts)
        self._lost: set[str] = set()
        self._fatal: HostError | None = None
        self._stopped = False
        threads = [threading.Thread(target=self._serve_node, args=(host,), daemon=True) for host in hosts]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(1.0)
                    # Not `with self._changed`, which is Python: an interrupt within its __enter__ leaves the lock held.
                    with self._lock:
                        self.report(self._staged)
        finally:
            self._stop()
            for thread in threads:
                join(thread)
        if self._fatal is not None:
            raise self._fatal
        self._staged.seconds = time.monotonic() - began
        return self._staged

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for connection in self._connections.values():
                connection.kill()
            self._changed.notify_all()

    def _serve_node(self, host: str) -> None:
        node = self._staged.nodes[host]
        try:
            with contextlib.ExitStack() as stack:
                connection = self._begin(host, stack)
                self._fill(node, connection)
                origins = {f.directory: str(f.original.parent) for f in self.files}
                connection.ask({"do": "finish", "origins": origins})
            node.problem = ""
            if node.relayed:
                node.note = f"got files through this machine; {node.note or 'nodes are not to reach each other'}"
        except SourceError as error:
            self._fatal = error
            self._stop()
        except HostError as error:
            node.problem = str(error)
        finally:
            self._supply.leave(host)
            with self._changed:
                if node.problem:
                    self._lost.add(host)
                    self._named.pop(host, None)
                    self._swarm.lose(host)
                if host not in self._claims:
                    self._claims[host] = {}
                    self._came()
                self._connections.pop(host, None)
                self._changed.notify_all()

    # The beginning ------------------------------------------------------------------------------------------------

    def _begin(self, host: str, stack: contextlib.ExitStack) -> Connection:
        """The connection, when all nodes have said what they have."""
        order = {
            "mode": "keep",
            "root": str(self.root),
            "lock": CACHE_LOCK,
            "verify": self.verify,
            "unit_bytes": self.unit_bytes,
            "files": [file.as_order() for file in self.files],
        }
        with self._starting:
            connection = Connection(host, self.ssh, self.python, TRANSFER)
            stack.callback(connection.close)
            with self._changed:
                self._connections[host] = connection
            connection.start(order)
            found = self._checked(connection.answer())
        with self._changed:
            self._claims[host] = {
                (at, unit): digest
                for at, one in enumerate(found)
                for unit, digest in enumerate(one["units"])
                if digest is not None
            }
            self._named[host] = {at for at, one in enumerate(found) if one["named"]}
            self._staged.nodes[host].had_bytes = sum(self._supply.length(unit) for unit in self._claims[host])
            self._came()
        while not self._all_came():
            connection.ask({"do": "ping"})
        return connection

    def _all_came(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._to_come or self._stopped, _PING_S)

    def _came(self) -> None:
        """Another node has said what it has, or will not; when all have, the work begins."""
        self._to_come -= 1
        if self._to_come == 0:
            self._swarm.join({name: have for name, have in self._claims.items() if name in self._named})
            self._changed.notify_all()

    def _checked(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """What a node says that it has, if it can be that."""
        found = answer.get("files")
        counts = [self._supply.num_units(at) for at in range(len(self.files))]
        if not isinstance(found, list) or [len(one["units"]) for one in found] != counts:
            raise NodeLost("gave an answer that is none")
        return found

    # The work -----------------------------------------------------------------------------------------------------

    def _fill(self, node: StagedNode, connection: Connection) -> None:
        """Get what the node lacks, give every file its name, and serve others until all have everything."""
        num_damaged = 0
        while (step := self._next_step(node)) is not None:
            answer = self._carry_out(step, connection)
            with self._changed:
                if "damaged" in answer:
                    num_damaged += 1
                    self._take_damage(step, node, answer["damaged"])
                elif isinstance(step, Publish):
                    self._named[node.host].add(step.file)
                elif isinstance(step, Task) and "peer_failed" in answer:
                    self._swarm.failed(node.host)
                    node.note = node.note or f"did not reach {step.giver}: {last_line(str(answer['peer_failed']))}"
                elif isinstance(step, Task):
                    self._swarm.done(node.host, answer["digest"])
                    self._count(step, node)
                self._changed.notify_all()
            if num_damaged > _DAMAGED_AT_MOST:
                raise NodeLost("damaged bytes arrive again and again; look at its disk, memory and link")

    def _next_step(self, node: StagedNode) -> Step | None:
        """What to do for the node now; waits until there is something. None: all nodes have everything."""
        with self._changed:
            while not self._stopped:
                if self._to_check[node.host]:
                    return Check(self._to_check[node.host].pop())
                lacking, named = self._swarm.lacking_files(node.host), self._named[node.host]
                ready = next((at for at in range(len(self.files)) if at not in named and at not in lacking), None)
                if ready is not None:
                    return Publish(ready)
                if lacking and (task := self._swarm.next_task(node.host)) is not None:
                    return task
                if self._all_named():
                    return None
                if not self._changed.wait(_PING_S):
                    return Ping()
        raise NodeLost("was interrupted")

    def _all_named(self) -> bool:
        live = [host for host in self._staged.nodes if host not in self._lost]
        return all(len(self._named.get(host, ())) == len(self.files) for host in live)

    def _carry_out(self, step: Step, connection: Connection) -> dict[str, Any]:
        if isinstance(step, Task):
            return self._fetch(step, connection) if step.way is Way.PEER else self._send(step, connection)
        if isinstance(step, Check):
            at, unit = step.unit
            return connection.ask({"do": "check", "file": at, "unit": unit, "sha256": self._swarm.digests[step.unit]})
        if isinstance(step, Publish):
            units = [self._swarm.digests[step.file, unit] for unit in range(self._supply.num_units(step.file))]
            return connection.ask({"do": "publish", "file": step.file, "units": units})
        return connection.ask({"do": "ping"})

    def _fetch(self, task: Task, connection: Connection) -> dict[str, Any]:
        """The node gets the unit from another one."""
        assert self.peer_ssh is not None, "else every node is private"
        at, unit = task.unit
        peer = {"name": task.giver, "command": TRANSFER.command(task.giver, self.peer_ssh, self.python)}
        digest = self._swarm.digests[task.unit]
        order = {"do": "get", "file": at, "unit": unit, "sha256": digest, "peer": peer}
        return connection.ask(order) | {"digest": digest}

    def _send(self, task: Task, connection: Connection) -> dict[str, Any]:
        """The node gets the unit from this machine, which reads it at the source or fetches it from another node."""
        at, unit = task.unit
        known = self._swarm.digests.get(task.unit)
        digest = hashlib.sha256()
        try:
            pieces = self._supply.pieces(task, connection.host)
        except HostError as error:
            return {"peer_failed": str(error)}
        connection.tell({"do": "put", "file": at, "unit": unit})
        for piece in pieces:
            digest.update(piece)
            connection.send(piece)
        found = digest.hexdigest()
        if task.way is Way.SOURCE and known not in (None, found):
            raise SourceError(f"{self.files[at].original}: changed since it was staged first; see that it is whole")
        return connection.ask({"sha256": known or found}) | {"digest": known or found}

    def _take_damage(self, step: Step, node: StagedNode, units: list[int]) -> None:
        """Bytes are not what they should be: those that arrived, or those that a node has."""
        if isinstance(step, Task):
            self._swarm.failed(node.host)
            if step.giver in self._to_check:
                self._to_check[step.giver].append(step.unit)
        elif isinstance(step, Check | Publish):
            file = step.file if isinstance(step, Publish) else step.unit[0]
            self._named[node.host].discard(file)
            self._swarm.has_damaged(node.host, [(file, unit) for unit in units])

    def _count_read(self, num_bytes: int) -> None:
        with self._changed:
            self._staged.source_bytes += num_bytes

    def _count(self, task: Task, node: StagedNode) -> None:
        length = self._supply.length(task.unit)
        node.came_bytes += length
        if task.way is Way.PEER:
            self._staged.peer_bytes += length
        elif task.way is Way.RELAY:
            self._staged.relayed_bytes += length
            node.relayed = True
