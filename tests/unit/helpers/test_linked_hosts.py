"""Two hosts in namespaces are what tests over two nodes stand on: apart, slow, and gone when the test is over."""

import errno
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from helpers.distributed import RankFailure, run_ranks
from helpers.leftovers import interfaces
from helpers.linked_hosts import OVERHEAD, LinkedHost, linked_hosts

BYTES = 4_000_000
RATE = 12.5e6
"""Bytes per second of 100 Mbit/s."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LinkedHost, LinkedHost]]:
    with linked_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def introduce(disk: Path) -> tuple[str, str, str]:
    (disk / str(dist.get_rank())).touch()
    dist.barrier()
    with socket.socket() as probe:
        unreachable = probe.connect_ex(("192.0.2.1", 80))
    names = " ".join(sorted(file.name for file in disk.iterdir()))
    return socket.gethostname(), names, errno.errorcode[unreachable]


def sum_up() -> float:
    """Seconds of an all-reduce."""
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(torch.ones(BYTES // 4))
    return time.perf_counter() - started


def test_each_has_a_name_a_disk_and_no_way_out(hosts):
    found = run_ranks(introduce, 4, hosts[0].disk_seen, hosts=hosts)
    first, second = ("host0", "0 1", "ENETUNREACH"), ("host1", "2 3", "ENETUNREACH")
    assert found == [first, first, second, second]
    assert {file.name for file in hosts[1].disk.iterdir()} == {"2", "3"}


def test_what_goes_over_the_link_is_counted_and_takes_its_time(hosts):
    """In a ring over two ranks each sends half of the tensor to the other twice."""
    before = hosts[0].link_bytes
    (seconds, _) = run_ranks(sum_up, 2, hosts=hosts)
    sent, received = (after - earlier for after, earlier in zip(hosts[0].link_bytes, before, strict=True))
    at_the_start = 20_000  # connecting, and a barrier
    assert BYTES < sent < OVERHEAD * BYTES + at_the_start
    assert BYTES < received < OVERHEAD * BYTES + at_the_start
    assert seconds > 0.9 * BYTES / RATE  # a burst goes at once


def test_a_cut_link_is_silent(hosts):
    hosts[1].cut_link()
    try:
        with pytest.raises(RankFailure, match=r"[Tt]imed out|without a result"):
            run_ranks(sum_up, 2, hosts=hosts, timeout_s=3.0)
    finally:
        hosts[1].mend_link()
    run_ranks(sum_up, 2, hosts=hosts)


def test_nothing_is_left_and_two_pairs_do_not_meet(tmp_path, hosts):
    before = interfaces()
    with linked_hosts(tmp_path) as others:
        assert names_of(others) == ["host0", "host1"]
        assert interfaces() == before
        keepers = [host.keeper for host in others]
    assert not any(map(psutil.pid_exists, keepers))
    assert (tmp_path / "host0.disk").is_dir()
    assert not list((tmp_path / "disk").iterdir())
    run_ranks(sum_up, 2, hosts=hosts)


def names_of(hosts: tuple[LinkedHost, LinkedHost]) -> list[str]:
    return [subprocess.check_output(host.command("hostname"), text=True).strip() for host in hosts]
