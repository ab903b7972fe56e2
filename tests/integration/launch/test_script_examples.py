"""Users' own scripts under Slurm (examples/slurm): what a linter and sbatch say of all, and runs of those for CPUs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.packages import install_or_skip

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(path.relative_to(ROOT) for path in (ROOT / "examples/slurm").glob("*/*.sbatch"))
TIME_LIMIT_S = 300.0


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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


def submitted(cluster: Cluster, script: str, directory: Path, *arguments: str, **environment: str) -> str:
    variables = {"PYTHON": sys.executable, "SAVE": str(directory / "run"), "OMP_NUM_THREADS": "1"}
    options = [f"--output={directory / 'log'}", f"--chdir={ROOT}", f"examples/slurm/{script}"]
    return cluster.submit([*options, *arguments], environment=variables | environment)


def where(script: str, directory: Path) -> list[str]:
    """The arguments that say where to save; scripts by torchrun have to know it themselves."""
    return [] if "torchrun" in script else ["--save", str(directory / "run")]


def losses_of(log: Path) -> list[str]:
    return re.findall(r"^step \d+ loss .*", log.read_text(), re.MULTILINE)


def numbers_of(log: Path) -> list[float]:
    """Step and loss by turns."""
    return [float(word) for line in losses_of(log) for word in line.split()[1::2]]


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


@pytest.mark.parametrize(
    "script",
    [
        "ddp/srun.sbatch",
        "fsdp_offload/srun.sbatch",
        *(
            pytest.param(f"{example}/{by}.sbatch", marks=pytest.mark.chaos)
            for example, by in (
                ("ddp", "torchrun"),
                ("ddp", "mpi"),
                ("fsdp_offload", "torchrun"),
                ("fsdp_offload", "mpi"),
            )
        ),
    ],
)
def test_a_warning_saves_and_the_next_start_goes_on_to_the_same_losses(
    cluster: Cluster, tmp_path: Path, script: str
) -> None:
    """Two nodes of two ranks. The job is warned, queued again, and ends with what a run without a warning ends with."""
    whole, warned = tmp_path / "whole", tmp_path / "warned"
    steps = 8
    mark, wrapper = tmp_path / "mark", tmp_path / "wrapper.py"
    wrapper.write_text(
        _WARNED_AT_STEP_3.format(mark=mark, script=ROOT / "examples/slurm" / Path(script).parent / "train.py")
    )
    for directory in (whole, warned):
        directory.mkdir()
    arguments = ["--steps", str(steps), "--save-every", "1000"]
    job = submitted(cluster, script, warned, *arguments, *where(script, warned), SCRIPT=str(wrapper))
    ended = cluster.wait(job, TIME_LIMIT_S)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), (warned / "log").read_text()
    cluster.wait(submitted(cluster, script, whole, *arguments, *where(script, whole)), TIME_LIMIT_S)
    assert len(losses_of(whole / "log")) == steps
    # DDP cuts its gradients anew after its first step, which changes the order of sums: 1e-6 here. What is not restored
    # (moments, the step, the data's place) changes the second digit. FSDP sums in the same order always.
    tolerance = 1e-4 if script.startswith("ddp") else 0.0
    assert numbers_of(warned / "log") == pytest.approx(numbers_of(whole / "log"), rel=tolerance, abs=0.0)
