import pytest

from glmforge.errors import ConfigError
from glmforge.training.nodes import check_nodes
from helpers.models import run_config


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch):
    def launch(**environment: str) -> None:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return launch


def test_too_few_nodes_are_refused(launched) -> None:
    launched(RANK="0", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8")
    check_nodes(run_config(fault_tolerance={"min_nodes": 2}))
    with pytest.raises(ConfigError, match=r"fault_tolerance.min_nodes: 3, but the launcher started 2.*set it to 2"):
        check_nodes(run_config(fault_tolerance={"min_nodes": 3}))
