"""Fixtures that several rooms need."""

import os

# Tests run side by side and start ranks of their own: more threads than cores wait for each other in OpenMP's
# barriers, up to ten times slower. Must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Without a GPU, Triton's kernels are run by its interpreter. Must be set before triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.command import Commands, commands_in
from helpers.tiny_data import TinyData, make_tiny_data


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    """A tokenizer of 512 tokens and shards of some standard-library modules; read-only, shared by all tests."""
    directory: Path = tmp_path_factory.mktemp("tiny-data")
    return make_tiny_data(directory)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Starts `glmforge` in processes, which end with the test."""
    with commands_in(tmp_path) as commands:
        yield commands
