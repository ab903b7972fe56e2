"""torch.compile changes the speed and nothing else, on one rank and under FSDP2."""

from pathlib import Path

import pytest

from glmforge.config import RunConfig
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from helpers.distributed import run_ranks
from helpers.tiny_data import TinyData


def rank_train(config: RunConfig) -> int:
    return train(config).step


def losses_of(tiny_data: TinyData, directory: Path, num_ranks: int, compiled: bool) -> list[float]:
    config = tiny_data.run_config(
        directory / f"{num_ranks}-{compiled}",
        phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 4 * num_ranks}],
        parallel={"compile": compiled},
    )
    run_ranks(rank_train, num_ranks, config, init_group=False, timeout_s=300)
    return [record["loss"] for record in read_jsonl(config.output_dir / "metrics.jsonl")]


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_compiled_losses_equal_eager_ones(tiny_data: TinyData, tmp_path: Path, num_ranks: int) -> None:
    eager, compiled = (losses_of(tiny_data, tmp_path, num_ranks, compiled) for compiled in (False, True))
    # Fused kernels round elsewhere: units in the last place of fp32, fed back through four updates.
    assert compiled == pytest.approx(eager, rel=1e-5)
