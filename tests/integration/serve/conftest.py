from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.command import Commands, commands_in
from helpers.serving import Server, export_tiny_model, start_server
from helpers.tiny_data import TinyData


@pytest.fixture(scope="session")
def served_model(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_model(tmp_path_factory.mktemp("served"), tiny_data.tokenizer)


@pytest.fixture(scope="package")
def server(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that leave it as it was."""
    with commands_in(tmp_path_factory.mktemp("server")) as commands:
        yield start_server(commands, served_model)


@pytest.fixture
def start(served_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server with options and environment variables."""
    with commands_in(tmp_path) as commands:
        yield lambda *options, **environment: start_server(commands, served_model, *options, **environment)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with commands_in(tmp_path) as started:
        yield started
