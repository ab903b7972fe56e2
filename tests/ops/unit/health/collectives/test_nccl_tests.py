"""nccl-tests' table read into rows: its versions, what is no table, and a program on PATH that is run."""

import re
from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge_ops.health.collectives.nccl_tests import find_program, parse, run_nccl_tests
from glmforge_ops.health.collectives.settings import BenchSettings

# In the shape of what nccl-tests 2.13 and later print; the figures are made up.
NEW = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on     node01 device  0 [0x19] NVIDIA H800
node01:4711:4720 [0] NCCL INFO 24 coll channels
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    61.05   17.18   30.06      0    59.71   17.56   30.73      2
     4194304       1048576     float     sum      -1    95.32   44.00   77.00      0    94.11   44.57   78.00    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 53.9
"""
# Before, there was no root, and the deviation in place of a number of elements.
OLD = """\
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144   float     sum    163.4    6.42   11.23  2e-07    164.4    6.38   11.16  1e-07
"""


def test_both_halves_of_each_line() -> None:
    rows = parse(NEW, "all_reduce")
    assert [(row.size, row.in_place, row.time_us, row.algbw, row.busbw, row.wrong) for row in rows] == [
        (1048576, False, 61.05, 17.18, 30.06, 0),
        (1048576, True, 59.71, 17.56, 30.73, 2),
        (4194304, False, 95.32, 44.00, 77.00, 0),
        (4194304, True, 94.11, 44.57, 78.00, None),
    ]
    assert {(row.kind, row.type, row.redop, row.root) for row in rows} == {("all_reduce", "float", "sum", -1)}
    assert [row.count for row in rows] == [262144, 262144, 1048576, 1048576]


def test_a_deviation_is_no_number_of_wrong_elements() -> None:
    first, second = parse(OLD, "all_reduce")
    assert (first.busbw, second.busbw, first.root) == (11.23, 11.16, -1)
    assert first.wrong is None
    assert second.wrong is None


def planted(old: str, new: str) -> str:
    assert old in NEW
    return NEW.replace(old, new)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "printed no table of nccl-tests; its last line: nothing"),
        ("bash: no such thing\x1b[2J\n\n", r"no table of nccl-tests; its last line: bash: no such thing\\x1b"),
        (planted("61.05", "nan"), "line 10: 'nan' is no number of a measurement"),
        (planted("61.05", "-1"), "line 10: '-1' is no number of a measurement"),
        (planted("61.05", "1e99"), "line 10: '1e99' is no number"),
        (planted("61.05", "9" * 40), "line 10: '99999999999999999999999999999999' is no number"),
        (planted("float     sum      -1    61.05", "float \x1b]0; -1 61.05"), None),
        (planted("   float     sum      -1    61.05", "   fp4     sum      -1    61.05"), "line 10: 'fp4' is no type"),
        (planted("59.71   17.56   30.73      2", "59.71"), "line 10: .* does not have the columns of the header"),
        (planted("busbw #wrong     time", "busbw sneaky     time"), "does not have the columns of the header"),
        (NEW + "x" * (5 << 20), "printed more than 4,194,304 bytes"),
        (NEW + NEW.splitlines()[9].join(["\n"] * 1100), "more than 1000 rows"),
    ],
)
def test_what_is_no_table_is_one_line(text: str, words: str | None) -> None:
    if words is None:
        assert parse(text, "all_reduce")[0].redop == "none"
        return
    with pytest.raises(HostError, match=words) as error:
        parse(text, "all_reduce")
    assert re.search(r"[\x00-\x1f]", str(error.value)) is None


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "all_reduce_perf"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


SETTINGS = BenchSettings(kinds=("all_reduce",), sizes=(1 << 20, 1 << 22), backend="nccl", timeout_s=20)


def test_a_program_on_path_is_run_with_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").write_text(NEW)
    put_on_path(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/arguments; cat {tmp_path}/table')
    assert run_nccl_tests("all_reduce", SETTINGS, 8) == parse(NEW, "all_reduce")
    assert (tmp_path / "arguments").read_text().split() == (
        ["-b", "1048576", "-e", "4194304", "-f", "4", "-g", "8", "-d", "float", "-n", "20", "-w", "5", "-c", "1"]
    )


def test_a_program_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, 'echo "Test CUDA failure: no device"; exit 2')
    with pytest.raises(HostError, match="all_reduce_perf ended with 2: Test CUDA failure: no device"):
        run_nccl_tests("all_reduce", SETTINGS, 8)


def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, "exec sleep 600")
    with pytest.raises(HostError, match="was not done within"):
        run_nccl_tests("all_reduce", BenchSettings(kinds=(), sizes=(8,), timeout_s=0.1), 8)


def test_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("all_reduce") is None
    assert find_program("all_to_all_uneven") is None
    with pytest.raises(HostError, match="all_reduce_perf of nccl-tests is not on PATH: build nccl-tests"):
        run_nccl_tests("all_reduce", SETTINGS, 8)
