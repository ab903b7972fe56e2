"""A pipeline is run to its end, from wherever it stands."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge.runtime.lease import HeldError
from glmforge_corpus.filter.toxicity import Toxicity
from glmforge_corpus.pipeline.clean import Clean
from glmforge_corpus.pipeline.pipeline import Pipeline
from glmforge_corpus.pipeline.run import run_pipeline, run_stages
from helpers.corpus import Numbers, Shout, texts_of
from helpers.unwoken import run_program


def _pipeline(output: Path, workers: int = 1, **numbers) -> Pipeline:
    stages = (Numbers(**numbers), Clean(blocks=(Shout(refuse=("3",)),)))
    return Pipeline.model_validate(
        {"output": output, "executors": {"local": {"workers": workers}}, "stages": stages}, strict=False
    )


def published(output: Path) -> dict[str, bytes]:
    """What a run hands over; seconds and paths differ from run to run."""
    files = sorted((output / "documents").iterdir())
    report = json.loads((output / "report.json").read_bytes())
    for stage in report["stages"]:
        stage["statistics"].pop("seconds")
    del report["pipeline"]
    found = {path.name: path.read_bytes() for path in [*files, output / "quarantine.jsonl"]}
    return found | {"report": json.dumps(report).encode()}


def test_from_end_to_end(tmp_path):
    seen = []
    report = run_pipeline(_pipeline(tmp_path / "out"), progress=seen.append)
    assert texts_of(sorted((tmp_path / "out" / "documents").iterdir())) == [
        f"THIS IS NUMBER {task}/{i}" for task in range(3) for i in range(10) if i != 3
    ]
    numbers, clean = (stage["statistics"] for stage in report["stages"])
    assert numbers["written"]["documents"] == clean["read"]["documents"] == 30
    assert clean["removed"] == {"shout: ends in 3": {"documents": 3, "bytes": 3 * 18}}
    assert numbers["quarantined"] == {"no number": 3}
    lines = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert [line["where"] for line in lines] == ["somewhere:0", "somewhere:1", "somewhere:2"]
    assert lines[0]["record"] == "\\xff\x00"
    assert [(step.stage, step.done, step.total) for step in seen][-1] == ("clean", 3, 3)


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path):
    run_pipeline(_pipeline(tmp_path / "one"))
    run_pipeline(_pipeline(tmp_path / "two", workers=2))
    assert published(tmp_path / "one") == published(tmp_path / "two")


def test_run_again_it_does_nothing(tmp_path):
    run_pipeline(_pipeline(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / ".work").rglob("documents/*/*")}
    assert len(before) == 6 + 6 + 3, "documents and done.json of six tasks, quarantine of three"
    run_pipeline(_pipeline(tmp_path))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / ".work").rglob("documents/*/*")}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_that_fails_ends_the_run_and_only_it_is_done_again(tmp_path, workers):
    broken = tmp_path / "broken"
    broken.touch()
    pipeline = _pipeline(tmp_path / "out", workers, shards=4, fail_task=3, fail_while=str(broken))
    with pytest.raises(DataError, match="told to fail"):
        run_pipeline(pipeline)
    root = tmp_path / "out" / ".work" / "00-numbers" / "documents"
    done = {path.name: path.stat().st_ino for path in root.iterdir()}
    assert "00003" not in done
    assert not (tmp_path / "out" / "documents").exists()
    broken.unlink()
    run_pipeline(pipeline)
    assert done.items() <= {path.name: path.stat().st_ino for path in root.iterdir()}.items()
    run_pipeline(_pipeline(tmp_path / "whole", shards=4, fail_task=3, fail_while=str(broken)))
    assert published(tmp_path / "out") == published(tmp_path / "whole")


def _missing_word_lists(output: Path) -> Pipeline:
    lists = Toxicity(lists=output.parent / "nowhere")
    return _pipeline(output).model_copy(update={"stages": (Numbers(), Clean(blocks=(lists,)))})


@pytest.mark.parametrize(
    ("pipeline", "executor", "message"),
    [
        (_pipeline, "slrum", "unknown executor 'slrum': did you mean 'slurm'"),
        (_pipeline, "slurm", "add 'executors.slurm'"),
        (_missing_word_lists, "local", "nowhere: no word lists"),
    ],
)
def test_what_cannot_be_run_leaves_nothing_behind(tmp_path, pipeline, executor, message):
    with pytest.raises(DataError, match=message):
        run_pipeline(pipeline(tmp_path / "out"), executor)
    assert list(tmp_path.iterdir()) == []


_FAILS_AND_IS_INTERRUPTED = """
import os, signal, sys, threading
from multiprocessing.connection import wait
from pathlib import Path
from glmforge_corpus.pipeline.local import LocalExecutor
from glmforge_corpus.pipeline.stage import StageContext
from glmforge_corpus.pipeline.task import PlannedStep
from helpers.corpus import Stuck

