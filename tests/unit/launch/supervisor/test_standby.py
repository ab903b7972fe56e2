"""Who looks after the supervisor: neither a busy one nor one on a node that answers is taken for lost."""

from pathlib import Path

import pytest

from glmforge.cluster.lease import Lease
from glmforge.launch.job import JobDirectory
from glmforge.launch.supervisor.standby import LEASE, Standby


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_silent_supervisor_on_a_node_that_is_lost(tmp_path: Path, is_lost: bool) -> None:
    asked: list[str] = []
    watching = Standby(JobDirectory(tmp_path), lambda node: asked.append(node) or is_lost, silent_s=0.0)  # type: ignore[func-returns-value]
    with Lease(tmp_path, "test", name=LEASE, lease_s=3600):
        assert watching.look("node1") is is_lost
    assert asked == ["node1"]


def test_one_that_gives_signs_of_life(tmp_path: Path) -> None:
    watching = Standby(JobDirectory(tmp_path), lambda node: True, silent_s=3600)
    with Lease(tmp_path, "test", name=LEASE, lease_s=3600):
        assert not watching.look("node1")


def test_a_heartbeat_begins_the_time_anew(tmp_path: Path) -> None:
    watching = Standby(JobDirectory(tmp_path), lambda node: True, silent_s=3600)
    for number in (1, 2):
        with Lease(tmp_path, f"test {number}", name=LEASE, lease_s=3600):
            before = watching._since
            assert not watching.look("node1")
            assert watching._since > before
