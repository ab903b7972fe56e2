"""Ports: free, and promised to one job at a time."""

import os
import socket
from pathlib import Path

import pytest

from glmforge_ops.jobs.ranks.ports import FIRST_PORT, PROMISED_S, hold, is_free, reserve


@pytest.fixture
def promised(tmp_path: Path) -> Path:
    return tmp_path / "ports"


def test_two_jobs_with_the_same_number_get_two_ports(promised: Path) -> None:
    assert reserve(8123, promised) != reserve(8123, promised)


def test_a_promise_runs_out(promised: Path) -> None:
    port = reserve(8223, promised)
    os.utime(promised / str(port), (0, 0))
    assert reserve(port - FIRST_PORT, promised) == port


def test_a_port_that_a_rank_holds_is_not_promised_however_long_it_runs(promised: Path) -> None:
    port = reserve(8323, promised)
    held = hold(port, promised)
    assert held is not None
    os.utime(promised / str(port), (0, 0))
    assert reserve(port - FIRST_PORT, promised) != port
    assert hold(port, promised) is None
    os.close(held)
    assert reserve(port - FIRST_PORT, promised) == port
    assert PROMISED_S > 0


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_left(promised: Path, address: str) -> None:
    free = reserve(8423, promised)
    os.utime(promised / str(free), (0, 0))
    with socket.socket() as server:
        server.bind((address, free))
        server.listen(1)
        assert not is_free(free)
        assert reserve(free - FIRST_PORT, promised) != free
    assert is_free(free)


def test_a_link_in_place_of_the_file_is_not_followed(promised: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("text")
    promised.mkdir()
    (promised / str(FIRST_PORT + 8523)).symlink_to(precious)
    reserve(8523, promised)
    assert precious.read_text() == "text"
