"""A chain made of its file: every stage checked, then a job for each written; nothing is submitted here.

The chain's directory is made first: of two that begin at once with one name, one is refused. Its record is written
last: a chain that was interrupted before has none, and is told as such.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glmforge.config.load import dump_config
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import read_text
from glmforge.observe.run import write_text
from glmforge_ops.jobs.chain.file import read_chain_file, without_secrets
from glmforge_ops.jobs.chain.record import ChainDirectory, ChainRecord, StageRecord
from glmforge_ops.jobs.chain.stages import ChainStage, work_out
from glmforge_ops.jobs.job import JobDirectory, make_directory, removed_on_error, utc_now
from glmforge_ops.jobs.schedulers.base import Scheduler
from glmforge_ops.jobs.submit.new_job import NewJob, command_job, run_job
from glmforge_ops.jobs.submit.preflight import check_fit


@dataclass(frozen=True)
class NewChain:
    """A chain that is not written yet."""

    directory: ChainDirectory
    record: ChainRecord
    stages: Sequence[ChainStage]
    jobs: Sequence[NewJob]
    text: str

    def check(self, scheduler_of: Callable[[str], Scheduler]) -> None:
        """Raises `LaunchError`, with the stage, for what a scheduler would refuse."""
        for stage in self.stages:
            try:
                scheduler_of(stage.launch.launcher).check(stage.launch)
            except LaunchError as error:
                raise LaunchError(f"stage {stage.name}: {error}") from None

    def check_fit(self) -> None:
        """Raises `LaunchError`, with the stage that by plan cannot fit the GPUs that are found."""
        for stage in self.stages:
            try:
                if stage.config is not None:
                    check_fit(stage.config, stage.launch)
            except LaunchError as error:
                raise LaunchError(f"stage {stage.name}: {error}") from None

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken; then nothing of the chain stays."""
        root = self.directory.root
        resume = f"'glmforge chain resume {root.name}' goes on with a chain"
        with removed_on_error() as made:
            make_directory(root, f"the name is taken; {resume}, and another name in the file begins one")
            made.append(root)
            for job in self.jobs:
                job.write()
                made.append(job.directory.root)
            write_text(self.directory.file, self.text)
            self.directory.write(self.record)


def make_chain(file: Path, root: Path, directory: Path) -> NewChain:
    """The chain that a file describes, checked.

    Args:
        root: where jobs lie.
        directory: in which all stages run.

    Raises `ConfigError`, which names the stage, and `LaunchError`.
    """
    chain = read_chain_file(file)
    stages = work_out(chain, root, directory)
    jobs = [_job(stage, root, chain.name) for stage in stages]
    record = ChainRecord(
        name=chain.name,
        created=utc_now(),
        stages=[
            StageRecord(
                name=stage.name,
                job=stage.job,
                needs=list(stage.needs),
                launcher=stage.launch.launcher,
                outputs=dict(stage.outputs),
            )
            for stage in stages
        ],
    )
    text = read_text(file, error=LaunchError) if chain == (told := without_secrets(chain)) else dump_config(told)
    return NewChain(ChainDirectory(root / chain.name), record, stages, jobs, text)


def _job(stage: ChainStage, root: Path, chain: str) -> NewJob:
    directory = JobDirectory(root / stage.job)
    try:
        if stage.config is None:
            job = command_job(directory, stage.command, stage.launch)
        else:
            job = run_job(directory, stage.config, stage.launch)
    except GlmforgeError as error:
        raise LaunchError(f"stage {stage.name}: {error}") from None
    return replace(job, description=job.description.model_copy(update={"part_of": chain}))
