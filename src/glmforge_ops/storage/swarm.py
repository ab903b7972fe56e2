"""Who gives which unit to whom: the order in which files spread from one reading of the source to all nodes.

Every node that has a unit may give it to others, so after a unit has been read once the number of its copies doubles
with every round; and since each node takes another unit first, all links are in use after the first few. That is a tree
for each unit rather than one for all of them, with two advantages: a node that is lost costs only what it was about to
give, and a run that is repeated needs no other rule than the first one.

Nothing here knows of connections: this is the state, and what to do next. It is used under one lock.
"""

import itertools
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

SOURCE_AT_ONCE = 2
"""Units that are read from the source, and sent on, at the same time."""

RELAYED_AT_ONCE = 4
"""Units that this machine passes on from node to node at the same time, where nodes do not reach each other."""

GIVEN_AT_ONCE = 2
"""Units that one node gives at the same time: the second one fills the pauses of the first."""

_LOOK_AT = 16
_ASK_AT_RANDOM = 8
_MAX_FAILURES = 3
"""Nodes that do not reach a node before nobody asks it any more; and that a node does not reach before it asks none."""

Unit = tuple[int, int]
"""Number of a file, number of a unit in it."""


class Way(StrEnum):
    """How a unit comes to a node."""

    SOURCE = "source"
    PEER = "peer"
    RELAY = "relay"


@dataclass(frozen=True)
class Task:
    """A unit that a node is to get, and from which other node unless it comes from the source."""

    unit: Unit
    way: Way
    giver: str = ""


