"""Real gloo ranks: each collective gives the right elements, a wrong one is counted, and a slow host is found."""

import json
import os
import socket
from typing import Any

import pytest
import torch

from glmforge.runtime.launch import LaunchEnvironment
from glmforge_ops.health import bandwidth, slow_host
from glmforge_ops.health.bandwidth import KINDS, Row, judge, measure
from glmforge_ops.health.ranks import joined
from helpers.distributed import run_ranks

CPU = torch.device("cpu")


def measured() -> list[Row]:
    return [measure(kind, size, 1, CPU) for kind in KINDS for size in (4, 4096, 100_000)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_is_right(ranks: int) -> None:
    by_rank = run_ranks(measured, ranks)
    assert all(rows == by_rank[0] for rows in by_rank), "ranks have different figures"
    assert {row.kind for row in by_rank[0]} == set(KINDS)
    for row in by_rank[0]:
        assert row.wrong == 0, row
        assert row.size <= max(100_000, 4 * ranks)


def measured_with(fault: str) -> list[Row]:
    """On rank 1, the last element of each result is wrong, or the checked call does nothing."""
    plain = bandwidth._collective

    def make(kind: str, numel: int, device: torch.device) -> Any:
        run, output, prepare, expected = plain(kind, numel, device)
        calls = [0]

        def faulty() -> None:
            calls[0] += 1
            if fault == "idle" and calls[0] > bandwidth.WARMUP + 1:
                return
            run()
            if fault == "wrong" and os.environ["RANK"] == "1":
                output[-1] += 1

        return faulty, output, prepare, expected

    bandwidth._collective = make
    return [measure(kind, 4096, 1, CPU) for kind in KINDS]


@pytest.mark.parametrize("fault", ["wrong", "idle"])
def test_wrong_elements_are_counted_on_all_ranks(fault: str) -> None:
    by_rank = run_ranks(measured_with, 2, fault)
    assert by_rank[0] == by_rank[1]
    assert all(row.wrong == 1 if fault == "wrong" else row.wrong > 0 for row in by_rank[0])


def test_a_collective_below_what_is_expected_fails() -> None:
    rows = [Row("all_reduce", 1 << 20, 10.0, 100.0, busbw, 0) for busbw in (50.0, 79.0)]
    assert [status for status, _ in judge(rows, 100.0)] == ["fail"]
    assert [status for status, _ in judge(rows, 90.0)] == ["pass"]


def searched(slow: int) -> dict[str, Any] | None:
    """Each rank is a host of its own, and the exchanges of rank `slow` are measured as ten times slower."""
    rank = int(os.environ["RANK"])
    plain = slow_host._Rank._bandwidth

    def bandwidth_of(self: Any, partner: int, group: Any) -> float:
        plain(self, partner, group)
        return 1.0 if slow in (rank, partner) else 10.0

    slow_host._Rank._bandwidth = bandwidth_of  # type: ignore[method-assign]
    socket.gethostname = lambda: f"node{rank}"
    launch = LaunchEnvironment.read()
    rounds: list[str] = []
    with joined(launch, "gloo", CPU, timeout_s=60.0, connect_at_once=False) as store:
        findings, is_broken = slow_host.find_slow(
            launch, store, CPU, timeout_s=60.0, num_bytes=1000, done=rounds.append
        )
    assert not is_broken
    assert bool(rounds) == (rank == 0)
    return None if findings is None else json.loads(json.dumps(findings.as_dict()))


def test_real_ranks_find_a_slow_host() -> None:
    results = run_ranks(searched, 4, 2, init_group=False)
    assert results[1:] == [None, None, None]
    assert results[0] is not None
    assert results[0]["slow_hosts"] == [{"hosts": ["node2"], "gb_per_s": 1.0}]
    assert (results[0]["slow_paths"], results[0]["lost"], results[0]["rounds"]) == ([], [], 4)
