"""Jobs of a directory: their names, wrong names, one question to a scheduler, the row that is shown."""

from datetime import timedelta
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.job_records import utc_now
from glmforge_ops.jobs.registry import chosen_names, find_jobs, job_directory, job_names
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.show import job_row
from helpers.made_jobs import BEGAN, MadeScheduler, made_attempt, made_job


def test_each_scheduler_is_asked_once_for_all_of_its_jobs(tmp_path: Path) -> None:
    slurm, here = MadeScheduler(), MadeScheduler(name="local")
    for number in range(20):
        made_job(tmp_path, f"s{number}", submission=str(number))
        made_job(tmp_path, f"l{number}", submission=f"p{number}", launch={"launcher": "local", "nodes": 1})
    find_jobs(tmp_path, job_names(tmp_path), {"slurm": slurm, "local": here}.__getitem__)
    assert slurm.asked == [{str(number) for number in range(20)}]
    assert here.asked == [{f"p{number}" for number in range(20)}]


def test_what_lies_beside_jobs_is_none(tmp_path: Path) -> None:
    made_job(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden" / "attempts").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert job_names(tmp_path) == ["air"]


def test_names_and_patterns(tmp_path: Path) -> None:
    for name in ("lr-1", "lr-2", "base"):
        made_job(tmp_path, name)
    assert chosen_names(tmp_path, ["lr-*", "lr-2", "base"]) == ["lr-1", "lr-2", "base"]
    assert job_directory(tmp_path, "base").name == "base"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("lr-3", "there is no job lr-3; did you mean lr-2"),
        ("zzz", "there is no job zzz; 'glmforge jobs list'"),
        ("x*", r"there is no job x\*"),
        ("../lr-1", "there is no job"),
        ("a\x1bb", "there is no job 'a"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest_one(tmp_path: Path, wrong: str, said: str) -> None:
    for name in ("lr-1", "lr-2", "base"):
        made_job(tmp_path, name)
    with pytest.raises(LaunchError, match=said) as told:
        chosen_names(tmp_path, [wrong])
    assert str(told.value).isprintable()
    with pytest.raises(LaunchError, match="no job"):
        job_directory(tmp_path, wrong)


def test_no_directory_of_jobs(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="--jobs-dir"):
        job_names(tmp_path / "none")


def test_a_row_tells_what_is_known(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, 3, first_step=0, last_step=120)
    scheduler.know("17", State.RUNNING)
    row = job_row(find_jobs(tmp_path, ["air"], scheduler.of)[0], BEGAN + timedelta(seconds=200))
    assert row == ["air", "running", "slurm", "17", "2", "3", "120", "3m 20s", ""]
    assert utc_now() > BEGAN
