"""The Megatron scripts of examples/slurm under real Slurm, as far as a CPU goes.

Needs a checkout of Megatron-LM core_v0.16.1 in MEGATRON_SOURCE.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.megatron_data import tokenised

ROOT = Path(__file__).parents[3]
SMALL = (
    *("--num-layers", "2", "--hidden-size", "64", "--seq-length", "64", "--micro-batch-size", "1"),
    *("--global-batch-size", "4", "--log-interval", "1", "--train-iters", "5", "--save-interval", "3"),
)

pytestmark = pytest.mark.skipif(
    "MEGATRON_SOURCE" not in os.environ, reason="MEGATRON_SOURCE: no checkout of Megatron-LM core_v0.16.1"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as running:
        yield running


def run(cluster: Cluster, directory: Path, script: str, *arguments: str) -> tuple[str, str]:
    """How a job of one rank on each of two nodes ends, and its log."""
    log = directory / f"{script}.log"
    options = [f"--output={log}", f"--chdir={ROOT}", f"examples/slurm/megatron/{script}.sbatch"]
    environment = {
        "PYTHON": sys.executable,
        "MEGATRON": str(ROOT / "tests/backends/megatron"),  # its pretrain_gpt.py starts the real one on the CPU
        "DATA": str(directory / "text"),
        "TOKENIZER": str(directory / "tokenizer"),
        "SAVE": str(directory / "save"),
        "RANKS_PER_NODE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    job = cluster.submit(["--ntasks-per-node=1", *options, *arguments], environment=environment)
    ended = cluster.wait(job, 300.0)
    return ended["JobState"], log.read_text()


def iterations(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"iteration +(\d+)/", said)]


def test_megatron_itself_ends_before_it_reads_its_arguments(cluster: Cluster, tmp_path: Path) -> None:
    state, said = run(cluster, tmp_path, "srun", "--plain")
    assert state == "FAILED"
    assert "Megatron requires CUDA." in said


def test_the_scripts_train_save_and_go_on(cluster: Cluster, tmp_path: Path) -> None:
    tokenised(tmp_path)
    state, said = run(cluster, tmp_path, "srun", *SMALL, "--exit-interval", "3")
    assert (state, iterations(said)) == ("COMPLETED", [1, 2, 3]), said[-9000:]
    state, said = run(cluster, tmp_path, "torchrun", *SMALL)
    assert (state, iterations(said)) == ("COMPLETED", [4, 5]), said[-9000:]
    assert (tmp_path / "save/latest_checkpointed_iteration.txt").read_text() == "5"
