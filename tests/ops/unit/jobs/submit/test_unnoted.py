"""Submissions that Slurm has and nobody noted, by what squeue prints."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.schedulers.commands import Answer
from glmforge_ops.jobs.submit import unnoted
from glmforge_ops.jobs.submit.unnoted import submissions_in
from helpers.scheduler_programs import scheduler_programs


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    return JobDirectory(tmp_path / "jobs" / "air")


def test_those_that_were_submitted_from_the_jobs_own_directory(
    job: JobDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = scheduler_programs(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    printed = f"{'12':20}{job.root}\n{'9':20}{job.root}\n{'10':20}/elsewhere\n{'12':20}{job.root}\n"
    calls = answers(squeue={"": (0, printed, "")})
    assert submissions_in(job) == ["9", "12"]
    assert calls.read_text().startswith("squeue --noheader --me --name=air ")


def test_without_an_answer_nobody_knows(job: JobDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = scheduler_programs(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    answers(squeue={"": (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")})
    with pytest.raises(
        LaunchError, match=r"^air: whether Slurm has it .* \(squeue: .*Unable to contact.*\); try again$"
    ):
        submissions_in(job)


def test_nobodys_filters_hide_one(job: JobDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []

    def ask(*command: str, environment: dict[str, str] | None = None) -> Answer:
        given.append(environment or {"SQUEUE_STATES": "inherited"})
        return Answer(0, "", "")

    monkeypatch.setenv("SQUEUE_STATES", "COMPLETED")
    monkeypatch.setattr(unnoted, "ask", ask)
    assert submissions_in(job) == []
    assert "SQUEUE_STATES" not in given[0]
    assert "PATH" in given[0]
