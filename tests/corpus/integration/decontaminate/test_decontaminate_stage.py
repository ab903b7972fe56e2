"""Decontamination from shards to shards, with its report."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from glmforge.data.documents import batch as batch_module
from glmforge.data.documents.batch import BatchWriter, DocumentBatch, read_batches
from glmforge.errors import DataError
from glmforge_corpus.decontaminate.stage import FINDINGS, Decontaminate
from glmforge_corpus.pipeline.stage import DOCUMENTS, REPORT, StageContext
from glmforge_corpus.pipeline.statistics import Statistics
from glmforge_corpus.pipeline.task import PlannedStep, run_task

QUESTIONS = [
    "A gardener plants 4 rows of 12 tulips, loses every sixth bulb to voles and sells a third of what flowers at 35 "
    "cents each. How much money does Ines take home at the end of that spring?",
    "Two trains leave Lyon for Turin, the slow one at 8:10 and the fast one 45 minutes later but at twice the speed. "
    "If the way is 312 kilometres long and both arrive together, how fast is Omar's train?",
    "Lena glues 27 small cubes into a large one, paints it red, and takes it apart again when the paint has dried. "
    "On how many of the small cubes does she find exactly two red faces?",
]
CLEAN = " ".join(f"Line {i} of a plain text tells about subject {i * i} and nothing else." for i in range(40))


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(batch_module, "BATCH_DOCUMENTS", 1)  # a row group each: rows are counted over batches
    first = [CLEAN, f"{CLEAN}\n{QUESTIONS[0]}\n{CLEAN}"]
    second = [QUESTIONS[1].upper(), CLEAN, f"{CLEAN} {QUESTIONS[0]} {QUESTIONS[1]}"]
    paths = []
    for number, texts in enumerate([first, second]):
        paths.append(tmp_path / f"{number}.parquet")
        with BatchWriter(paths[-1]) as writer:
            for i, text in enumerate(texts):
                writer.write(DocumentBatch.from_columns([f"{number}-{i}"], [text], "web"))
    return paths


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{i}", "question": text}) + "\n" for i, text in enumerate(QUESTIONS)))
    return path


def run(directory: Path, shards: list[Path], **options: Any) -> tuple[dict[str, str], Statistics, dict[str, Any]]:
    """(id -> text of what is left, counts, the report)."""
    stage = Decontaminate.model_validate(options).check()
    steps = stage.steps(StageContext(directory, shards))
    total = Statistics()
    for step in steps:
        planned = PlannedStep(step, directory, "same")
        for task in range(step.num_tasks):
            run_task(planned, task)
            total.merge(planned.statistics(task))
    left = [
        batch
        for task in range(len(shards))
        for batch in read_batches(directory / steps[-1].name / f"{task:05d}" / DOCUMENTS)
    ]
    report = json.loads((directory / "findings" / "00000" / REPORT).read_bytes())
    return {name: text for b in left for name, text in zip(b.ids, b.texts, strict=True)}, total, report


def against(questions: Path) -> list[dict[str, Any]]:
    return [{"name": "quiz", "path": str(questions)}]


def test_documents_with_items_are_removed_and_reported(tmp_path: Path, shards: list[Path], questions: Path) -> None:
    left, total, report = run(tmp_path / "stage", shards, against=against(questions))
    assert left == {"0-0": CLEAN, "1-1": CLEAN}
    assert total.removed["holds evaluation items"].documents == 3
    assert total.counts["items of quiz found"] == 2
    assert report["sets"] == [
        {"name": "quiz", "items": 3, "searched_for": 3, "too_short": 0, "items_found": 2, "documents": 3}
    ]
    table = parquet.read_table(tmp_path / "stage" / "findings" / "00000" / FINDINGS).to_pylist()
    found = [(row["document"], row["row"], row["item"], row["rule"]) for row in table if row["share"] > 0.9]
    assert found == [("0-1", 1, "q0", "run"), ("1-0", 0, "q1", "run"), ("1-2", 2, "q0", "run"), ("1-2", 2, "q1", "run")]
    place = table[0]
    text = f"{CLEAN}\n{QUESTIONS[0]}\n{CLEAN}".encode()
    assert text[place["start"] : place["stop"]].decode() == QUESTIONS[0][:-1]
    assert place["excerpt"] == QUESTIONS[0][:-1][:300]


def test_only_the_passage_is_removed(tmp_path: Path, shards: list[Path], questions: Path) -> None:
    left, total, _ = run(
        tmp_path / "stage", shards, against=against(questions), action="remove_passage", margin=10, min_rest=100
    )
    assert set(left) == {"0-0", "0-1", "1-1", "1-2"}  # of 1-0 nothing is left
    assert "tulips" not in left["0-1"] + left["1-2"]
    before, after = left["0-1"].split("\n\n")
    assert CLEAN.startswith(before)
    assert len(before) >= len(CLEAN) - 25  # the margin and a word
    assert CLEAN.endswith(after)
    assert total.counts["documents cut"] == 2
    assert total.removed["holds evaluation items"].documents == 1


def test_a_report_alone_changes_nothing(tmp_path: Path, shards: list[Path], questions: Path) -> None:
    left, total, report = run(tmp_path / "stage", shards, against=against(questions), action="report")
    assert len(left) == 5
    assert total.counts["documents with items, left in"] == 3
    assert report["sets"][0]["documents"] == 3


def test_a_clean_corpus_passes_as_it_is(tmp_path: Path, shards: list[Path]) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(
        json.dumps({"question": "Something that stands nowhere in these texts, whatever is searched for it."})
    )
    left, total, report = run(tmp_path / "stage", shards, against=against(other))
    assert len(left) == 5
    assert not total.removed
    assert report["examples"] == []


def test_wrong_options_are_refused_before_anything_runs(tmp_path: Path, questions: Path) -> None:
    with pytest.raises(DataError, match="'quiz' occurs twice"):
        Decontaminate.model_validate({"against": against(questions) * 2}).check()
    with pytest.raises(DataError, match="does not exist"):
        Decontaminate.model_validate({"against": against(tmp_path / "none.jsonl")}).check()
