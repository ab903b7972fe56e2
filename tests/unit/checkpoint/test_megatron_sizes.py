"""What the bytes of Megatron's checkpoints are, by the names that it gives tensors. A real one: tests/backends."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from typer.testing import CliRunner

from glmforge.checkpoint.sizes import megatron_sizes
from glmforge.cli.app import app

PARAMETERS = 6000


def saved(directory: Path, state: str) -> Path:
    """As with `state` before and after the names of what the optimizer keeps; with objects beside the tensors."""
    before, after = state.split("*")
    tensors = {"decoder.layers.mlp.linear_fc1.weight": torch.zeros(PARAMETERS, dtype=torch.bfloat16)}
    for name in ("param", "exp_avg", "exp_avg_sq") if not after else ("fp32_param", "exp_avg", "exp_avg_sq"):
        tensors[f"{before}{name}{after}"] = torch.zeros(PARAMETERS)
    objects = {"rng_state/shard_0.0_1.1": [1], "decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_1": [2]}
    dcp.save(tensors | objects, checkpoint_id=directory, no_dist=True)
    (directory / "common.pt").write_bytes(b"settings")
    return directory


def test_14_bytes_per_parameter(tmp_path: Path) -> None:
    in_memory = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.*"
    for number, state in enumerate([in_memory, "optimizer.state.*.decoder.layers.mlp.linear_fc1.weight"]):
        found = megatron_sizes(saved(tmp_path / f"{number}", state))
        assert {row.kind: row.actual for row in found[:-1]} == {
            "weights, bfloat16: 2.0 B per parameter": 2 * PARAMETERS,
            "optimizer master weights, float32: 4.0 B per parameter": 4 * PARAMETERS,
            "optimizer exp_avg, float32: 4.0 B per parameter": 4 * PARAMETERS,
            "optimizer exp_avg_sq, float32: 4.0 B per parameter": 4 * PARAMETERS,
        }
        assert sum(row.actual for row in found) == sum(
            file.stat().st_size for file in (tmp_path / f"{number}").iterdir()
        )


def test_the_command_shows_them(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["checkpoint", "show", "--sizes", str(saved(tmp_path / "iter_0000100", "optimizer.*"))]
    )
    assert done.exit_code == 0, done.output
    assert "optimizer exp_avg_sq" in done.stdout
