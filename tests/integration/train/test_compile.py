"""torch.compile changes the speed and nothing else, on one rank and under FSDP2."""

from pathlib import Path

import pytest

from glmforge.config import RunConfig
from glmforge.observe.sinks import read_jsonl
from glmforge.recipes.pretrain import train
from helpers.distributed import run_ranks
from helpers.tiny_data import TinyData


def rank_train(config: RunConfig) -> int:
    return train(config).step


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_compiled_losses_equal_eager_ones(tiny_data: TinyData, tmp_path: Path, num_ranks: int) -> None:
    losses = []
    for compiled in (False, True):
        config = tiny_data.run_config(
            tmp_path / f"compiled-{compiled}",
            phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 4}],
            parallel={"compile": compiled},
        )
        run_ranks(rank_train, num_ranks, config, init_group=False, timeout_s=300)
        losses.append([record["loss"] for record in read_jsonl(config.output_dir / "metrics.jsonl")])
    eager, compiled_losses = losses
    # Fused kernels round elsewhere: units in the last place of fp32, fed back through four updates.
    assert compiled_losses == pytest.approx(eager, rel=1e-5)