class Swarm:
    """The state of all nodes that take part.

    Attributes:
        digests: SHA-256 of every unit that has been read from the source, now or by an earlier attempt.
        alone: nodes that do not reach others, and get what they lack from this machine.
        private: nodes that no other reaches, such as this machine itself.
    """

    def __init__(self, units: Sequence[Unit], private: Collection[str] = (), seed: int = 0) -> None:
        self.units = list(units)
        self.digests: dict[Unit, str] = {}
        self.alone: set[str] = set()
        self.private = set(private)
        self._holders: dict[Unit, set[str]] = {unit: set() for unit in units}
        self._lacking: dict[str, dict[Unit, None]] = {}
        self._lacking_of: dict[str, Counter[int]] = {}
        self._giving: dict[str, int] = {}
        self._failures: dict[str, set[str]] = {}  # node -> those that it did not reach
        self._unreached: Counter[str] = Counter()  # node -> by how many others
        self._unrelayed: dict[str, set[str]] = {}  # node -> those from which this machine got nothing for it
        self._taking: dict[str, Task] = {}
        self._last: dict[str, str] = {}
        self._from_source: set[Unit] = set()
        self._unread = dict.fromkeys(units)
        self._random = random.Random(seed)

    def join(self, claims: dict[str, dict[Unit, str]]) -> None:
        """All nodes begin, with the units that they have. A unit of which nodes tell different things, none has."""
        said: dict[Unit, set[str]] = {}
        for have in claims.values():
            for unit, digest in have.items():
                said.setdefault(unit, set()).add(digest)
        agreed = {unit: digests.pop() for unit, digests in said.items() if len(digests) == 1}
        self.digests.update(agreed)
        for node, have in claims.items():
            self._giving[node], self._failures[node], self._unrelayed[node] = 0, set(), set()
            lacking = [unit for unit in self.units if unit not in have or unit not in agreed]
            self._random.shuffle(lacking)
            self._lacking[node] = dict.fromkeys(lacking)
            self._lacking_of[node] = Counter(file for file, _ in lacking)
            for unit in have.keys() & agreed.keys():
                self._holders[unit].add(node)
                self._unread.pop(unit, None)

    def lacking_files(self, node: str) -> Collection[int]:
        """The files of which the node lacks anything."""
        return self._lacking_of[node].keys()

    def next_task(self, node: str) -> Task | None:
        """What the node is to get next; None if there is nothing to do just now."""
        task = self._from_node(node) or self._read(node)
        if task is not None:
            self._taking[node] = task
            if task.way is Way.SOURCE:
                self._from_source.add(task.unit)
            else:
                self._giving[task.giver] += 1
                self._last[node] = task.giver
        return task

    def done(self, node: str, digest: str) -> None:
        """The node has got what it was to get."""
        unit = self._end(node).unit
        self.digests[unit] = digest
        if self._lacking[node].pop(unit, unit) is None:
            self._lacking_of[node][unit[0]] -= 1
            self._lacking_of[node] += Counter()  # without what is zero
        self._holders[unit].add(node)
        self._unread.pop(unit, None)

    def failed(self, node: str) -> None:
        """The node has not got it from its giver, and does not ask that one again."""
        task = self._end(node)
        if task.way is Way.RELAY:
            self._unrelayed[node].add(task.giver)
        elif task.way is Way.PEER:
            self._failures[node].add(task.giver)
            self._unreached[task.giver] += 1
            if len(self._failures[node]) >= _MAX_FAILURES:
                self.alone.add(node)

    def has_damaged(self, node: str, units: Sequence[Unit]) -> None:
        """What the node had is not what it should be: it must get it anew."""
        for unit in units:
            self._holders[unit].discard(node)
            if unit not in self._lacking[node]:
                self._lacking[node][unit] = None
                self._lacking_of[node][unit[0]] += 1
            if not self._holders[unit]:
                self._unread[unit] = None

    def lose(self, node: str) -> None:
        """The node takes no part any more; what only it had must be read again."""
        if node in self._taking:
            self._end(node)
        self._lacking.pop(node, None)
        self._giving.pop(node, None)
        self._failures.pop(node, None)
        for unit, holders in self._holders.items():
            if node in holders:
                holders.remove(node)
                if not holders:
                    self._unread[unit] = None

    def _end(self, node: str) -> Task:
        task = self._taking.pop(node)
        self._from_source.discard(task.unit)
        if task.giver in self._giving:
            self._giving[task.giver] -= 1
        return task

    def _from_node(self, node: str) -> Task | None:
        """The rarest of the next units that some node can give now."""
        may_relay = sum(task.way is Way.RELAY for task in self._taking.values()) < RELAYED_AT_ONCE
        best: Task | None = None
        fewest, looked = 1 << 30, 0
        for unit in self._lacking[node]:
            holders = self._holders[unit]
            if not holders:
                continue
            looked += 1
            if len(holders) < fewest:
                way, givers = self._givers(holders, node)
                giver = self._free(givers, node)
                if giver is not None and (way is Way.PEER or may_relay):
                    best, fewest = Task(unit, way, giver), len(holders)
            if looked >= _LOOK_AT:
                break
        return best

    def _givers(self, holders: Collection[str], taker: str) -> tuple[Way, Collection[str]]:
        """Those of whom the taker can get something itself; or those of whom this machine may, if there are none."""
        if taker not in self.alone:
            if not (self.private or self._unreached):  # as usual, and there may be a thousand of them
                return Way.PEER, holders
            out = self.private | self._failures[taker]
            reached = [node for node in holders if node not in out and self._unreached[node] < _MAX_FAILURES]
            if reached:
                return Way.PEER, reached
        return Way.RELAY, [node for node in holders if node not in self._unrelayed[taker]]

    def _free(self, givers: Collection[str], taker: str) -> str | None:
        """One that can give now: that to which there is a connection, or the least busy one of some."""
        last = self._last.get(taker)
        if last is not None and last in givers and self._giving[last] < GIVEN_AT_ONCE:
            return last
        start = self._random.randrange(max(1, len(givers) - _ASK_AT_RANDOM))
        for some in (itertools.islice(givers, start, start + _ASK_AT_RANDOM), givers):
            free = [node for node in some if self._giving[node] < GIVEN_AT_ONCE]
            if free:
                return min(free, key=lambda node: self._giving[node])
        return None

    def _read(self, node: str) -> Task | None:
        """What nobody has, in the order of the source; or what the node gets from nobody."""
        if len(self._from_source) >= SOURCE_AT_ONCE:
            return None
        for unit in self._unread:
            if unit not in self._from_source and unit in self._lacking[node]:
                return Task(unit, Way.SOURCE)
        if not self._unrelayed[node]:
            return None
        for unit in self._lacking[node]:
            if unit not in self._from_source and not self._givers(self._holders[unit], node)[1]:
                return Task(unit, Way.SOURCE)
        return None
