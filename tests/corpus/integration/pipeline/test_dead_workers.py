"""Processes of tasks are killed: the task is run again, and what kills it twice is put aside."""

import json
from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge_corpus.pipeline.clean import Clean
from glmforge_corpus.pipeline.pipeline import Pipeline
from glmforge_corpus.pipeline.run import run_pipeline
from helpers.corpus import Deadly, DeadlyBlock

TEXTS = {name: f"the text of {name}, which is its own\n" for name in ("a", "b", "c", "d", "e", "f", "g", "h")}


def write(directory: Path, names: dict[str, str]) -> Path:
    directory.mkdir()
    for name, text in names.items():
        (directory / f"{name}.txt").write_text(text)
    return directory


def pipeline(output: Path, raw: Path, shard_bytes: int = 80, **executors) -> Pipeline:
    """About two files per task."""
    inputs = {"inputs": ({"source": "s", "path": raw},), "shard_bytes": shard_bytes}
    stage = Deadly.model_validate(inputs, strict=False)
    executors = executors or {"local": {"workers": 2}}
    return Pipeline.model_validate({"output": output, "executors": executors, "stages": (stage,)}, strict=False)


def shards(output: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((output / "documents").iterdir())]


def put_aside(output: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (output / "quarantine.jsonl").read_text().splitlines()]
    return [(line["where"], line["reason"]) for line in lines]


def test_a_file_that_kills_every_process_is_put_aside_and_all_others_are_read(tmp_path):
    deadly = "text that cannot be read\n"
    whole = write(tmp_path / "whole", TEXTS | {"a-deadly": " " * len(deadly)})  # no document, and kills nobody
    faulty = write(tmp_path / "faulty", TEXTS | {"a-deadly": deadly})
    run_pipeline(pipeline(tmp_path / "expected", whole))
    seen = []
    report = run_pipeline(pipeline(tmp_path / "out", faulty), progress=seen.append)
    assert shards(tmp_path / "out") == shards(tmp_path / "expected")
    assert put_aside(tmp_path / "out") == [("s/a-deadly.txt", "killed its worker")]
    assert report["stages"][0]["statistics"]["quarantined"] == {"killed its worker": 1}
    (line,) = map(json.loads, (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines())
    assert line["detail"].startswith("the process that read it died 2 times (signal 9, SIGKILL")
    assert (seen[-1].done, seen[-1].total) == (len(shards(tmp_path / "out")),) * 2
    assert not list((tmp_path / "out").rglob("working_on"))


def test_two_files_of_one_task_can_kill_it(tmp_path):
    raw = write(tmp_path / "raw", TEXTS | {"b-deadly": "one\n", "c-deadly": "two\n"})
    run_pipeline(pipeline(tmp_path / "out", raw, shard_bytes=10_000))
    assert put_aside(tmp_path / "out") == [(f"s/{name}-deadly.txt", "killed its worker") for name in "bc"]
    clean = write(tmp_path / "clean", TEXTS)
    run_pipeline(pipeline(tmp_path / "expected", clean, shard_bytes=10_000))
    assert shards(tmp_path / "out") == shards(tmp_path / "expected")


def test_a_process_that_was_killed_once_costs_nothing(tmp_path):
    raw = write(tmp_path / "raw", TEXTS | {"once-deadly": "read at the second attempt\n"})
    run_pipeline(pipeline(tmp_path / "out", raw))
    assert put_aside(tmp_path / "out") == []
    assert (raw / ".once-deadly.txt.died").exists()
    run_pipeline(pipeline(tmp_path / "expected", raw))
    assert shards(tmp_path / "out") == shards(tmp_path / "expected")


def test_a_task_that_dies_of_no_file_twice_ends_the_run_and_says_what_it_reads(tmp_path):
    raw = write(tmp_path / "raw", {"a": "deadly\n"})
    value = pipeline(tmp_path / "out", raw)
    value = value.model_copy(update={"stages": (*value.stages, Clean(blocks=(DeadlyBlock(),)))})
    message = r"task 0 died twice, the second time alone \(signal 11, SIGSEGV\).*00000/documents.parquet"
    with pytest.raises(DataError, match=message):
        run_pipeline(value)
