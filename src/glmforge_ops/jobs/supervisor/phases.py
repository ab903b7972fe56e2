"""From a fault to the next training step: how long each part took.

fault -> detected -> decided -> started -> first step
  detected_s: until all ranks had ended      decided_s: until it was decided what to do, checks and waits included
  started_s: until the first rank's process ran      first_step_s: imports, joining, loading, the step itself
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from glmforge.observe.job_records import AttemptRecord, JobDirectory, RankRecord, utc_now


def phases_of(job: JobDirectory, attempt: AttemptRecord, ranks: Sequence[RankRecord]) -> dict[str, Any]:
    """Facts of an attempt that has just done its first training step; after a failure those of the whole way."""
    now = utc_now()
    process = min((rank.began for rank in ranks), default=attempt.began)
    facts: dict[str, Any] = {"first_step_s": _seconds(process, now)}
    verdict = next((event for event in reversed(job.read_events()) if event.get("event") == "verdict"), None)
    if verdict is None or not isinstance(verdict.get("attempt"), int):
        return facts
    try:
        fault, ended = datetime.fromisoformat(verdict["fault"]), datetime.fromisoformat(verdict["time"])
    except (KeyError, TypeError, ValueError):
        return facts
    return facts | {
        "after": verdict["attempt"],
        "cause": verdict.get("cause"),
        "detected_s": _seconds(fault, ended),
        "decided_s": _seconds(ended, attempt.began),
        "started_s": _seconds(attempt.began, process),
        "total_s": _seconds(fault, now),
    }


def _seconds(since: datetime, until: datetime) -> float:
    return round(max(0.0, (until - since).total_seconds()), 2)
