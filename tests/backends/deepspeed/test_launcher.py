"""Runs that DeepSpeed's own launcher starts from a hostfile.

`--no_ssh` stands for the ssh that starts the same command on each host: two of them are this machine.
"""

import shutil
import sys
from pathlib import Path

from glmforge.observe.record_files import read_jsonl
from helpers.command import Commands, Started, write_config
from helpers.distributed import free_port
from helpers.tiny_data import TinyData


def launched(commands: Commands, config: str, hosts: Path, node: int, port: int) -> Started:
    launcher = shutil.which("deepspeed", path=str(Path(sys.executable).parent))
    assert launcher is not None
    where = ("--no_ssh", "--node_rank", str(node), "--master_addr", "127.0.0.1", "--master_port", str(port))
    run = ("--module", "glmforge", "train", config)
    return commands.start_program(launcher, "--hostfile", str(hosts), *where, *run)


def test_two_hosts_of_two_ranks(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    """Each process has its --local_rank before the command, and learns from the environment how many its node has."""
    phases = [{"name": "main", "steps": 3, "seq_len": 32, "batch_size": 8}]
    config = write_config(tiny_data.run_config(tmp_path / "run", phases=phases))
    hosts, port = tmp_path / "hosts", free_port()
    hosts.write_text("first slots=2\nsecond slots=2\n")
    nodes = [launched(commands, config, hosts, node, port) for node in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], "\n".join(node.output[-3000:] for node in nodes)
    assert all("--local_rank=1" in node.output for node in nodes)
    metrics = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    alone = commands.start("train", config, f"output_dir={tmp_path / 'alone'}")
    assert alone.wait() == 0
    for one, other in zip(metrics, read_jsonl(tmp_path / "alone" / "metrics.jsonl"), strict=True):
        assert abs(one["loss"] - other["loss"]) < 1e-5  # fp32: sums over four ranks are in another order
