"""A directory of problems: whole, unique, verified, the same however it came about."""

import json
import multiprocessing
import os
import signal

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from glmforge.errors import DataError
from glmforge_corpus.cli import synthesise as command
from glmforge_corpus.synthesise.check import why_wrong
from glmforge_corpus.synthesise.make import make_problems
from glmforge_corpus.synthesise.problem import normalised_question
from glmforge_corpus.synthesise.stage import Problems

OPTIONS = {"count": 150, "block": 30, "families": ("word_problems", "tables", "tools"), "levels": (2, 4)}


def contents(directory):
    """Everything that is published, by name."""
    files = [path for path in directory.rglob("*") if path.is_file() and ".work" not in path.parts]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files if path.name != "report.json"}


def records(directory):
    return [json.loads(line) for path in sorted((directory / "messages").iterdir()) for line in path.open()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("problems")
    return directory, make_problems(Problems(**OPTIONS), directory)


def test_as_many_as_wanted_all_verified_no_two_alike(made):
    directory, report = made
    lines = records(directory)
    assert len(lines) == report["written"] == OPTIONS["count"]
    assert report["not_verified"] == 0
    assert not [why for why in map(why_wrong, lines) if why]
    assert len({normalised_question(line["question"]) for line in lines}) == len(lines)
    assert sum(report["templates"].values()) == len(lines)


def test_documents_hold_the_same_problems(made):
    directory, _ = made
    rows = [row for path in sorted((directory / "documents").iterdir()) for row in parquet.read_table(path).to_pylist()]
    assert [json.loads(row["metadata"]) for row in rows] == records(directory)
    assert all(row["text"].startswith("[gMASK]<sop>") and "<think>" in row["text"] for row in rows)
    assert {row["source"] for row in rows} == {"synthetic"}
    assert {row["language"] for row in rows} == {"en", "zh"}


def test_run_again_nothing_is_made_again(made):
    directory, report = made
    before = {path: path.stat().st_mtime_ns for path in (directory / ".work").rglob("done.json")}
    assert make_problems(Problems(**OPTIONS), directory) == report
    assert {path: path.stat().st_mtime_ns for path in (directory / ".work").rglob("done.json")} == before


def test_other_options_do_not_mix_with_what_is_there(made):
    with pytest.raises(DataError, match="made with other options"):
        make_problems(Problems(**OPTIONS | {"count": 151}), made[0])
    with pytest.raises(DataError, match="made with other options"):
        make_problems(Problems(**OPTIONS), made[0], seed=1)


def _run(directory, kill_after):
    """Make problems, and die by SIGKILL after so many finished tasks."""
    seen = 0

    def progress(step):
        nonlocal seen
        seen += 1
        if seen == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    make_problems(Problems(**OPTIONS), directory, progress=progress)


@pytest.mark.parametrize("kill_after", [2, 9, 14, 20])
def test_killed_and_started_again_gives_the_same_bytes(made, tmp_path, kill_after):
    process = multiprocessing.get_context("fork").Process(target=_run, args=(tmp_path / "out", kill_after))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "out" / "messages").exists()
    make_problems(Problems(**OPTIONS), tmp_path / "out")
    assert contents(tmp_path / "out") == contents(made[0])


def test_two_workers_give_the_same_bytes(made, tmp_path):
    make_problems(Problems(**OPTIONS), tmp_path, workers=2)
    assert contents(tmp_path) == contents(made[0])


def test_problems_that_stand_in_an_evaluation_set_are_left_out(made, tmp_path):
    """The set holds some of our own problems, so they must go, and others take their place."""
    taken = [line for line in records(made[0]) if line["family"] in ("word_problems", "tables")][:9]
    taken = [line for line in taken if len(line["question"].split()) > 20]
    assert len(taken) >= 2
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps({"question": line["question"]}) + "\n" for line in taken))
    options = Problems.model_validate(OPTIONS | {"against": [{"name": "planted", "path": path}]})
    report = make_problems(options, tmp_path / "out")
    left = {line["id"] for line in records(tmp_path / "out")}
    assert not left & {line["id"] for line in taken}
    assert report["contaminated"] >= len(taken)
    assert report["contaminated_by"]["contaminated: planted"] >= len(taken)
    assert report["written"] == OPTIONS["count"]


def test_duplicates_are_made_up_for_or_said(tmp_path):
    """One family at its easiest has only so many different problems; the report tells how many are missing."""
    report = make_problems(Problems(count=3000, families=("number_theory",), levels=(1,), languages=("en",)), tmp_path)
    lines = records(tmp_path)
    assert report["duplicates"] > 0
    assert report["written"] == len(lines) == len({normalised_question(line["question"]) for line in lines}) <= 3000
    assert report["made"] - report["duplicates"] >= report["written"]


def test_command(tmp_path):
    import typer

    app = typer.Typer()
    app.command()(command.problems)
    arguments = ["--count", "20", "--out", str(tmp_path), "--workers", "1"]
    arguments += ["--families", "logic,tools", "--levels", "2-3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "20 problems" in result.output
    slots = {(line["family"], line["level"]) for line in records(tmp_path)}
    assert slots == {("logic", 2), ("logic", 3), ("tools", 2), ("tools", 3)}
    refused = {
        "--levels 9": "no '9'", "--families x": "no 'x'",
        "--families ,": "--families: name at least one of arithmetic, ", "--levels a": "write 3, 1-5",
        "--levels 5-1": "write 3, 1-5", "--count 21": "was made with other options",
    }  # fmt: skip
    for wrong, message in refused.items():
        result = CliRunner().invoke(app, [*arguments, *wrong.split()])
        assert result.exit_code == 1
        assert message in str(result.exception)
    result = CliRunner().invoke(app, [*arguments, "--count", "21", "--redo"])
    assert result.exit_code == 0, result.output
    assert len(records(tmp_path)) == 21
