"""The DeepSpeed example of examples/slurm under real Slurm, on CPUs: ZeRO-3, parameters and optimizer offloaded."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dev_cluster import Cluster, slurm_cluster

ROOT = Path(__file__).parents[3]
STEPS = 5

_WARNED_AT_STEP_3 = """
import os, runpy, signal
from pathlib import Path
from deepspeed.runtime.engine import DeepSpeedEngine

step, calls = DeepSpeedEngine.step, []

def warned(self, *arguments, **options):
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1" and not Path("{mark}").exists():
        Path("{mark}").touch()
        os.kill(os.getpid(), signal.SIGUSR1)
    return step(self, *arguments, **options)

DeepSpeedEngine.step = warned
runpy.run_path("{script}", run_name="__main__")
"""
"""The example whose second rank gets a warning in its third step, once."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as running:
        yield running


def run(cluster: Cluster, directory: Path, script: Path) -> tuple[dict[str, str], str]:
    """How a job of one rank on each of two nodes ends, and its log."""
    directory.mkdir()
    options = ["--ntasks-per-node=1", f"--output={directory / 'log'}", f"--chdir={ROOT}"]
    arguments = ["--steps", str(STEPS), "--save-every", "1000", "--save", str(directory / "save")]
    environment = {"PYTHON": sys.executable, "SCRIPT": str(script), "OMP_NUM_THREADS": "1"}
    job = cluster.submit([*options, "examples/slurm/deepspeed/srun.sbatch", *arguments], environment=environment)
    ended = cluster.wait(job, 600.0)  # the first ever compiles DeepSpeed's operations
    return ended, (directory / "log").read_text()


def losses_in(said: str) -> list[float]:
    """Step and loss by turns."""
    return [float(word) for line in re.findall(r"^step \d+ loss .*", said, re.MULTILINE) for word in line.split()[1::2]]


def test_a_warning_saves_and_the_next_start_goes_on_to_the_same_losses(cluster: Cluster, tmp_path: Path) -> None:
    example, wrapper = ROOT / "examples/slurm/deepspeed/train.py", tmp_path / "wrapper.py"
    wrapper.write_text(_WARNED_AT_STEP_3.format(mark=tmp_path / "mark", script=example))
    ended, said = run(cluster, tmp_path / "warned", wrapper)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said[-3000:]
    _, whole = run(cluster, tmp_path / "whole", example)
    assert len(losses_in(whole)) == 2 * STEPS
    # What is not restored (moments, the step, the data's place) changes the second digit.
    assert losses_in(said) == pytest.approx(losses_in(whole), rel=1e-4, abs=0.0)
