"""The lock of a run whose ranks have ended: taken away as soon as that is certain, so that the next need not wait.

Rank 0 of an attempt holds the run's directory, and that of its checkpoints where that is another
(`glmforge.runtime.lease`). If it was killed it has given nothing back; and the next rank 0, where it starts on another
machine, would watch the claim for `fault_tolerance.lock_lease_s` before it believes that. The supervisor knows more:

* the rank's record says that the process ended, as the program that started it has waited for it;
* or, where a node was lost with its ranks, the claim has not changed since the supervisor began to look at it, which
  was before the attempt ended. That takes as long, but begins earlier. Where the supervisor was lost as well, its
  standby has looked, and tells the next one: who finds the same claim knows that it did not change in between, and of
  the time in between at least what the scheduler's clock says that the job was queued.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from glmforge.config import load_config
from glmforge.errors import GlmforgeError
from glmforge.files import escaped
from glmforge.observe.job_records import JobDirectory, RankRecord
from glmforge.runtime.lease import Claim, LastChange, Lease
from glmforge.runtime.process import is_alive, this_process

_LOOKS_PER_LEASE = 20
_LONGEST_S = 86400.0
_ROUNDING = timedelta(seconds=1)  # a claim has whole seconds

Say = Callable[[str, str], None]


class RunLock:
    """Of a directory. `look` is called now and then, `ended` with the ranks of an attempt once it has ended."""

    def __init__(self, directory: Path, what: str, lease_s: float, say: Say) -> None:
        self.directory, self.lease_s = directory, lease_s
        self._lease, self._say = Lease(directory, what, lease_s=lease_s), say
        self._change = LastChange()
        self._seen: tuple[str, float] | None = None
        self._looked_at = -float("inf")
        self._left: int | None = None
        self._ranks: tuple[RankRecord, ...] = ()

    def look(self) -> None:
        """Note whether the claim has changed; take it away if it was left by ranks that are certain to be no more."""
        now = time.monotonic()
        if now - self._looked_at >= self.lease_s / _LOOKS_PER_LEASE:
            self._looked_at = now
            self._look()

    def ended(self, ranks: Iterable[RankRecord]) -> None:
        """No rank of the attempt will do anything more, but for those whose record tells of no end.

        The claim that stands now may be taken away. It is of one of these ranks, or of those of the last attempt that
        had any; or of a stranger whom they have met there.
        """
        self._left, self._ranks = None, tuple(ranks) or self._ranks
        with suppress(OSError):
            self._left = self._lease.newest().number
        self._look()

    def seen(self) -> dict[str, str | float]:
        """For how long which claim has not changed, for who looks after it next."""
        if self._seen is None:
            return {}
        claim, unchanged_s = self._seen
        return {"directory": str(self.directory), "claim": claim, "unchanged_s": round(unchanged_s, 1)}

    def was_seen(self, before: Mapping[str, object], then_s: float) -> None:
        """What another program has `seen`, `then_s` seconds ago or more; a damaged record counts for nothing.

        Before the first look.
        """
        claim, unchanged_s = before.get("claim"), before.get("unchanged_s")
        is_ours = before.get("directory") == str(self.directory) and isinstance(claim, str)
        if is_ours and isinstance(unchanged_s, int | float) and 0 <= unchanged_s <= _LONGEST_S:
            self._change.seconds_since(claim, at_least=unchanged_s + then_s)

    def _look(self) -> None:
        try:
            found = self._lease.newest()
            claim = hashlib.sha256(b"%d " % found.number + found.content).hexdigest()
            unchanged_s = self._change.seconds_since(claim)
            self._seen = claim, unchanged_s
            if found.number != self._left or found.claim is None or found.claim.released:
                return
            if is_alive(found.claim.holder):  # on this machine, be it suspended: not one of the ranks
                return
            if _has_ended(found.claim, self._ranks):
                why = "it has ended"
            elif unchanged_s >= self.lease_s:
                why = f"it gave no sign of life for {unchanged_s:.0f} s"
            else:
                return
            if self._lease.void(found.number):
                self._say("run unlocked", f"{self.directory} was in use by {escaped(str(found.claim))}: {why}")
        except OSError:  # then ranks will say that they cannot write there
            return


def _has_ended(claim: Claim, ranks: Iterable[RankRecord]) -> bool:
    """Whether the holder is one of these processes. The times are of its machine's clock alone.

    Where a container gives it another number than its record says, it is waited for; so is one of another job, whose
    container may give it the same.
    """
    if claim.holder.job != this_process().job:
        return False
    try:
        since = datetime.fromisoformat(claim.since)
    except ValueError:
        return False
    who = claim.holder.host, claim.holder.pid
    return since.tzinfo is not None and any(
        rank.ended is not None and who == (rank.host, rank.pid) and rank.began - _ROUNDING <= since <= rank.ended
        for rank in ranks
    )


def run_locks(job: JobDirectory, say: Say) -> list[RunLock]:
    """Of the directories that the job's run writes to; none if it is no run, or its files are damaged."""
    try:
        description = job.read()
        if description.run is None:
            return []
        config = load_config(job.run_config)
    except GlmforgeError:
        return []  # the ranks tell of it
    places = [description.run, *([] if config.checkpoint.dir is None else [config.checkpoint.dir])]
    what, lease_s = f"glmforge supervise {job.name}", config.fault_tolerance.lock_lease_s
    return [RunLock(description.directory / place, what, lease_s, say) for place in places]


def last_seen(job: JobDirectory) -> list[dict[str, object]]:
    """What was `seen` of the run's locks when the job was queued again."""
    requeued = [event for event in job.read_events() if event.get("event") == "requeued"][-1:]
    locks = requeued[0].get("locks") if requeued else None
    return [each for each in locks if isinstance(each, dict)] if isinstance(locks, list) else []
