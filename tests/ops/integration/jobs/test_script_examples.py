"""Users' own scripts under Slurm (examples/slurm): what a linter and sbatch say of all, and runs of those for CPUs."""

import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

import pytest
import torch.distributed as dist

from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.distributed import run_ranks
from helpers.packages import install_or_skip
from helpers.prepared import programs

ROOT = Path(__file__).parents[4]
SCRIPTS = sorted(path.relative_to(ROOT) for path in (ROOT / "examples/slurm").glob("*/*.sbatch"))
TIME_LIMIT_S = 300.0
PREEMPTED = 75

_WARNED_AT_STEP_3 = """
import os, runpy, signal
from pathlib import Path
import torch

step, calls = torch.optim.AdamW.step, []

def warned(self, *arguments, **options):
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1" and not Path("{mark}").exists():
        Path("{mark}").touch()
        os.kill(os.getpid(), signal.SIGUSR1)
    return step(self, *arguments, **options)

torch.optim.AdamW.step = warned
runpy.run_path("{script}", run_name="__main__")
"""
"""An example whose second rank gets a warning in its third step, once: whatever the machine's speed."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as running:
        yield running


def submitted(cluster: Cluster, script: str, directory: Path, *arguments: str, **environment: str) -> str:
    variables = {"PYTHON": sys.executable, "SAVE": str(directory / "run"), "OMP_NUM_THREADS": "1"}
    options = [f"--output={directory / 'log'}", f"--chdir={ROOT}", f"examples/slurm/{script}"]
    return cluster.submit([*options, *arguments], environment=variables | environment)


def where(script: str, directory: Path) -> list[str]:
    """The arguments that say where to save; scripts by torchrun have to know it themselves."""
    return [] if "torchrun" in script else ["--save", str(directory / "run")]


def losses_in(said: str) -> list[str]:
    return re.findall(r"^step \d+ loss .*", said, re.MULTILINE)


def numbers_in(said: str) -> list[float]:
    """Step and loss by turns."""
    return [float(word) for line in losses_in(said) for word in line.split()[1::2]]


def test_there_are_scripts_of_every_kind() -> None:
    assert {script.parent.name for script in SCRIPTS} == {"ddp", "fsdp_offload", "deepspeed", "megatron"}
    assert len(SCRIPTS) == 11


def test_shellcheck() -> None:
    install_or_skip(("shellcheck",), ("shellcheck",))
    done = subprocess.run(["shellcheck", *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_slurm_would_start_every_script(cluster: Cluster) -> None:
    for script in SCRIPTS:
        cluster.run("sbatch", "--test-only", str(ROOT / script))
    with pytest.raises(AssertionError, match="not available"):
        cluster.run("sbatch", "--test-only", "--gpus-per-node=9", str(ROOT / SCRIPTS[0]))


_MEGATRON = {"MEGATRON": "/opt/megatron", "DATA": "/data/text", "TOKENIZER": "/data/tokenizer"}


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("deepspeed/srun.sbatch", "deepspeed/train.py --deepspeed_config examples/slurm/deepspeed/zero3_offload.json"),
        ("deepspeed/torchrun.sbatch", "--rdzv-backend static"),
        ("deepspeed/mpi.sbatch", "srun --mpi=pmi2"),
        ("megatron/srun.sbatch", "/opt/megatron/pretrain_gpt.py --tensor-model-parallel-size 2"),
        ("megatron/torchrun.sbatch", "--rdzv-backend static"),
    ],
)
def test_what_is_for_gpus_says_what_it_would_run(cluster: Cluster, tmp_path: Path, script: str, wanted: str) -> None:
    job = submitted(cluster, script, tmp_path, "--mine", DRY_RUN="1", **_MEGATRON)
    ended = cluster.wait(job, TIME_LIMIT_S)
    said = (tmp_path / "log").read_text()
    assert ended["JobState"] == "COMPLETED", said
    assert wanted in said
    assert "--mine" in said


def test_scripts_of_several_examples_differ_in_what_they_start() -> None:
    """So that what one shows on Slurm holds for the other."""
    for name in ("srun", "torchrun", "mpi"):
        ddp, fsdp = ((ROOT / f"examples/slurm/{example}/{name}.sbatch").read_text() for example in _TOLERANCE)
        words = (("DistributedDataParallel", "FSDP with CPU offload"), ("ddp/", "fsdp_offload/"), ("ddp", "fsdp"))
        for old, new in words:
            ddp = ddp.replace(old, new)
        assert ddp == fsdp


def test_a_task_of_an_array_requeues_itself_and_not_the_array() -> None:
    """The job number of the last task is also that of the array."""
    asking = [line for script in SCRIPTS for line in script.read_text().splitlines() if "scontrol requeue" in line]
    assert len(asking) == 9
    assert all("${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" in line for line in asking)


_TOLERANCE = {"ddp": 1e-4, "fsdp_offload": 0.0}
"""DDP cuts its gradients anew after its first step, which changes the order of sums: 1e-6 here. What is not restored
(moments, the step, the data's place) changes the second digit. FSDP sums in the same order always."""
STEPS = 8


def rank_run_script(script: Path, arguments: list[str]) -> tuple[int, str]:
    """Its status and output. It ends at once: Gloo's threads abort a process whose interpreter ends around them."""
    sys.argv = [str(script), *arguments]

    def end(status: int) -> NoReturn:
        raise EndedAtOnceError(status)

    with redirect_stdout(io.StringIO()) as said, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", end)
        with pytest.raises(EndedAtOnceError) as ended:
            runpy.run_path(str(script), run_name="__main__")
    assert not dist.is_initialized()
    return int(ended.value.args[0]), said.getvalue()


class EndedAtOnceError(Exception):
    """With this status."""


def run_in_forks(script: Path, save: Path) -> tuple[list[int], str]:
    """Statuses of four ranks on this machine without Slurm, and the output of the first."""
    arguments = ["--steps", str(STEPS), "--save-every", "1000", "--save", str(save)]
    ended = run_ranks(rank_run_script, 4, script, arguments, init_group=False)
    return [status for status, _ in ended], ended[0][1]


def warned_script(example: str, directory: Path) -> Path:
    """The example, with the warning."""
    script, wrapper = ROOT / "examples/slurm" / example / "train.py", directory / "wrapper.py"
    wrapper.write_text(_WARNED_AT_STEP_3.format(mark=directory / "mark", script=script))
    return wrapper


@pytest.mark.parametrize("example", _TOLERANCE)
def test_a_script_that_was_warned_goes_on_to_the_same_losses(example: str, tmp_path: Path) -> None:
    script = warned_script(example, tmp_path)
    statuses, first = run_in_forks(script, tmp_path / "warned")
    assert statuses == [PREEMPTED] * 4
    assert len(losses_in(first)) == 3
    statuses, second = run_in_forks(script, tmp_path / "warned")
    assert statuses == [0] * 4
    _, whole = run_in_forks(script, tmp_path / "whole")
    assert numbers_in(first + second) == pytest.approx(numbers_in(whole), rel=_TOLERANCE[example], abs=0.0)


@pytest.mark.parametrize(
    ("script", "prepared"),
    [
        ("fsdp_offload/srun.sbatch", True),
        *(
            pytest.param(f"{example}/{by}.sbatch", False, marks=pytest.mark.chaos)
            for example, by in (
                ("ddp", "srun"),
                ("fsdp_offload", "srun"),
                ("ddp", "torchrun"),
                ("ddp", "mpi"),
                ("fsdp_offload", "torchrun"),
                ("fsdp_offload", "mpi"),
            )
        ),
    ],
)
def test_a_warning_saves_and_the_next_start_goes_on_to_the_same_losses(
    cluster: Cluster, tmp_path: Path, script: str, prepared: bool
) -> None:
    """Two nodes of two ranks. The job is warned, queued again, and ends with what a run without a warning ends with."""
    python = programs() / "python" if prepared else sys.executable
    example = Path(script).parent.name
    arguments = ["--steps", str(STEPS), "--save-every", "1000"]
    wrapper = warned_script(example, tmp_path)
    job = submitted(
        cluster, script, tmp_path, *arguments, *where(script, tmp_path), SCRIPT=str(wrapper), PYTHON=str(python)
    )
    ended = cluster.wait(job, TIME_LIMIT_S)
    said = (tmp_path / "log").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said
    _, whole = run_in_forks(wrapper, tmp_path / "whole")
    assert len(losses_in(whole)) == STEPS
    assert numbers_in(said) == pytest.approx(numbers_in(whole), rel=_TOLERANCE[example], abs=0.0)
