"""Looks now and then, while an attempt trains, whether the job should go on with more nodes than it has."""

import time
from collections.abc import Callable

from glmforge.observe.job_records import AttemptRecord, JobDescription, utc_now
from glmforge_ops.jobs.supervisor.books import Books
from glmforge_ops.jobs.supervisor.policy.decide import Situation, choose_nodes
from glmforge_ops.jobs.supervisor.policy.growth import GROWS, Growth, futile_times
from glmforge_ops.jobs.supervisor.policy.ledger import Ledger
from glmforge_ops.jobs.supervisor.progress import Progress
from glmforge_ops.jobs.supervisor.verdict.evidence import GROW, GROW_BEYOND

_EVERY_S, _UNANSWERED_EVERY_S = 30.0, 300.0
"""Nobody watches the ranks while a scheduler is asked that does not answer."""


class MoreNodes:
    """For one attempt.

    Args:
        say: writes an event of the attempt.
    """

    def __init__(
        self,
        books: Books,
        description: JobDescription,
        bears: Callable[[int], bool],
        attempt: AttemptRecord,
        progress: Progress,
        say: Callable[..., None],
    ) -> None:
        self.books, self.launch, self.bears = books, description.launch, bears
        self.attempt, self.progress, self.say = attempt, progress, say
        self.config = self.launch.supervisor
        self.have = len(attempt.nodes)
        self.growth = Growth(self.config, self.have, bears, futile_times(books.job.read_events()))
        self._never = description.kind != "train" or self.have >= (self.config.max_nodes or self.launch.nodes)
        self._every_s = self._next_s = min(_EVERY_S, self.config.grow_after_s or _EVERY_S)
        self._looked = time.monotonic()

    def wanted(self) -> str:
        """How to come to an attempt on more nodes, if there are any now that make it worth it; else empty."""
        if self._never or time.monotonic() - self._looked < self._next_s:
            return ""
        how, present = "", self.books.present()
        if self.books.known:
            ledger = self.books.ledger()
            how = self._of_the_allocation(present, ledger) or self._beyond(ledger)
        self._looked = time.monotonic()
        self._next_s = self._every_s if self.books.known else max(self._every_s, _UNANSWERED_EVERY_S)
        return how

    def _of_the_allocation(self, present: tuple[str, ...], ledger: Ledger) -> str:
        chosen = choose_nodes(utc_now(), Situation(self.config, self.launch.nodes, present, self.bears, ledger=ledger))
        if chosen is None or len(chosen[0]) <= self.have:
            return ""
        more = sorted(set(chosen[0]) - set(self.attempt.nodes))
        self.say(GROWS, f"{', '.join(more)} can be used: the run saves, and goes on with {len(chosen[0])}", nodes=more)
        return GROW

    def _beyond(self, ledger: Ledger) -> str:
        allocation, attempt = self.books.allocation, self.attempt
        if not (self.growth.is_wanted and allocation.can_requeue and self.launch.requeue):
            return ""
        out = {*ledger.out(), *self.launch.exclude, *attempt.nodes, *attempt.spares}
        idle = [node for node in allocation.idle() if node not in out]
        done_before = [each.last_step or 0 for each in self.books.job.read_attempts() if each.number < attempt.number]
        recomputes = (self.progress.step() or 0) <= max(done_before, default=0)
        count = self.growth.look(len(idle), recomputes=recomputes)
        if count is None:
            return ""
        why = f"{', '.join(idle[:8])} have been idle: the run saves, and is queued again to go on with {count} nodes"
        self.say(GROWS, why, nodes=idle, beyond=True, have=self.have, to=count)
        return GROW_BEYOND
