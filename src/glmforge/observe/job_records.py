"""The files of a job: its directory, what it is, and what is on record of it. For readers, no scheduler is needed.

    jobs/NAME/
      job.yaml              the description; written once, so that the job can be resubmitted as it was
      run.yaml              of a training job: the effective configuration
      script.sh             what the scheduler was given
      scheduler-*.log       what the scheduler's shell printed
      .script-ran-17-0      under Slurm: the script of this submission began, after this many restarts
      submissions.jsonl     every submission to a scheduler
      events.jsonl          every decision of the supervisor, and of people; nodes that failed or are excluded
      attempts/0001/        one start of all ranks
        attempt.json        nodes, ranks, beginning, end, verdict
        rank-00000.log      its output: time, step and line
        rank-00000.json     process, beginning, end, status

The directory lies on storage that all nodes see, and only its owner can read it (0700, files 0600). Everything in it is
checked when it is read, since a node may die while it writes. Fields that another version wrote are ignored.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from glmforge.config.fields import YamlPath
from glmforge.config.launch import JobName, LaunchConfig, NodeName, Value, VariableName
from glmforge.config.load import load_settings
from glmforge.config.model import Strict
from glmforge.config.tree import parse, quick_value, to_value
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import MAX_BYTES, escaped, read_json, read_text
from glmforge.observe.record_files import JsonlFile, last_records, newest_records, read_jsonl
from glmforge.observe.run import write_text

JOBS_VARIABLE = "GLMFORGE_JOBS"
"""Where jobs lie: by default ./jobs."""

STARTED = "supervisor started"
"""The first event of a supervisor."""

CANCELLED = "cancelled"
"""The event after which no supervisor restarts the submission that it names, until the job is submitted."""

SUBMITTED = ("submitted", "submitted again")
"""Events that request the job to run."""

_SCRIPT_RAN = re.compile(r"\.script-ran-(\d{1,12})-(\d{1,9})", re.ASCII)
"""An empty file that the script of a Slurm job leaves first of all."""

SUPERVISOR_LEASE = ".supervisor"
"""The directory of the supervisor's claims, in the job's: one supervisor at a time."""


class JobDescription(Strict):
    """What a job is; never changes."""

    name: JobName
    kind: Literal["train", "script", "stage"] = Field(description="stage: a step of a chain with a command of its own")
    command: list[Value] = Field(min_length=1, description="of every rank")
    directory: YamlPath = Field(description="in which it runs")
    run: YamlPath | None = Field(default=None, description="of a training job: the run's directory")
    env: dict[VariableName, Value] = Field(default={}, description="of the launching user, where needed")
    part_of: JobName | None = Field(default=None, description="its sweep or chain")
    task: NonNegativeInt | None = Field(default=None, description="its number in the sweep's array")
    created: Annotated[AwareDatetime, Field(strict=False)]
    launch: LaunchConfig


class FileRecord(BaseModel):
    """What glmforge has written down, perhaps an older or a newer version: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, path: Path, *, max_bytes: int = MAX_BYTES) -> Self | None:
        """None if it is not there. Raises `LaunchError` if it is damaged."""
        if not path.exists():
            return None
        return cls.of(read_json(path, dict, error=LaunchError, max_bytes=max_bytes), str(path))

    @classmethod
    def of(cls, fields: dict[str, Any], source: str) -> Self:
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "it"
            raise LaunchError(f"{source}: {place}: {first['msg']}; it was written by another program") from None

    def write(self, path: Path) -> None:
        """A reader finds the old text or the new one, never half of it."""
        write_text(path, self.model_dump_json(indent=2) + "\n")


class Cause(StrEnum):
    """Why an attempt ended."""

    FINISHED = "finished"
    STOPPED = "stopped"  # on request: glmforge control, Ctrl-C, jobs cancel
    PREEMPTED = "preempted"  # saved and gave way; at a time limit too
    TIME_LIMIT = "time limit"  # of an earlier version
    CODE = "code"  # the job's own error: another start or node does not fix it
    MACHINE = "machine"  # a node's, and `node` says which
    NODE_LOST = "node lost"
    HANG = "hang"
    STORAGE = "storage"  # full disk, storage not mounted
    UNKNOWN = "unknown"  # a failure that nothing explains


class Verdict(FileRecord):
    """Why an attempt ended, and which node or rank did it, if one did."""

    cause: Cause
    node: str | None = None
    rank: NonNegativeInt | None = None
    why: str = Field(max_length=2000)
    error: str | None = Field(default=None, max_length=2000, description="of the rank that failed first, normalised")
    step: NonNegativeInt | None = Field(default=None, description="that this rank had done")


class AttemptRecord(FileRecord):
    """One start of all ranks. Numbers count from 1 through all submissions of the job."""

    number: PositiveInt
    submission: str = Field(description="job ID, or the supervisor's process")
    restart: NonNegativeInt = Field(default=0, description="how often the scheduler had started the submission before")
    nodes: list[NodeName]
    spares: list[NodeName] = []
    ranks_per_node: PositiveInt
    starter: str
    address: str
    port: int
    began: AwareDatetime
    ended: AwareDatetime | None = None
    status: int | None = Field(default=None, description="the starter's exit status; negative: a signal")
    first_step: NonNegativeInt | None = Field(default=None, description="steps done when training began")
    last_step: NonNegativeInt | None = Field(default=None, description="of any rank")
    verdict: Verdict | None = None

    @property
    def trained(self) -> bool:
        """Whether a step was made, as far as steps are reported."""
        return self.last_step is not None and self.last_step > (self.first_step or 0)


