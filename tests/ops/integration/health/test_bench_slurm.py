"""The benchmark of communication started by Slurm, with a rank on each of two nodes."""

import json
import sys
from pathlib import Path

from helpers.dev_cluster import slurm_cluster


def test_ranks_of_srun_measure(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    bench = [sys.executable, "-m", "glmforge", "cluster", "bench", "--backend", "gloo", "--collective", "all_reduce"]
    with slurm_cluster() as cluster:
        shown = cluster.run(
            *("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", *bench),
            *("--min-bytes", "64K", "--max-bytes", "64K", "--iterations", "2", "--json", str(result)),
            environment={"OMP_NUM_THREADS": "1"},
        )
    (row,) = json.loads(result.read_text())["rows"]
    assert (row["kind"], row["size"], row["wrong"]) == ("all_reduce", 65_536, 0)
    assert json.loads(result.read_text())["num_ranks"] == 2
    assert shown.count("all_reduce") == 1  # rank 0 alone prints
