"""The job script that setup writes, on a real Slurm: accepted, run by every task, refused where it cannot be."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from helpers.dev_cluster import GPUS_PER_NODE, NUM_NODES, install_slurm_or_skip, slurm_cluster


def write_scripts(directory: Path, nodes: int) -> Path:
    """What setup writes for so many nodes, whose Python only tells how it was called."""
    python = directory / "python"
    python.write_text(
        f'#!/bin/sh\necho "$SLURM_PROCID $LOCAL_WORLD_SIZE $MASTER_PORT $*" >"{directory}/rank$SLURM_PROCID"\n'
    )
    python.chmod(0o755)
    names = ", ".join(f"node{number}" for number in range(1, nodes + 1))
    (directory / "cluster.yaml").write_text(
        f"nodes: [{names}]\ngpus_per_node: {GPUS_PER_NODE}\npython: {python}\nmaster_port: 29511\n"
    )
    out = directory / f"cluster of {nodes}"
    command = ["cluster", "setup", str(directory / "cluster.yaml"), "--type", "slurm", "--out", str(out)]
    result = CliRunner().invoke(app, [*command, "--dry-run", "--offline"])
    assert result.exit_code == 0, result.exception
    # The nodes of this Slurm have no ssh servers: what the plan shows is what would be written.
    out.mkdir()
    for block in result.stdout.split("\n  write ")[1:]:
        name, *lines = block.splitlines()
        path = Path(name.rpartition(" (")[0])
        if path.suffix in (".sh", ".sbatch"):
            path.write_text("".join(f"{line[5:]}\n" for line in lines if line.startswith("    +")))
    return out / "job.sbatch"


def test_on_slurm(tmp_path: Path) -> None:
    install_slurm_or_skip()
    with slurm_cluster() as cluster:
        job_script = write_scripts(tmp_path, NUM_NODES)
        cluster.run("sbatch", "--test-only", str(job_script), "train")
        too_many = write_scripts(tmp_path, NUM_NODES + 1)
        refused = subprocess.run(["sbatch", "--test-only", str(too_many), "train"], env=cluster.environment)
        assert refused.returncode != 0
        job = cluster.submit([f"--chdir={tmp_path}", str(job_script), "train", "a b.yaml"])
        ended = cluster.wait(job, timeout_s=120)
        assert ended["JobState"] == "COMPLETED", cluster.log_of(ended)
    ranks = sorted(path.name for path in tmp_path.glob("rank*"))
    assert ranks == [f"rank{rank}" for rank in range(NUM_NODES * GPUS_PER_NODE)]
    expected = f"0 {GPUS_PER_NODE} 29511 -m glmforge train a b.yaml\n"
    assert (tmp_path / "rank0").read_text() == expected


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_a_launcher_outside_of_a_job_says_what_to_do(tmp_path: Path, arguments: list[str]) -> None:
    script = write_scripts(tmp_path, 2).with_name("launch.sh")
    done = subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert ("not in a Slurm job; submit it: sbatch" if arguments else "usage: launch.sh") in done.stderr
