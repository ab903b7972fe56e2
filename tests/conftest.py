"""Fixtures that several rooms need, and what makes ten thousand tests begin sooner."""

import gc
import os

# Tests run side by side and start ranks of their own: more threads than cores wait for each other in OpenMP's
# barriers, up to ten times slower. Must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Without a GPU, Triton's kernels are run by its interpreter. Must be set before triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from helpers.command import Commands, commands_in
from helpers.dev_cluster import short_directory
from helpers.distributed import fork_server
from helpers.tiny_data import TinyData, make_tiny_data


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Nothing that is imported and collected is garbage, and looking for some is a third of the time until the first
    test."""
    gc.disable()


_FORKING = ("run_ranks", "start_job", "programs", "carry_out")
"""What tests of ranks and commands import."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Look for garbage again, but not among what is there before the first test. And start the process that ranks and
    commands are forked from, if one of the tests runs any.

    That process is used by the dry run, too, which would have it import less: each rank of all later tests then imports
    the rest by itself, half a second of processor time apiece.
    """
    gc.enable()
    gc.freeze()
    if session.config.option.collectonly:
        return
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    if any(hasattr(module, name) for module in modules for name in _FORKING):
        fork_server()
        forkserver.ensure_running()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """What `tmp_path` is, for those who need short paths in it, as sockets do."""
    with short_directory() as directory:
        yield directory


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
