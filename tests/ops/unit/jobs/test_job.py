"""A job's directory: what is written comes back, and what is damaged is named."""

from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.job import (
    AttemptRecord,
    Cause,
    JobDescription,
    JobDirectory,
    RankRecord,
    Submission,
    Verdict,
    utc_now,
)


def description(**changes: object) -> JobDescription:
    return JobDescription(
        name="air",
        kind="train",
        command=["python", "-m", "glmforge", "train", "run.yaml"],
        directory=Path("/work"),
        run=Path("/runs/air"),
        created=utc_now(),
        launch=LaunchConfig(launcher="slurm", nodes=2, gpus_per_node=8, env={"A": "b c"}),
    ).model_copy(update=changes)


def test_a_description_comes_back(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path / "jobs/air")
    job.create(description())
    assert job.read() == description(created=job.read().created)


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    JobDirectory(tmp_path / "air").create(description())
    with pytest.raises(LaunchError, match=r"there is a job of this name.*resubmit air"):
        JobDirectory(tmp_path / "air").create(description())


def test_no_job(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="is no job"):
        JobDirectory(tmp_path / "air").read()


def test_records_come_back(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    attempt = AttemptRecord(
        number=2,
        submission="17",
        nodes=["node1", "node2"],
        ranks_per_node=8,
        starter="srun",
        address="node1",
        port=29_500,
        began=utc_now(),
        verdict=Verdict(cause=Cause.MACHINE, node="node2", rank=9, why="Xid 79"),
    )
    directory = job.attempt(2)
    attempt.write(directory.record)
    assert job.read_attempts() == [attempt]
    rank = RankRecord(rank=9, local_rank=1, node="node2", host="node2", pid=7, began=utc_now(), status=-9)
    rank.write(directory.rank(9))
    assert directory.read_ranks() == [rank]
    submission = Submission(id="17", launcher="slurm", time=utc_now())
    job.add_submission(submission)
    assert job.read_submissions() == [submission]
    job.event("restart", "a node\nfailed", node="node2")
    assert [(event["event"], event["node"]) for event in job.read_events()] == [("restart", "node2")]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"number": 0}', '{"number": 1}', '{"number": "1\\u001b"}', "\x00" * 50]
)
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    directory = JobDirectory(tmp_path).attempt(1)
    directory.root.mkdir(parents=True)
    directory.record.write_text(text)
    with pytest.raises(LaunchError, match=r"attempt\.json") as told:
        JobDirectory(tmp_path).read_attempts()
    assert "\n" not in str(told.value)
    assert str(told.value).isprintable()
