"""The commands that are a pipeline of one purpose, as a user types them."""

import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from glmforge.cli.data.app import app
from glmforge.data.documents.batch import read_batches
from glmforge.errors import ConfigError, DataError
from glmforge_corpus.cli.shape import augment
from helpers.corpus import texts_of

WORDS = [
    *("the", "be", "to", "of", "and", "that", "have", "with", "a", "house", "river", "stands", "near", "small"),
    *("quickly", "garden", "people", "often", "came", "before", "morning", "letter", "winter", "children", "walked"),
]
QUESTION = "A farmer has seventeen sheep and sells all but nine of them at the market how many sheep are left"


@pytest.fixture
def corpus(tmp_path):
    """Sixty English texts; two are the same, two nearly, one holds a question of an evaluation set."""
    draw = random.Random(0)
    texts = [
        " ".join(" ".join(draw.choices(WORDS, k=12)).capitalize() + "." for _ in range(draw.randrange(6, 12)))
        for _ in range(60)
    ]
    texts[10], texts[20], texts[30] = texts[11], texts[21] + " Again.", f"{texts[30]} {QUESTION}? {texts[31]}"
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments) -> str:
        workers = ["executors.local.workers=1"] if arguments[0] == "run" else ["--workers", "1"]
        result = CliRunner().invoke(app, [*map(str, arguments), *workers], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


def _documents(directory) -> list[str]:
    return texts_of(sorted((directory / "documents").iterdir()))


def test_dedup(run, corpus, tmp_path):
    printed = run("dedup", corpus, "--out", "unique", "--threshold", "0.8")
    assert len(_documents(tmp_path / "unique")) == 58
    assert "exact: 59 documents" in printed
    assert "minhash: 58 documents" in printed
    printed = run("dedup", corpus, "--out", "checked", "--threshold", "0.8", "--check-only")
    assert len(_documents(tmp_path / "checked")) == 60
    assert "same text 1" in printed
    assert "clusters 2" in printed, "equal texts are near ones, too, where they are not removed before"


def test_new_documents_against_old_ones(run, corpus, tmp_path):
    lines = corpus.read_text().splitlines(keepends=True)
    (tmp_path / "old.jsonl").write_text("".join(lines[:40]))
    (tmp_path / "new.jsonl").write_text("".join(lines[30:]))
    run("dedup", "old.jsonl", "--out", "old", "--index")
    run("dedup", "new.jsonl", "--out", "new", "--against", "old")
    assert _documents(tmp_path / "new") == [json.loads(line)["text"] for line in lines[40:]]


def test_decontaminate(run, corpus, tmp_path):
    (tmp_path / "exam.jsonl").write_text(json.dumps({"question": QUESTION, "answer": "9"}) + "\n")
    printed = run("decontaminate", corpus, "--against", "exam.jsonl", "--out", "safe")
    assert "1 of 1 items of exam" in printed
    assert len(_documents(tmp_path / "safe")) == 59


def test_clean_analyze_and_what_they_leave_behind(run, corpus, tmp_path):
    printed = run("clean", corpus, "--out", "clean", "--languages", "en, zh", "--quality-threshold", "0.1")
    kept = _documents(tmp_path / "clean")
    assert 0 < len(kept) <= 60
    assert f"clean: {len(kept)} documents" in printed
    run("run", "clean/pipeline.yaml", "output=again")
    assert _documents(tmp_path / "again") == kept, "the file that a command leaves runs as the command did"
    run("analyze", corpus, "--out", "analysis")
    assert len(_documents(tmp_path / "analysis")) == 60
    assert "quality" in (tmp_path / "analysis" / "report.html").read_text()


def test_another_command_does_not_take_the_place_of_one(run, corpus, tmp_path):
    run("sample", corpus, "--documents", 7, "--out", "mine")
    with pytest.raises(DataError, match=r"01-sample: belongs to another pipeline; choose another output"):
        run("augment", corpus, "--operation", "case=1", "--out", "mine")
    assert len(_documents(tmp_path / "mine")) == 7
    run("augment", corpus, "--operation", "case=1", "--out", "mine", "--redo")
    assert len(_documents(tmp_path / "mine")) == 120


def test_words_of_a_list(run, corpus, tmp_path):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "en").write_text("river\n")
    run("clean", corpus, "--out", "clean", "--toxic-words", "lists")
    assert "toxicity" in (tmp_path / "clean" / "pipeline.yaml").read_text()


