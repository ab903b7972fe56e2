import pytest


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
