from pathlib import Path

import pytest

from glmforge.recipes.train import train
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights the others start from."""
    directory = tmp_path_factory.mktemp("base") / "run"
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(tiny_data.run_config(directory, phases=phases, checkpoint={"every_steps": 1}))
    return directory