if __name__ == "__main__":
    root = Path(os.environ["ROOT"])
    stuck = Stuck(stuck_while=str(root)).steps(StageContext(root / "work", ()))[0]
    try:
        with LocalExecutor(2) as executor:
            try:
                executor.run(PlannedStep(stuck, root / "work", ""), range(4), root, lambda task: 1 // 0)
            finally:
                workers = list(executor._pool._processes.values())
                threading.Thread(target=signal_without_waking, args=(signal.SIGINT,)).start()
    except KeyboardInterrupt as error:
        ended = all(wait([process.sentinel], 60) for process in workers)
        print(type(error.__context__).__name__, len(workers), ended)
"""


def test_an_interrupted_wait_for_other_tasks_kills_them(tmp_path):
    """After a task has failed the others are waited for, and then the user presses Ctrl-C."""
    done = run_program(_FAILS_AND_IS_INTERRUPTED, tmp_path, ROOT=str(tmp_path))
    assert done.stdout == "ZeroDivisionError 2 True\n", done.stderr


def test_other_options_are_refused_or_done_again(tmp_path):
    run_pipeline(_pipeline(tmp_path))
    with pytest.raises(DataError, match=r"00-numbers: was made with other options.*--redo"):
        run_pipeline(_pipeline(tmp_path, documents=2))
    with pytest.raises(DataError, match=r"00-numbers: was made with other options"):
        run_pipeline(_pipeline(tmp_path, shards=2))
    run_pipeline(_pipeline(tmp_path, documents=2), redo=True)
    assert len(texts_of((tmp_path / "documents").iterdir())) == 6


def test_files_that_were_cut_off_or_lost_are_made_again(tmp_path):
    run_pipeline(_pipeline(tmp_path))
    before = published(tmp_path)
    shards = [
        tmp_path / ".work" / stage / "documents" / "00001" / "documents.parquet" for stage in ("00-numbers", "01-clean")
    ]
    os.truncate(shards[0], 10)
    shards[1].unlink()
    run_pipeline(_pipeline(tmp_path))
    assert published(tmp_path) == before
    os.truncate(tmp_path / "documents" / "00002.parquet", 10)
    run_pipeline(_pipeline(tmp_path))
    assert published(tmp_path) == before


def test_room_for_two_stages_is_enough(tmp_path):
    thrifty = _pipeline(tmp_path).model_copy(update={"keep_intermediate": False})
    run_pipeline(thrifty)
    left = sorted(path.name for path in (tmp_path / ".work" / "00-numbers").rglob("*") if path.is_file())
    assert left == ["done.json"] * 3 + ["quarantine.jsonl"] * 3
    run_pipeline(thrifty)
    other = Pipeline(**dict(thrifty) | {"stages": (thrifty.stages[0], Clean(blocks=(Shout(refuse=("4",)),)))})
    with pytest.raises(DataError, match="01-clean: was made with other options"):
        run_pipeline(other)
    run_pipeline(other, redo=True)
    assert [text[-1] for text in texts_of(sorted((tmp_path / "documents").iterdir()))] == list("012356789") * 3


def test_two_runs_at_a_time_are_refused(tmp_path):
    refused = []

    def again(progress):
        if not refused:
            with pytest.raises(HeldError, match=r"in use by 'glmforge data' on .* \(process") as error:
                run_pipeline(_pipeline(tmp_path))
            refused.append(error)

    run_pipeline(_pipeline(tmp_path), progress=again)
    assert refused


def test_stages_on_their_own(tmp_path):
    shards, statistics = run_stages([Numbers(shards=2)], tmp_path / "a")
    cleaned, (clean,) = run_stages([Clean(blocks=(Shout(),))], tmp_path / "b", shards=shards, workers=2)
    assert texts_of(cleaned) == [text.upper() for text in texts_of(shards)]
    assert clean.read.documents == statistics[0].written.documents == 20


def _run_until_task(output: Path, task: int, written) -> None:
    def stop(progress) -> None:
        if progress.stage == "clean" and progress.done == task:
            written.set()
            signal.pause()

    run_pipeline(_pipeline(output, shards=5), progress=stop)


def test_a_killed_run_goes_on(tmp_path):
    context = multiprocessing.get_context("fork")
    written = context.Event()
    process = context.Process(target=_run_until_task, args=(tmp_path / "out", 2, written))
    process.start()
    assert written.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    litter = tmp_path / "out" / ".work" / "01-clean" / "documents" / "00002.partial.host.1"
    litter.mkdir()
    run_pipeline(_pipeline(tmp_path / "out", shards=5))
    assert not litter.exists()
    run_pipeline(_pipeline(tmp_path / "whole", shards=5))
    assert published(tmp_path / "out") == published(tmp_path / "whole")
