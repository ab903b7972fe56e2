import pytest

RUN = """
name: run
model: tiny
data:
  tokenizer: data/tokenizer
  sources: [{name: train, path: data/train}]
  held_out: [{name: held_out, path: data/held_out}]
phases: [{name: pretrain, steps: 400, seq_len: 256, batch_size: 16}]
optim: {lr: 2e-3, min_lr: 2e-4, warmup_steps: 20}
observe: {evaluate_every: 100}
"""


@pytest.fixture
def run_yaml() -> str:
    """A small valid run as YAML text."""
    return RUN
