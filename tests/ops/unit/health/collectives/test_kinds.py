"""Sizes, counts and bus bandwidth as nccl-tests has them."""

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.health.collectives.kinds import KINDS, counted, elements, find_kinds
from glmforge_ops.health.collectives.rows import HEADER, best_of, line_of, make_row
from glmforge_ops.health.collectives.settings import message_sizes, parse_size


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("all_to_all_uneven", 4, 1.0),
        ("broadcast", 8, 1.0),
        ("send_recv", 8, 1.0),
    ],
)
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_published_factor(kind: str, ranks: int, factor: float) -> None:
    row = make_row(kind, 1_000_000, "float32", ranks, seconds=0.004, wrong=0)
    assert row.algbw == pytest.approx(4e6 / 0.004 / 1e9)
    assert row.busbw == pytest.approx(factor * row.algbw)


def test_one_row_of_nccl_tests_own_table() -> None:
    """2 GPUs, 8 M elements of float in 1.5 ms: its figures of time and size give its bandwidths."""
    row = make_row("all_reduce", 8388608, "float32", 8, seconds=2000e-6, wrong=0)
    assert (row.size, row.count, row.type, row.redop, row.root) == (33554432, 8388608, "float", "sum", -1)
    assert (round(row.algbw, 2), round(row.busbw, 2)) == (16.78, 29.36)
    assert len(line_of(row)) == len(HEADER[0])


def test_count_is_of_what_each_rank_gives_or_gets() -> None:
    num = elements("all_gather", 1 << 20, itemsize=4, ranks=8)
    assert (num, counted("all_gather", num, 8)) == (1 << 18, 1 << 15)
    assert counted("all_to_all", num, 8) == 1 << 15
    assert counted("all_reduce", 1 << 18, 8) == 1 << 18


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
@pytest.mark.parametrize("size", [1, 8, 1000, 1 << 20])
def test_messages_can_be_divided_and_are_not_larger_than_asked_for(kind: str, ranks: int, size: int) -> None:
    num, parts = elements(kind, size, 4, ranks), KINDS[kind].parts(ranks)
    assert num > 0
    assert num % parts == 0
    assert num * 4 <= max(size, 4 * parts)


def test_sizes() -> None:
    sizes = {"8": 8, "64K": 65536, "1m": 1 << 20, "2GiB": 2 << 30, "16MB": 16 << 20}
    assert {text: parse_size(text, "-b") for text in sizes} == sizes
    assert message_sizes(8, 100, 2) == [8, 16, 32, 64]
    assert message_sizes(1, 6, 1.1) == [1, 2, 3, 4, 5, 6]
    assert message_sizes(8, 8, 2) == [8]


@pytest.mark.parametrize("text", ["", "0", "-8", "1.5M", "8T", "9" * 30, "1M; ls", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--min-bytes: .* is no size; give bytes"):
        parse_size(text, "--min-bytes")


@pytest.mark.parametrize(
    ("smallest", "largest", "factor", "words"),
    [
        (16, 8, 2, "exchange them"),
        (8, 16, 1, "does not increase"),
        (8, 16, float("nan"), "does not"),
        (1, 1 << 30, 1.001, "200 sizes"),
    ],
)
def test_sizes_that_cannot_be(smallest: int, largest: int, factor: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        message_sizes(smallest, largest, factor)


def test_collectives_are_named_once_and_unknown_ones_refused() -> None:
    assert find_kinds(["broadcast", "all_reduce", "broadcast"]) == ["broadcast", "all_reduce"]
    assert find_kinds([]) == list(KINDS)
    with pytest.raises(ConfigError, match="'allreduce' is none; give one or more of all_reduce, "):
        find_kinds(["allreduce"])


def test_the_best_size_of_each_collective() -> None:
    rows = [
        make_row(kind, 10**6, "int8", 4, seconds, 0) for kind in ("broadcast", "all_reduce") for seconds in (3, 1, 2)
    ]
    assert [(kind, row.time_us) for kind, row in best_of(rows).items()] == [("broadcast", 1e6), ("all_reduce", 1e6)]
