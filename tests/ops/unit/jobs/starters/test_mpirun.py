"""Which mpirun is taken."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.starters import mpirun
from glmforge_ops.jobs.starters.mpirun import open_mpi


def program(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(mpirun, "_VERSION_LIMIT_S", 0.2)
    return tmp_path


def test_one_that_cannot_be_run_or_hangs_is_passed_over(place: Path) -> None:
    program(place / "mpirun.openmpi", "no program at all, and for no interpreter")
    program(place / "orterun", "#!/bin/sh\nexec sleep 60\n")
    right = program(place / "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    assert open_mpi() == str(right)


def test_one_of_another_name_is_none(place: Path) -> None:
    for name in ("mpirun.openmpi", "orterun", "mpirun"):
        program(place / name, "#!/bin/sh\necho HYDRA build details\n")
    with pytest.raises(LaunchError, match=r"no mpirun of Open MPI on this machine; install it"):
        open_mpi()
