"""A job by name: its directory, what it is, and what has become of it.

    jobs/NAME/
      job.yaml              the description; written once, so that the job can be submitted again as it was
      run.yaml              of a training job: the effective configuration
      script.sh             what the scheduler was given
      script-chained.sh     of a stage that its chain submitted: the same, with the submissions that it waits for
      scheduler-*.log       what the scheduler's shell printed
      .script-ran-17-0      under Slurm: the script of this submission began, after so many restarts
      submissions.jsonl     every hand-over to a scheduler
      events.jsonl          every decision of the supervisor, and of people
      nodes.json            nodes that failed, those that are out, and since when
      attempts/0001/        one start of all ranks
        attempt.json        nodes, ranks, beginning, end, verdict
        rank-00000.log      its output: time, step and line
        rank-00000.json     process, beginning, end, status

The directory lies on storage that all nodes see, and is its owner's alone (0700, files 0600). Readers need nothing else
but the scheduler's own commands: there is no service. Everything in it is checked when it is read, since a node may die
while it writes.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from glmforge.config.fields import YamlPath
from glmforge.config.launch import JobName, LaunchConfig, NodeName, Value, VariableName
from glmforge.config.load import dump_config, load_settings
from glmforge.config.model import Strict
from glmforge.errors import LaunchError
from glmforge.files import escaped, read_json, shown
from glmforge.observe.record_files import JsonlFile, read_jsonl
from glmforge.observe.run import write_text

JOBS_VARIABLE = "GLMFORGE_JOBS"
"""Where jobs lie: by default ./jobs."""

SUPERVISOR_LEASE = ".supervisor"
"""The directory of the supervisor's claims, in the job's: one supervisor at a time."""


class JobDescription(Strict):
    """What a job is; never changes."""

    name: JobName
    kind: Literal["train", "script", "stage"] = Field(description="stage: a step of a chain with a command of its own")
    command: list[Value] = Field(min_length=1, description="of every rank")
    directory: YamlPath = Field(description="in which it runs")
    run: YamlPath | None = Field(default=None, description="of a training job: the run's directory")
    env: dict[VariableName, Value] = Field(default={}, description="of the one who launched it, as far as it is needed")
    part_of: JobName | None = Field(default=None, description="the sweep or chain that it belongs to")
    task: NonNegativeInt | None = Field(default=None, description="its number in the sweep's array")
    created: Annotated[AwareDatetime, Field(strict=False)]
    launch: LaunchConfig


class _Record(BaseModel):
    """What a program of ours has written down, perhaps an older or a newer one: unknown fields are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """None if it is not there. Raises `LaunchError` if it is damaged."""
        if not path.exists():
            return None
        return cls.of(read_json(path, dict, error=LaunchError), str(path))

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
    PREEMPTED = "preempted"  # saved and gave way; a time limit too, if the warning came
    TIME_LIMIT = "time limit"
    CODE = "code"  # the job's own error: another start, or another node, does not mend it
    MACHINE = "machine"  # a node's, and `node` says which
    NODE_LOST = "node lost"
    HANG = "hang"
    STORAGE = "storage"  # full disk, storage not mounted
    UNKNOWN = "unknown"  # a failure that nothing explains


class Verdict(_Record):
    """Why an attempt ended, and which node or rank did it, if one did."""

    cause: Cause
    node: str | None = None
    rank: NonNegativeInt | None = None
    why: str = Field(max_length=2000)
    error: str | None = Field(default=None, max_length=2000, description="of the rank that failed first, normalised")
    step: NonNegativeInt | None = Field(default=None, description="that this rank had done")


class AttemptRecord(_Record):
    """One start of all ranks. Numbers count from 1 through all submissions of the job."""

    number: PositiveInt
    submission: str = Field(description="the scheduler's number, or the supervisor's process")
    restart: NonNegativeInt = Field(default=0, description="how often the scheduler had started the submission before")
    nodes: list[NodeName]
    spares: list[NodeName] = []
    ranks_per_node: PositiveInt
    starter: str
    address: str
    port: int
    began: AwareDatetime
    ended: AwareDatetime | None = None
    status: int | None = Field(default=None, description="the starter's own; negative: a signal")
    first_step: NonNegativeInt | None = Field(default=None, description="steps done when training began")
    last_step: NonNegativeInt | None = Field(default=None, description="of any rank")
    verdict: Verdict | None = None

    @property
    def trained(self) -> bool:
        """Whether a step was made, as far as steps are told."""
        return self.last_step is not None and self.last_step > (self.first_step or 0)