class RankRecord(FileRecord):
    """A process of an attempt, as the program that started it on its node saw it."""

    rank: NonNegativeInt
    local_rank: NonNegativeInt
    node: str
    """As the supervisor names it."""
    host: str
    pid: int
    began: AwareDatetime
    ended: AwareDatetime | None = None
    status: int | None = Field(default=None, description="negative: the signal that ended it")
    last_step: NonNegativeInt | None = None
    last_words: list[str] = Field(default=[], description="the last lines that it printed")


class Submission(FileRecord):
    """A hand-over to a scheduler."""

    id: str
    launcher: str
    time: AwareDatetime


class JobDirectory:
    """Names of a job's files, and the ways to read and write them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.description = root / "job.yaml"
        self.run_config = root / "run.yaml"
        self.script = root / "script.sh"
        self.submissions = root / "submissions.jsonl"
        self.events = root / "events.jsonl"
        self.attempts = root / "attempts"

    @property
    def name(self) -> str:
        return self.root.name

    def read(self) -> JobDescription:
        """Raises `LaunchError` if there is no such job, `ConfigError` if its description is damaged."""
        if not self.description.exists():
            raise LaunchError(f"{self.description}: is missing; 'glmforge jobs list' shows the jobs there")
        text = read_text(self.description, error=LaunchError)
        value = quick_value(text) or to_value(parse(text, str(self.description)))
        try:
            return JobDescription.model_validate(_known_fields(value, JobDescription))
        except ValidationError:
            return load_settings(JobDescription, self.description)  # fails as well, and says where

    def attempt(self, number: int) -> "AttemptDirectory":
        return AttemptDirectory(self.attempts / f"{number:04d}")

    def attempt_numbers(self) -> list[int]:
        """Of the directories of attempts, in order."""
        try:
            names = [path.name for path in self.attempts.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if re.fullmatch(r"\d{4,9}", name, re.ASCII))

    def read_attempts(self) -> list[AttemptRecord]:
        """In order; one that never began is omitted. Raises `LaunchError` if a record is damaged."""
        records = (AttemptRecord.read(self.attempt(number).record) for number in self.attempt_numbers())
        return [record for record in records if record is not None]

    def newest_attempt(self) -> AttemptRecord | None:
        """The last attempt that began. Raises `LaunchError` if its record is damaged."""
        for number in reversed(self.attempt_numbers()):
            record = AttemptRecord.read(self.attempt(number).record)
            if record is not None:
                return record
        return None

    def read_submissions(self) -> list[Submission]:
        rows = read_jsonl(self.submissions) if self.submissions.exists() else []
        return [Submission.of(row, str(self.submissions)) for row in rows]

    def last_submissions(self) -> list[Submission]:
        """Those at the end of the file: as fast after a thousand of them."""
        return [Submission.of(row, str(self.submissions)) for row in last_records(self.submissions)]

    def add_submission(self, submission: Submission) -> None:
        _append(self.submissions, submission.model_dump(mode="json"))

    def event(self, event: str, detail: str = "", **facts: Any) -> None:
        """Append a line to `events.jsonl`: what was done, why, and for programs the facts."""
        _append(self.events, {"time": utc_now().isoformat(), "event": event, "detail": escaped(detail)} | facts)

    def read_events(self) -> list[dict[str, Any]]:
        return read_jsonl(self.events) if self.events.exists() else []

    def is_cancelled(self, submission: Submission | None = None) -> bool:
        """Whether this submission, or the newest, was cancelled, and not submitted again since."""
        if submission is None:
            submissions = self.last_submissions()
            if not submissions:
                return False
            submission = submissions[-1]
        decisive = (CANCELLED, *SUBMITTED)
        for event in newest_records(self.events, *decisive):
            if event.get("submission") == submission.id and event.get("event") in decisive:
                return event["event"] == CANCELLED
        return False

    def starts(self) -> set[tuple[str, int]]:
        """The last starts in which something of the job ran: the submission, and its restarts before.

        The script says so, and the supervisor's first event; either may be missing, as on a full disk.
        """
        names = (_SCRIPT_RAN.fullmatch(path.name) for path in self.root.glob(".script-ran-*"))
        found = {(name[1], int(name[2])) for name in names if name}
        for event in newest_records(self.events, STARTED):
            submission, restart = event.get("submission"), event.get("restart")
            if event.get("event") == STARTED and isinstance(submission, str) and isinstance(restart, int):
                found.add((submission, restart))
        return found


class AttemptDirectory:
    """Names of an attempt's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "attempt.json"

    @property
    def job(self) -> Path:
        """The job's directory."""
        return self.root.parent.parent

    def log(self, rank: int) -> Path:
        return self.root / f"rank-{rank:05d}.log"

    def rank(self, rank: int) -> Path:
        return self.root / f"rank-{rank:05d}.json"

    def read_ranks(self) -> list[RankRecord]:
        """Those that were started, by rank; one whose record is damaged is omitted."""
        found = []
        for path in sorted(self.root.glob("rank-*.json")):
            with suppress(GlmforgeError):
                record = RankRecord.read(path)
                found += [record] if record is not None else []
        return found


def utc_now() -> datetime:
    return datetime.now(UTC)


def _append(path: Path, record: dict[str, Any]) -> None:
    with JsonlFile(path) as file:
        file.write(record)


def _known_fields(value: Any, model: type[BaseModel]) -> Any:
    """Without fields that this version does not know, in sections too: another version wrote them."""
    if not isinstance(value, dict):
        return value
    known = {name: value[name] for name in model.model_fields if name in value}
    for name in known:
        section = model.model_fields[name].annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            known[name] = _known_fields(known[name], section)
    return known
