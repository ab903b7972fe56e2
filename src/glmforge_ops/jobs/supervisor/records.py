"""The supervisor's notes in the job's directory: events and attempts, which it reads again when it decides.

Events are printed on stderr as well, for readers of the scheduler's log. A disk that is full, or a scheduler that does
not answer, is reported there and stops nothing.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import AttemptRecord, Cause, JobDirectory, RankRecord, Verdict, utc_now


@dataclass
class Records:
    """Of one job. `unrecorded`: attempts of this supervisor that left no file."""

    job: JobDirectory
    unrecorded: list[AttemptRecord] = field(default_factory=list)

    def say(self, event: str, detail: str, **facts: Any) -> None:
        """An event of the job."""
        print(f"{utc_now():%F %T} {self.job.name}: {event}: {detail}", file=sys.stderr, flush=True)
        try:
            self.job.event(event, detail, **facts)
        except GlmforgeError as error:
            print(f"{utc_now():%F %T} {self.job.name}: {error}", file=sys.stderr, flush=True)

    @contextmanager
    def noted(self, event: str, about: str = "") -> Iterator[None]:
        """An error within the block becomes an event, and ends nothing."""
        try:
            yield
        except GlmforgeError as error:
            self.say(event, f"{about}{error}")

    def history(self) -> list[AttemptRecord]:
        """Attempts since the job was last done or stopped: whoever submits it again has fixed something."""
        settled = 0
        for event in self.job.read_events():
            if event.get("event") == "decided" and event.get("do") in ("done", "stop"):
                settled = max(settled, int(event.get("attempt") or 0))
        attempts = sorted([*self.unrecorded, *self.job.read_attempts()], key=lambda attempt: attempt.number)
        return [attempt for attempt in attempts if attempt.number > settled]

    def not_begun(self, attempt: AttemptRecord, why: str) -> Verdict:
        """An attempt without a record counts as well: a full disk is not tried again for ever."""
        verdict = Verdict(cause=Cause.STORAGE, why=why)
        self.unrecorded.append(attempt.model_copy(update={"ended": utc_now(), "verdict": verdict}))
        self._say_verdict(attempt.number, verdict)
        return verdict

    def ended(self, attempt: AttemptRecord, fault: datetime | None) -> None:
        """Write down how an attempt has ended; `fault`: when it went wrong, if that is known."""
        verdict, ended = attempt.verdict, attempt.ended
        assert verdict is not None
        assert ended is not None
        with self.noted("record not written", f"attempt {attempt.number}: "):
            attempt.write(self.job.attempt(attempt.number).record)
        facts: dict[str, Any] = {"attempt": attempt.number, "status": attempt.status, "first_step": attempt.first_step}
        facts |= {"last_step": attempt.last_step, "ran_s": round((ended - attempt.began).total_seconds(), 1)}
        self.say("attempt ended", f"attempt {attempt.number}: status {attempt.status}", **facts)
        fault = min(fault or ended, ended)
        self._say_verdict(attempt.number, verdict, fault=fault.isoformat(), detected_s=_seconds(fault, ended))

    def _say_verdict(self, attempt: int, verdict: Verdict, **facts: Any) -> None:
        known = verdict.model_dump(mode="json", exclude={"step"})
        self.say("verdict", f"{verdict.cause}: {verdict.why}", **known, attempt=attempt, **facts)

    def training(self, attempt: AttemptRecord, step: int, ranks: Sequence[RankRecord]) -> dict[str, Any]:
        """Facts of an attempt that has just done its first step; after a failure, how long each part took since:
        until all ranks had ended, until the next attempt began, until its first rank ran, until its first step."""
        now, process = utc_now(), min((rank.began for rank in ranks), default=attempt.began)
        facts: dict[str, Any] = {"step": step, "first_step_s": _seconds(process, now)}
        events = (event for event in reversed(self.job.read_events()) if event.get("event") == "verdict")
        verdict: dict[str, Any] = next(events, {})
        try:
            fault, ended = datetime.fromisoformat(verdict["fault"]), datetime.fromisoformat(verdict["time"])
        except (KeyError, TypeError, ValueError):
            return facts
        return facts | {
            "after": verdict.get("attempt"),
            "cause": verdict.get("cause"),
            "detected_s": _seconds(fault, ended),
            "decided_s": _seconds(ended, attempt.began),
            "started_s": _seconds(attempt.began, process),
            "total_s": _seconds(fault, now),
        }


def _seconds(since: datetime, until: datetime) -> float:
    return round(max(0.0, (until - since).total_seconds()), 2)
