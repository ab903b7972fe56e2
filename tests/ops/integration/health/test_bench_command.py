"""`glmforge cluster bench` as it is typed: ranks of its own, and a rank that does not find the others."""

import json
import os
import re
import subprocess
from pathlib import Path

from helpers.distributed import free_port
from helpers.prepared import programs

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES")


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    command = [programs() / "glmforge", "cluster", "bench", "--backend", "gloo", *arguments]
    return subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, timeout=300, check=False
    )


def test_ranks_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    sizes = ("--min-bytes", "1K", "--max-bytes", "4K", "--iterations", "1", "--timeout", "200")
    kinds = ("--collective", "all_reduce", "--collective", "all_to_all")
    done = bench("--local", "2", *sizes, *kinds, "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("all_reduce", "1024", "0"),
        ("all_reduce", "2048", "0"),
        ("all_reduce", "4096", "0"),
        ("all_to_all", "1024", "0"),
        ("all_to_all", "2048", "0"),
        ("all_to_all", "4096", "0"),
    ]
    written = json.loads(file.read_text())
    assert (written["num_ranks"], written["backend"], len(written["rows"])) == (2, "gloo", 6)


def test_a_rank_that_does_not_reach_rank_0_says_so_in_one_line() -> None:
    port = str(free_port())
    done = bench("--timeout", "1", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("glmforge: ")]
    assert re.match(rf"glmforge: rank 1 on \S+ did not reach rank 0 at 127.0.0.1:{port} .* within 1 s", line)
    assert "Traceback" not in done.stderr
