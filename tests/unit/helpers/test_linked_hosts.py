"""Two hosts in namespaces are what tests over two nodes stand on: apart, slow, and gone when the test is over."""

import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
import torch.distributed as dist

from helpers.distributed import run_ranks
from helpers.leftovers import interfaces
from helpers.linked_hosts import LinkedHost, linked_hosts

BYTES = 4_000_000


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LinkedHost, LinkedHost]]:
    with linked_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def sum_up() -> float:
    """Seconds of an all-reduce."""
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(torch.ones(BYTES // 4))
    return time.perf_counter() - started


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
