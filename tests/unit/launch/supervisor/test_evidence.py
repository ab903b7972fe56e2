"""What is gathered of an attempt, as far as it is no business of the verdict's tests."""

from pathlib import Path

import pytest

from glmforge.launch.job import AttemptRecord, utc_now
from glmforge.launch.supervisor.evidence import gather
from helpers.fake_starter import a_job


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"node a: x\nsrun: error: Unable to create step\n\n", "srun: error: Unable to create step"),
        (b"\x1b[31mred\x1b[0m \xff", "\\x1b[31mred\\x1b[0m \N{REPLACEMENT CHARACTER}"),
        (b"a" * 10_000, "a" * 600),
        (b"", ""),
        (None, ""),
    ],
)
def test_the_last_that_a_starter_says(log: bytes | None, said: str, tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    attempt = AttemptRecord(
        number=1, submission="1", nodes=["a"], ranks_per_node=1, starter="srun", address="a", port=1, began=utc_now()
    )
    directory = job.attempt(1).root
    directory.mkdir(parents=True)
    if log is not None:
        (directory / "starter.log").write_bytes(log)
    assert gather(job, job.read(), attempt).said == said