class RankRecord(_Record):
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


class Submission(_Record):
    """A hand-over to a scheduler."""

    id: str
    launcher: str
    time: AwareDatetime
    again: bool = False
    """Whether by `glmforge jobs resubmit`."""


class JobDirectory:
    """Names of a job's files, and the ways to read and write them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.description = root / "job.yaml"
        self.run_config = root / "run.yaml"
        self.script = root / "script.sh"
        self.submissions = root / "submissions.jsonl"
        self.events = root / "events.jsonl"
        self.nodes = root / "nodes.json"
        self.attempts = root / "attempts"

    @property
    def name(self) -> str:
        return self.root.name

    def read(self) -> JobDescription:
        """Raises `LaunchError` if there is no such job, `ConfigError` if its description is damaged."""
        if not self.description.exists():
            raise LaunchError(f"{self.root}: is no job; 'glmforge jobs list' shows those in {self.root.parent}")
        return load_settings(JobDescription, self.description)

    def create(self, job: JobDescription) -> None:
        """Write the description. Raises `LaunchError` if the name is taken, be it at this moment; `RunFileError`.

        After an error nothing of it is there.
        """
        taken = f"there is a job of this name; give another --name, or 'glmforge jobs resubmit {self.name}'"
        with removed_on_error() as made:
            make_directory(self.root, taken)
            made.append(self.root)
            write_text(self.description, dump_config(job))

    def attempt(self, number: int) -> "AttemptDirectory":
        return AttemptDirectory(self.attempts / f"{number:04d}")

    def read_attempts(self) -> list[AttemptRecord]:
        """In their order; one that never began is left out. Raises `LaunchError` if a record is damaged."""
        found = []
        for directory in sorted(self.attempts.glob("[0-9]*")) if self.attempts.is_dir() else []:
            record = AttemptRecord.read(directory / "attempt.json")
            if record is not None:
                found.append(record)
        return found

    def read_submissions(self) -> list[Submission]:
        rows = read_jsonl(self.submissions) if self.submissions.exists() else []
        return [Submission.of(row, str(self.submissions)) for row in rows]

    def add_submission(self, submission: Submission) -> None:
        _append(self.submissions, submission.model_dump(mode="json"))

    def event(self, event: str, detail: str = "", **facts: Any) -> None:
        """Append a line to `events.jsonl`: what was done, why, and for programs the facts."""
        _append(self.events, {"time": utc_now().isoformat(), "event": event, "detail": escaped(detail)} | facts)

    def read_events(self) -> list[dict[str, Any]]:
        return read_jsonl(self.events) if self.events.exists() else []


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
        """Those that were started, by rank."""
        records = (RankRecord.read(path) for path in sorted(self.root.glob("rank-*.json")))
        return [record for record in records if record is not None]


def make_directory(root: Path, taken: str) -> None:
    """Make the directory of a job, sweep or chain, its owner's alone. Raises `LaunchError`; `taken` if there is one."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"{shown(root.parent)}: cannot hold jobs ({error.strerror}); choose another --jobs-dir"
        ) from error
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        raise LaunchError(f"{shown(root)}: {taken}") from None
    except OSError as error:
        raise LaunchError(f"{shown(root)}: cannot be made ({error.strerror}); choose another --jobs-dir") from error


@contextmanager
def removed_on_error() -> Iterator[list[Path]]:
    """A list for the directories that are made within the block: they are removed if that does not come to its end,
    as far as they can be.

    For what cannot have begun to run yet.
    """
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for root in reversed(made):
            shutil.rmtree(root, ignore_errors=True)  # the cause is to be told
        raise


def utc_now() -> datetime:
    return datetime.now(UTC)


def _append(path: Path, record: dict[str, Any]) -> None:
    with JsonlFile(path) as file:
        file.write(record)
