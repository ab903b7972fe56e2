"""What is named is a sweep or a chain, or something else, which is then told."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.kinds import directory_of
from helpers.made_jobs import made_job


@pytest.mark.parametrize("name", ["", ".", "..", "../lr", "jobs/lr", "/lr", "a b", "a\x1b[31m", "a" * 65])
def test_what_can_be_no_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(LaunchError, match="is no name of a sweep; give that of one in ") as error:
        directory_of(tmp_path, name, "sweep")
    assert "\x1b" not in str(error.value)
    assert not str(error.value).startswith(":")


def test_a_name_of_something_else(tmp_path: Path) -> None:
    made_job(tmp_path, "air")
    with pytest.raises(LaunchError, match=r"^air: is a job, and no chain; see 'glmforge jobs show air'$"):
        directory_of(tmp_path, "air", "chain")
    (tmp_path / "lr").mkdir()
    (tmp_path / "lr/sweep.json").touch()
    with pytest.raises(LaunchError, match=r"^lr: is a sweep, and no chain; see 'glmforge sweep show lr'$"):
        directory_of(tmp_path, "lr", "chain")
    assert directory_of(tmp_path, "lr", "sweep") == tmp_path / "lr"
    assert directory_of(tmp_path, "none", "chain") == tmp_path / "none"
