"""When a run on fewer nodes than it may have should leave its allocation for a larger one.

A node that Slurm has taken from a job is not given back to it, so a job that has lost one and goes on with the rest
stays small, however many nodes are idle. It can save and be queued again; that costs the time of a start and Slurm's
two minutes, and the nodes that it has may go to somebody else. So it is done only

* where the job's options ask for it (`max_nodes`);
* when enough nodes have been idle for a while (`grow_after_s`), and no other job waits for nodes of the partition, to
  which ours would go;
* when the run has got past what earlier attempts had done: a state that is being computed again is not worth leaving;
* twice as late after each time that it brought nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from glmforge.config.launch import SupervisorConfig

GROWS = "grows"
"""The event of a decision to go on with more nodes; `beyond`: not of the allocation, and `have`: so many until then."""

ATTEMPT_STARTED = "attempt started"
"""The supervisor's event of an attempt that begins on `nodes`."""


class Growth:
    """Looks at the nodes that are idle, again and again, during one attempt on `have` nodes.

    Args:
        bears: whether the job can run on so many nodes.
        futile: how often the job has been queued again for more nodes in vain.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        have: int,
        bears: Callable[[int], bool],
        futile: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.have, self.bears, self.clock = config, have, bears, clock
        self._after_s = None if config.grow_after_s is None else config.grow_after_s * 2.0 ** min(futile, 30)
        self._since: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the job may ever leave for more nodes than it has."""
        return self._after_s is not None and (self.config.max_nodes or 0) > self.have

    def look(self, idle: int, *, recomputes: bool) -> int | None:
        """How many nodes to go on with, once that is to be done. `idle`: nodes that could be had now."""
        count = self._most(idle) if self.is_wanted else None
        if count is None:
            self._since = None
            return None
        if self._since is None:
            self._since = self.clock()
        assert self._after_s is not None
        return None if recomputes or self.clock() - self._since < self._after_s else count

    def _most(self, idle: int) -> int | None:
        most = min(self.config.max_nodes or 0, self.have + idle)
        return next((count for count in range(most, self.have, -1) if self.bears(count)), None)


def futile_times(events: Iterable[Mapping[str, Any]]) -> int:
    """How often in a row the job was queued again for more nodes, and its next attempt had no more than before."""
    count, before, was_queued = 0, None, False
    for event in events:
        if event.get("event") == GROWS and event.get("beyond"):
            before, was_queued = event.get("have"), False
        elif event.get("event") == "requeued":
            was_queued = True
        elif event.get("event") == ATTEMPT_STARTED and isinstance(before, int):
            nodes = event.get("nodes")
            if isinstance(nodes, list) and len(nodes) > before:
                count = 0
            elif was_queued:
                count += 1
            before = None
    return count