def test_sample_and_augment(run, corpus, tmp_path):
    run("sample", corpus, "--documents", 7, "--out", "sample")
    assert len(_documents(tmp_path / "sample")) == 7
    printed = run("augment", "sample/documents", "--operation", "case=1", "--operation", "metadata=1", "--out", "more")
    assert len(_documents(tmp_path / "more")) == 14
    assert "copies: case 7, nothing to change: metadata 7" in printed, "they have no metadata"


def test_the_example_of_augment_draws_documents_of_a_small_corpus(run, corpus, tmp_path):
    example = next(line.split() for line in augment.__doc__.splitlines() if "glmforge data augment" in line)
    assert example[:4] == ["glmforge", "data", "augment", "clean/documents"]
    printed = run("augment", corpus, *example[4:])
    assert re.search(r"copies: case \d+, copies: typing \d+", printed)
    assert len(_documents(tmp_path / example[-1])) > 60


def test_reasons_stand_on_the_terminal(run, corpus, tmp_path):
    """Of documents that were removed, and of records and files that could not be read, with a place of each."""
    texts = ["short"] * 3 + [word * 300 for word in WORDS[:2]] + ["# " * 80, "and so on ...\n" * 80, "..." * 100]
    with corpus.open("a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        file.write('{\n[]\n[]\n{"text": 1}\n{"text": ""}\n{}\n')
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    printed = run("clean", corpus, "cut.parquet", "--out", "clean").splitlines()
    assert (
        "; removed 8: gopher_quality: too few words 6, code: long lines 1, gopher_quality: words too short 1"
        in printed[3]
    )
    assert printed[4] == (
        "clean/quarantine.jsonl: 6 records and 1 file that could not be read: "
        "not a JSON object 2 (at corpus/corpus.jsonl:70), damaged file 1 (at cut/cut.parquet), "
        "empty text 1 (at corpus/corpus.jsonl:73), no such field 1 (at corpus/corpus.jsonl:74), and 2 more reasons"
    )


def test_one_record_is_one(run, corpus):
    with corpus.open("a") as file:
        file.write("{broken\n")
    printed = run("extract", corpus, "--out", "o")
    assert "o/quarantine.jsonl: 1 record that could not be read: not JSON 1 (at corpus/corpus.jsonl:61)\n" in printed


def test_inputs_of_one_name_have_names_of_their_own(run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text(json.dumps({"text": f"a text of {folder}"}) + "\n")
    run("extract", "a/x.jsonl", "b/x.jsonl", "--out", "o")
    batches = [batch for shard in sorted((tmp_path / "o" / "documents").iterdir()) for batch in read_batches(shard)]
    assert [id_ for batch in batches for id_ in batch.ids] == ["a/x.jsonl/x.jsonl:1", "b/x.jsonl/x.jsonl:1"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["clean", "nowhere.jsonl"], DataError, r"^nowhere.jsonl: no such file or directory"),
        (["clean", "corpus.jsonl", "--languages", "eng"], DataError, r"--languages.*'eng'.* did you mean 'en'"),
        (["clean", "corpus.jsonl", "--text-field", "content"], DataError, r"no documents remain; o/report.html"),
        (["clean", "corpus.jsonl", "--quality-model", "none.npz"], DataError, r"none.npz"),
        (
            ["dedup", "corpus.jsonl", "--threshold", "1.5"],
            ConfigError,
            r"^--threshold: should be less than or equal to 1, not 1.5$",
        ),
        (["dedup", "corpus.jsonl", "--against", "nowhere"], DataError, r"--against nowhere: not the output of"),
        (["decontaminate", "corpus.jsonl", "--against", "none.jsonl"], DataError, r"none.jsonl"),
        (["sample", "corpus.jsonl"], ConfigError, r"^--fraction: set either a fraction or a number of documents"),
        (["sample", "corpus.jsonl", "--documents", "2", "--by", "id"], ConfigError, r"^--by: should be 'all', "),
        (["augment", "corpus.jsonl", "--operation", "rhyme=1"], ConfigError, r"^--operation: should be 'metadata', "),
        (
            ["augment", "corpus.jsonl", "--operation", "case=lots"],
            DataError,
            r"--operation case=lots: must be NAME=SHARE with a share above 0 and up to 1",
        ),
        (["augment", "corpus.jsonl", "--operation", "case=nan"], DataError, r"--operation case=nan: must be"),
        (["augment", "corpus.jsonl", "--operation", "case", "--operation", "case=1"], DataError, r"case has a share"),
        (["dedup", "corpus.jsonl", "--keep", "longst"], ConfigError, r"keep: 'longst': did you mean 'longest'\?"),
        (
            ["dedup", "corpus.jsonl", "--keep", "quality"],
            DataError,
            r"keep: documents have no score 'quality' \(available",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(run, corpus, arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        run(*arguments, "--out", "o")
    assert "\n" not in str(caught.value)
    assert not Path("o").exists() or Path("o/.work/00-extract").exists(), "refused at once, it leaves nothing behind"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("picture.png", r"picture.png: an evaluation set is a file .jsonl"),
        ("pictures", r"pictures: evaluation set 'pictures' has no items; pass a file .jsonl"),
        ("other.jsonl", r"other.jsonl:1 has no field question, problem, .* \(it has: content\)"),
        ("cut.jsonl", r"cut.jsonl: not readable as an evaluation set"),
    ],
)
def test_a_wrong_evaluation_set_is_told_before_the_corpus_is_read(run, corpus, tmp_path, name, message):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "one.png").write_bytes(b"\x89PNG")
    (tmp_path / "other.jsonl").write_text('{"content": "x"}\n')
    (tmp_path / "cut.jsonl").write_text('{"question": "What')
    with pytest.raises(DataError, match=message):
        run("decontaminate", corpus, "--against", name, "--out", "o")
    assert not list((tmp_path / "o" / ".work").glob("*-extract")), "nothing was extracted"


ONE_PURPOSE = ["extract", "clean", "dedup", "decontaminate", "analyze", "sample", "augment"]


@pytest.mark.parametrize(
    ("command", "suffix"), [*((name, ".jsonl") for name in ONE_PURPOSE), ("extract", ".json"), ("extract", ".parquet")]
)
def test_every_command_keeps_ids_and_metadata(corpus, run, tmp_path, command, suffix):
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    records = [{"key": f"k{n}", "text": text, "url": f"http://x/{n}", "n": n} for n, text in enumerate(texts)]
    path = tmp_path / f"records{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text(json.dumps(records, indent=1) if suffix == ".json" else "\n".join(map(json.dumps, records)))
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": QUESTION}))
    options = {
        "decontaminate": ["--against", questions],
        "sample": ["--documents", 20],
        "augment": ["--operation", "case"],
    }
    run(command, path, "--out", "out", "--id-field", "key", "--metadata", "*", *options.get(command, ()))
    shards = sorted((tmp_path / "out/documents").glob("*.parquet"))
    rows = [row for shard in shards for batch in read_batches(shard) for row in batch.table.to_pylist()]
    known = {row["id"]: row for row in rows if row["id"] in {record["key"] for record in records}}
    assert len(known) >= 10
    for id_, row in known.items():
        number = int(id_[1:])
        kept = json.loads(row["metadata"])
        assert {name: kept[name] for name in ("url", "n")} == {"url": f"http://x/{number}", "n": number}


def test_shingles_of_characters_find_what_words_do_not(run, tmp_path):
    texts = ["从前有一座山，山上有一座庙，庙里有一个老和尚在给小和尚讲故事。" * 3, "今天天气很好。" * 9]
    path = tmp_path / "zh.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*texts, texts[0] + "好的"]))
    run("dedup", path, "--out", "characters", "--shingle", "character-6")
    assert len(texts_of(sorted((tmp_path / "characters/documents").glob("*.parquet")))) == 2


@pytest.mark.parametrize("shingle", ["word", "word-x", "-5"])
def test_what_is_no_shingle(corpus, run, shingle):
    with pytest.raises(DataError, match=rf"--shingle {shingle}: must be a unit and a number"):
        run("dedup", corpus, "--out", "out", "--shingle", shingle)


def test_an_unknown_unit_of_shingles_is_named_by_its_option(corpus, run):
    with pytest.raises(ConfigError, match="--shingle"):
        run("dedup", corpus, "--out", "out", "--shingle", "letter-5")
