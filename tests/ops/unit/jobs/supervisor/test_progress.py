"""What counts as a sign of life of ranks that run."""

import os
from pathlib import Path

from glmforge.observe.alive import Mark, write_mark
from glmforge.observe.run import RunDirectory
from glmforge_ops.jobs.job import AttemptDirectory
from glmforge_ops.jobs.supervisor.progress import Progress
from helpers.made_jobs import at


def test_slow_work_that_says_so_is_a_sign_of_life(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    progress = Progress(AttemptDirectory(tmp_path / "attempt"), tmp_path, at(0))
    run.metrics.touch()
    os.utime(run.metrics, (at(10).timestamp(),) * 2)
    assert progress.last_sign() == at(10).timestamp()
    write_mark(run.alive, Mark(0.0, 3, "rollouts, 5 of 64"))
    os.utime(run.alive, (at(20).timestamp(),) * 2)
    assert progress.last_sign() == at(20).timestamp()
