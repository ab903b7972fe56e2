"""Workers take turns in alternating order, and only neighbouring turns are compared."""

import sys
from pathlib import Path

import harness
import pytest
from harness import Worker, data_arguments, paired_ratio, step_figures, table, take_turns

FOLDER = str(Path(harness.__file__).parent)
PROGRAM = """
import itertools, sys
sys.path.insert(0, sys.argv[2])
from harness import serve

clock = itertools.accumulate(itertools.cycle([0.0, float(sys.argv[1])]))  # a step takes so many seconds
losses = itertools.count(1)
serve(lambda: float(next(losses)), clock=lambda: next(clock))
"""


def test_workers_take_turns_and_their_steps_are_compared() -> None:
    ours, theirs = (
        Worker(name, ["-c", PROGRAM, seconds, FOLDER], 1) for name, seconds in (("ours", "2"), ("theirs", "3"))
    )
    order: list[str] = []
    for worker in (ours, theirs):
        worker.run(1)
        ask = worker.ask
        worker.ask = lambda question, ask=ask, worker=worker: order.append(worker.name) or ask(question)
    take_turns({ours: 2, theirs: 1}, rounds=2)
    ours.close()
    theirs.close()
    assert order == ["ours", "theirs", "theirs", "ours"]
    assert [len(turn) for turn in ours.turns] == [1, 2, 2]
    assert ours.losses == [1, 2, 3, 4, 5]
    assert paired_ratio(theirs, ours)["median"] == 1.5
    figures = {"median_s": 2.0, "min_s": 2.0, "tokens_per_s": 50, "first_losses": [1.0, 2.0]}
    assert step_figures(ours, tokens=100, num_losses=2) == figures


def test_missing_real_data_is_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit):
        data_arguments("What it measures.", ["text/a.jsonl"])
    assert f"{tmp_path}/text/a.jsonl: no such file; name the directory" in capsys.readouterr().err


def test_a_table_has_a_line_for_each_row() -> None:
    assert table(["run", "s"], [["a", 1], ["b", ""]]) == "| run | s |\n| --- | --- |\n| a | 1 |\n| b |  |\n"
