from collections.abc import Callable

import pytest

from glmforge.config import RunConfig
from glmforge.dryrun.run import DryRun, dry_run


@pytest.fixture(scope="session")
def dry_run_once() -> Callable[[RunConfig, int], DryRun]:
    """`dry_run`, which takes seconds: once of each run, whose traffic several tests look at."""
    found: dict[tuple[str, int], DryRun] = {}

    def once(config: RunConfig, world_size: int) -> DryRun:
        key = config.model_dump_json(), world_size
        if key not in found:
            found[key] = dry_run(config, world_size)
        return found[key]

    return once


@pytest.fixture
def small_run() -> str:
    """A step of eight sequences, each a micro-batch, by a model of three layers."""
    return """
name: run
model: {preset: tiny, num_hidden_layers: 3}
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 256, batch_size: 8, aux_loss_weight: 0}]
parallel: {micro_batch_size: 1}
"""
