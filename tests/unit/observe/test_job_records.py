"""A job's directory: what is written comes back, and what is damaged is named."""

from pathlib import Path

import pytest

from glmforge.config import dump_config
from glmforge.config.launch import LaunchConfig
from glmforge.errors import ConfigError, LaunchError
from glmforge.observe.job_records import (
    CANCELLED,
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
    job.root.mkdir(parents=True)
    job.description.write_text(dump_config(description()))
    assert job.read() == description(created=job.read().created)


def test_no_job(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"air/job\.yaml: is missing"):
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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": 0}', '{"number": "1\\u001b"}', "\x00" * 50])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    directory = JobDirectory(tmp_path).attempt(1)
    directory.root.mkdir(parents=True)
    directory.record.write_text(text)
    with pytest.raises(LaunchError, match=r"attempt\.json") as told:
        JobDirectory(tmp_path).read_attempts()
    assert "\n" not in str(told.value)
    assert str(told.value).isprintable()


def test_what_another_version_wrote_besides_is_ignored(tmp_path: Path) -> None:
    """Of a job with secrets too, whose `***` is YAML that is not read quickly; a wrong value is still named."""
    job = JobDirectory(tmp_path)
    text = dump_config(description(launch=LaunchConfig(launcher="slurm", env={"HF_TOKEN": "***"})))
    text = text.replace("launch:\n", "launch:\n  growth: 3\n").replace(
        "  supervisor:\n", "  supervisor:\n    standby: 1\n"
    )
    job.description.write_text(f"colour: red\n{text}")
    assert job.read().launch.secrets == ("HF_TOKEN",)
    job.description.write_text(text.replace("kind: train", "kind: party"))
    with pytest.raises(ConfigError, match=r"job\.yaml:2: kind"):
        job.read()


def test_a_cancellation_counts_for_its_submission(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    assert not job.is_cancelled()
    job.add_submission(Submission(id="17", launcher="slurm", time=utc_now()))
    assert not job.is_cancelled()
    job.event(CANCELLED, submission="17")
    job.event("note", "the word cancelled")
    assert job.is_cancelled()
    job.add_submission(Submission(id="18", launcher="slurm", time=utc_now()))
    assert not job.is_cancelled()


def test_what_lies_beside_attempts_is_none(tmp_path: Path) -> None:
    for name in ("7", "²²²²", "0002.old", "0003"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert JobDirectory(tmp_path).attempt_numbers() == [3]
