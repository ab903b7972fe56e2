"""A chain's own directory, beside those of its stages.

jobs/life/chain.json     its stages and what each needs; written once, before anything is submitted
jobs/life/chain.yaml     the file that it was made of
jobs/life/events.jsonl   every submission, with the submissions that it waits for
jobs/life-pretrain/ ...  a job for each stage
"""

from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from glmforge.config.launch import JobName, Launcher
from glmforge.errors import LaunchError
from glmforge.files import read_json, shown
from glmforge.observe.run import write_text
from glmforge_ops.jobs.job import JobDirectory


class StageRecord(BaseModel):
    """A stage of a chain."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    job: JobName
    needs: list[str]
    launcher: Launcher
    outputs: dict[str, Path] = {}


class ChainRecord(BaseModel):
    """What a chain is; never changes. Later versions may add fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: JobName
    created: AwareDatetime
    stages: list[StageRecord]
    """In an order in which they can run."""

    def stage(self, name: str) -> StageRecord:
        return next(stage for stage in self.stages if stage.name == name)


class ChainDirectory:
    """Names of a chain's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "chain.json"
        self.file = root / "chain.yaml"
        self.own = JobDirectory(root)
        """For the events."""

    @property
    def name(self) -> str:
        return self.root.name

    def stage(self, stage: StageRecord) -> JobDirectory:
        return JobDirectory(self.root.parent / stage.job)

    def write(self, record: ChainRecord) -> None:
        """A reader finds all of it or nothing."""
        write_text(self.record, record.model_dump_json(indent=2) + "\n")

    def read(self) -> ChainRecord:
        """Raises `LaunchError` if there is no such chain, or it was never written to its end, or is damaged."""
        if not self.root.is_dir():
            raise LaunchError(f"{shown(self.root)}: there is no such chain; 'glmforge chain run FILE' makes one")
        if not self.record.exists():
            raise LaunchError(
                f"{shown(self.root)}: holds no chain, or one that is being made, or was interrupted before its first "
                f"submission; if so, delete it and the jobs of its stages, {shown(self.name)}-STAGE, and run it again"
            )
        content: dict[str, Any] = read_json(self.record, dict, error=LaunchError)
        try:
            record = ChainRecord.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise LaunchError(f"{shown(self.record)}: {place}: {first['msg']}; was it changed by hand?") from None
        known = set[str]()
        for stage in record.stages:
            if not known.issuperset(stage.needs):
                raise LaunchError(f"{shown(self.record)}: {stage.name} needs what does not come before it")
            known.add(stage.name)
        return record
