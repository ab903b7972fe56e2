"""Which nodes have failed a job, which are out, and why: `nodes.json` of the job's directory.

One program writes the file, the supervisor. A person who takes a node back (`glmforge jobs allow`) leaves an event
instead, which counts for whatever happened before it: so neither overwrites what the other has written.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import LaunchError
from glmforge.files import read_json
from glmforge.observe.job_records import JobDirectory
from glmforge.observe.run import write_text

ALLOWED = "node allowed"
"""The event by which a person takes a node back."""

FORGOTTEN_AFTER = timedelta(days=1)
"""A failure as old as that no longer counts: in a run of months every node fails now and then."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Failure(_Part):
    """Of a node in an attempt."""

    time: AwareDatetime
    attempt: int
    why: str = Field(max_length=2000)


class Out(_Part):
    """A node that is not used. `drained`: in the scheduler as well, by us."""

    since: AwareDatetime
    reason: str = Field(max_length=2000)
    drained: bool = False


class Node(_Part):
    """What is known of a node that has failed."""

    failures: tuple[Failure, ...] = ()
    out: Out | None = None


class Ledger(_Part):
    """Nodes that have failed; one that is not named has not."""

    nodes: dict[str, Node] = {}

    @classmethod
    def read(cls, job: JobDirectory) -> Self:
        """With what people have allowed since. Raises `LaunchError` if the file is damaged."""
        found = cls()
        if job.nodes.exists():
            try:
                found = cls.model_validate(read_json(job.nodes, dict, error=LaunchError))
            except ValidationError as error:
                raise LaunchError(
                    f"{job.nodes}: {error.errors()[0]['msg']}; move it away, and no node counts as failed"
                ) from None
        for event in job.read_events():
            if event.get("event") == ALLOWED and isinstance(event.get("node"), str):
                found = found.allowed(event["node"], datetime.fromisoformat(event["time"]))
        return found

    def write(self, path: Path) -> None:
        """A reader finds the old text or the new one."""
        write_text(path, self.model_dump_json(indent=2) + "\n")

    def out(self) -> dict[str, Out]:
        return {name: node.out for name, node in self.nodes.items() if node.out is not None}

    def failures(self, name: str, now: datetime) -> int:
        """That count."""
        failures = self.nodes[name].failures if name in self.nodes else ()
        return sum(now - failure.time < FORGOTTEN_AFTER for failure in failures)

    def failed(self, name: str, failure: Failure) -> Self:
        node = self.nodes.get(name, Node())
        return self._with(name, node.model_copy(update={"failures": (*node.failures[-99:], failure)}))

    def put_out(self, name: str, out: Out) -> Self:
        return self._with(name, self.nodes.get(name, Node()).model_copy(update={"out": out}))

    def taken_back(self, name: str) -> Self:
        """It is used again, as if it had never failed."""
        return self._with(name, Node())

    def allowed(self, name: str, at: datetime) -> Self:
        """What happened to it before then no longer counts."""
        node = self.nodes.get(name)
        if node is None:
            return self
        kept = tuple(failure for failure in node.failures if failure.time > at)
        return self._with(name, Node(failures=kept, out=node.out if node.out and node.out.since > at else None))

    def due(self, config: SupervisorConfig, now: datetime) -> list[str]:
        """Nodes that have been out for long enough to be looked at again."""
        if config.node_back_after_s is None:
            return []
        least = timedelta(seconds=config.node_back_after_s)
        return [name for name, out in self.out().items() if now - out.since >= least]

    def _with(self, name: str, node: Node) -> Self:
        return self.model_copy(update={"nodes": {**self.nodes, name: node}})


def allow(job: JobDirectory, nodes: Iterable[str], who: str = "") -> list[str]:
    """Take nodes back into the job; those that were out or had failed. Raises `LaunchError` for others."""
    ledger, taken = Ledger.read(job), []
    for name in nodes:
        if name not in ledger.nodes:
            raise LaunchError(f"{job.name}: {name} is not out; out are: {', '.join(ledger.out()) or 'none'}")
        job.event(ALLOWED, f"{name} is used again{f', says {who}' if who else ''}", node=name)
        taken.append(name)
    return taken
