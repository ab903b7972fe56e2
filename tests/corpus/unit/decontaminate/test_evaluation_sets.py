"""Evaluation sets in the forms they are published in."""

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from glmforge.errors import DataError
from glmforge_corpus.decontaminate.evaluation_sets import EvaluationSet, read_items

RECORDS = [{"question": "one?", "answer": "1 #### 1", "n": 3}, {"question": "zwei — ü?", "answer": "2", "n": 4}]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
EXPECTED = [(("question", "one?"), ("answer", "1 #### 1")), (("question", "zwei — ü?"), ("answer", "2"))]


def as_csv(rows: list[list[str]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue().encode()


def as_parquet() -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(RECORDS), sink)
    return sink.getvalue().to_pybytes()


HEADED = as_csv([list(RECORDS[0]), *([str(value) for value in record.values()] for record in RECORDS)])
FORMS = {
    "set.jsonl": JSONL,
    "set.jsonl.gz": gzip.compress(JSONL, mtime=0),
    "set.jsonl.zst": zstandard.compress(JSONL),
    "set.json": json.dumps(RECORDS).encode(),
    "set.csv": HEADED,
    "set.parquet": as_parquet(),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_items(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    items = read_items(EvaluationSet(name="s", path=tmp_path / name))
    assert [item.passages for item in items] == EXPECTED
    assert {item.set_name for item in items} == {"s"}
    assert len({item.id for item in items}) == 2


def test_a_zip_and_a_directory_are_read_by_name_and_other_files_left_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("data/README.md", "words")
        archive.writestr("data/b_test.csv", as_csv([["Why, \n so?", "a", "b", "c", "d", "B"]]))
        archive.writestr("data/a_test.csv", as_csv([["What?", "e", "f", "g", "h", "A"]]))
    items = read_items(EvaluationSet(name="mmlu", path=tmp_path / "set.zip"))
    assert [item.id for item in items] == ["data/a_test.csv:1", "data/b_test.csv:1"]
    assert items[1].passages[0] == ("question", "Why, \n so?")
    assert [field for field, _ in items[1].joined] == ["question+A+B+C+D"] * 2
    assert [text for _, text in items[1].joined] == ["Why, \n so?\na\nb\nc\nd", "Why, \n so?\nA. a\nB. b\nC. c\nD. d"]
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    (folder / "x.jsonl").write_bytes(JSONL)
    (tmp_path / "folder" / "notes.txt").write_text("no records")
    assert len(read_items(EvaluationSet(name="f", path=tmp_path / "folder"))) == 2


@pytest.mark.parametrize(
    ("record", "passages", "joined", "name"),
    [
        (
            {"problem": "p", "solution": "s", "answer": 4, "unique_id": "u/1"},
            [("problem", "p"), ("solution", "s")],
            [],
            "u/1",
        ),
        (
            {"task_id": "T/0", "prompt": "def", "canonical_solution": "return"},
            [("prompt", "def"), ("canonical_solution", "return")],
            [],
            "T/0",
        ),
        (
            {"question": "q", "choices": ["x", "y"], "answer": 1},
            [("question", "q")],
            [("question+choices", "q\nx\ny"), ("question+choices", "q\nA. x\nB. y")],
            "set.jsonl:1",
        ),
        ({"problem": "p", "answer": 70, "id": 0}, [("problem", "p")], [], "0"),
        (
            {"text": "t", "code": "def f", "test_list": ["assert f"]},
            [("text", "t"), ("code", "def f")],
            [],
            "set.jsonl:1",
        ),
        (
            {"Question": "q", "A": "w", "B": "x", "C": "y", "D": "z", "Answer": "A"},  # CMMLU, GPQA: capitals
            [("question", "q"), ("answer", "A")],
            [("question+A+B+C+D", "q\nw\nx\ny\nz"), ("question+A+B+C+D", "q\nA. w\nB. x\nC. y\nD. z")],
            "set.jsonl:1",
        ),
        (
            {"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"},  # ARC
            [("question", "q")],
            [("question+choices", "q\nx\ny\n1\n2"), ("question+choices", "q\nA. x\nB. y")],
            "set.jsonl:1",
        ),
    ],
)
def test_fields_are_chosen_by_what_records_have(
    tmp_path: Path, record: dict[str, object], passages: list[object], joined: list[object], name: str
) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps(record))
    (item,) = read_items(EvaluationSet(name="s", path=tmp_path / "set.jsonl"))
    assert (list(item.passages), list(item.joined), item.id) == (passages, joined, name)


def test_fields_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_bytes(JSONL)
    (first, _) = read_items(EvaluationSet(name="s", path=tmp_path / "set.jsonl", fields=("answer", "question+answer")))
    assert first.passages == (("answer", "1 #### 1"),)
    assert first.joined == (("question+answer", "one?\n1 #### 1"),)
    (first, _) = read_items(EvaluationSet(name="s", path=tmp_path / "set.jsonl", fields=("question+answer",)))
    assert first.passages == (("question+answer", "one?\n1 #### 1"),)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("set.jsonl.gz", gzip.compress(JSONL, mtime=0)[:-9], "not readable"),
        ("set.zip", b"PK no", "not readable"),
        ("set.parquet", as_parquet()[:-20], "not readable"),
        ("set.jsonl", b'{"question": ', "not readable"),
        ("set.jsonl", b"[1]\n", "not an object but list"),
        ("set.jsonl", b"", "has no items"),
        ("set.jsonl", b'{"a": "x"}', r"has no field .*\(it has: a\)"),
        ("set.docx", b"x", "an evaluation set is"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=says):
        read_items(EvaluationSet(name="s", path=tmp_path / name))


def test_a_missing_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="evaluation set 's' does not exist"):
        read_items(EvaluationSet(name="s", path=tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ({"canary": "no training", "examples": RECORDS}, ["set.json:examples:1", "set.json:examples:2"]),  # BBH
        ({"dev": RECORDS[:1], "test": RECORDS[1:]}, ["set.json:dev:1", "set.json:test:1"]),
        ({"features": [{"name": "question"}], "rows": [{"row_idx": k, "row": r} for k, r in enumerate(RECORDS)]},
         ["set.json:rows:1", "set.json:rows:2"]),
        ({"first": RECORDS[0], "second": RECORDS[1]}, ["set.json:first", "set.json:second"]),
    ],
    ids=["BIG-Bench", "splits", "Hugging Face", "by name"],
)  # fmt: skip
def test_records_lie_within_an_object(tmp_path: Path, value: object, places: list[str]) -> None:
    (tmp_path / "set.json").write_text(json.dumps(value, indent=2))
    items = read_items(EvaluationSet(name="s", path=tmp_path / "set.json"))
    assert [item.passages for item in items] == EXPECTED
    assert [item.id for item in items] == places


def test_one_object_is_one_item_and_a_marked_csv_is_read(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(json.dumps(RECORDS[0] | {"tests": [{"input": "x"}]}))
    assert [item.passages for item in read_items(EvaluationSet(name="s", path=tmp_path / "set.json"))] == EXPECTED[:1]
    (tmp_path / "set.csv").write_bytes(b"\xef\xbb\xbf" + HEADED)  # a byte order mark, as spreadsheets write it
    assert [item.passages for item in read_items(EvaluationSet(name="s", path=tmp_path / "set.csv"))] == EXPECTED


def test_an_object_without_items_is_told(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text('{"data": [{"paragraphs": []}]}')
    with pytest.raises(DataError, match=r"set.json:data:1 has no field .*\(it has: paragraphs\)"):
        read_items(EvaluationSet(name="s", path=tmp_path / "set.json"))
