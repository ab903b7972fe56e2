"""Real gloo ranks: each collective gives what it has to, a wrong element is counted, and a slow rank is found."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge_ops.health.collectives import run
from glmforge_ops.health.collectives.kinds import KINDS
from glmforge_ops.health.collectives.measure import measure_all
from glmforge_ops.health.collectives.operations import Collective, Place, make_collective
from glmforge_ops.health.collectives.rows import Row, as_json
from glmforge_ops.health.collectives.settings import BenchSettings, SlowSettings
from glmforge_ops.health.collectives.slow import exchange
from glmforge_ops.health.collectives.slow.report import findings_as_json
from helpers.distributed import run_ranks


def settings(dtype: str = "float32", **changed: Any) -> BenchSettings:
    return BenchSettings(kinds=tuple(KINDS), sizes=(8, 4096, 100_000), dtype=dtype, iterations=1, warmup=1, **changed)


def measured(dtypes: list[str]) -> list[dict[str, Any]]:
    place = Place(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    return [row for dtype in dtypes for row in as_json(measure_all(settings(dtype), place, lambda row: None))]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_is_right(ranks: int) -> None:
    by_rank = run_ranks(measured, ranks, ["float32", "bfloat16", "int8"])
    assert all(rows == by_rank[0] for rows in by_rank), "ranks tell different figures"
    assert {row["kind"] for row in by_rank[0]} == set(KINDS)
    assert {row["type"] for row in by_rank[0]} == {"float", "bfloat16", "int8"}
    for row in by_rank[0]:
        assert row["wrong"] == 0, row
        assert row["time_us"] > 0
        assert row["size"] <= max(100_000, 4 * ranks**2)


def measured_with_a_wrong_element() -> dict[str, int]:
    """On rank 1 the last element of what each collective gives is something else."""

    def make(kind: str, num: int, dtype: torch.dtype, place: Place) -> Collective:
        made = make_collective(kind, num, dtype, place)
        right = made.run

        def run_wrong() -> None:
            right()
            if place.rank == 1:
                made.output[-1] += 1

        made.run = run_wrong
        return made

    place = Place(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    rows = measure_all(settings(), place, lambda row: None, make=make)
    assert all(row.wrong is not None for row in rows)
    return {f"{row.kind} {row.size}": row.wrong or 0 for row in rows}


def test_a_wrong_element_on_one_rank_is_counted_on_all() -> None:
    by_rank = run_ranks(measured_with_a_wrong_element, 3)
    assert set(by_rank[0].values()) == {1}
    assert by_rank[1] == by_rank[0]


def measured_without_doing_anything() -> dict[str, int]:
    """The output as it was before: nothing that was right in the calls before counts."""

    def make(kind: str, num: int, dtype: torch.dtype, place: Place) -> Collective:
        made = make_collective(kind, num, dtype, place)
        right, calls = made.run, [0]

        def run_until_checked() -> None:
            calls[0] += 1
            if calls[0] < 3:  # one to warm up, one that is timed
                right()

        made.run = run_until_checked
        return made

    place = Place(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    rows = measure_all(settings(), place, lambda row: None, make=make)
    return {f"{row.kind} {row.size}": row.wrong or 0 for row in rows}


def test_a_collective_that_does_nothing_is_wrong() -> None:
    by_rank = run_ranks(measured_without_doing_anything, 2)
    assert all(wrong > 0 for wrong in by_rank[0].values()), by_rank[0]


def benched() -> tuple[list[Row], list[Row], int]:
    told: list[Row] = []
    rows, ranks = run.run_bench(BenchSettings(kinds=("all_reduce",), sizes=(8, 64), iterations=1), told.append)
    return rows, told, ranks


def test_a_benchmark_from_the_launchers_variables() -> None:
    by_rank = run_ranks(benched, 2, init_group=False)
    rows, told, ranks = by_rank[0]
    assert (ranks, [row.size for row in rows]) == (2, [8, 64])
    assert told == rows
    assert by_rank[1][1] == [], "a rank other than 0 told rows"


def searched(slow: dict[tuple[int, int], float]) -> dict[str, Any] | None:
    """The search among ranks whose exchanges take 1 ms by their clock, and those of `slow` pairs longer."""
    rank = int(os.environ["RANK"])
    plain = exchange._Link._timed

    def timed(link: exchange._Link, partner: int) -> float:
        plain(link, partner)
        return max(0.001, slow.get((min(rank, partner), max(rank, partner)), 0.0))

    exchange._Link._timed = timed  # type: ignore[method-assign]
    told: list[int] = []
    settings = SlowSettings(unit="rank", exchange_bytes=1000, timeout_s=60.0)
    outcome = run.run_find_slow(settings, lambda done: told.append(done.number))
    if outcome.findings is None:
        assert not told, "a rank other than 0 told rounds"
        return None
    assert told == list(range(1, outcome.findings.num_rounds + 1))
    return findings_as_json(outcome.units, outcome.findings)


def test_real_ranks_find_a_slow_rank() -> None:
    results = run_ranks(searched, 4, {(0, 2): 0.01, (1, 2): 0.01, (2, 3): 0.01}, init_group=False)
    found = results[0]
    assert [one["host"].partition(" (")[0] for one in found["slow_hosts"]] == ["rank 2"]
    assert found["slow_paths"] == []
    assert (found["paths_measured"], found["rounds"]) == (6, 3)
    assert results[1:] == [None, None, None]


def test_real_ranks_find_a_slow_path_between_two() -> None:
    found = run_ranks(searched, 4, {(1, 2): 0.01}, init_group=False)[0]
    (path,) = found["slow_paths"]
    assert [path["between"][0][:6], path["and"][0][:6], path["confirmed"]] == ["rank 1", "rank 2", True]
    assert found["slow_hosts"] == []
