"""`glmforge data` as a user types it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import main
from glmforge.cli.data import tokens
from glmforge.cli.data.app import app
from glmforge.data.tokens import tokenize
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

RECORDS = [{"body": f"record {i} of the corpus, and some words more\n" * 3} for i in range(60)]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*args):
        return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)

    return run


@pytest.fixture
def tokenizer_dir(run, corpus, tmp_path):
    result = run("tokenizer", corpus, "--vocab-size", 310, "--out", "tok", "--text-field", "body")
    assert result.exit_code == 0
    assert "tok: 310 tokens" in result.output
    return tmp_path / "tok"


def test_from_text_to_shards(run, corpus, tokenizer_dir, tmp_path):
    options = ("--tokenizer", tokenizer_dir, "--out", "data/x", "--text-field", "body", "--held-out", 0.2)
    result = run("tokenize", corpus, *options)
    assert result.exit_code == 0
    training, held_out = TokenShard(tmp_path / "data" / "x"), TokenShard(tmp_path / "data" / "x-held-out")
    assert training.num_documents + held_out.num_documents == len(RECORDS)
    assert held_out.num_documents > 0
    assert f"data/x: {training.num_documents} documents, {training.num_tokens:,} tokens" in result.output
    text = Tokenizer.load(tokenizer_dir).decode(training.document(0)[:-1])
    assert text in [record["body"] for record in RECORDS]
    assert training.info.source == str(corpus)

    with pytest.raises(DataError, match=r"already exists.*--force"):
        run("tokenize", corpus, *options)
    assert run("tokenize", corpus, *options, "--force").exit_code == 0


def test_records_left_out_are_told(run, corpus, tokenizer_dir):
    with corpus.open("a") as file:
        file.write("{broken\n")
    options = ("--tokenizer", tokenizer_dir, "--out", "x", "--text-field", "body")
    with pytest.raises(DataError, match=r"corpus.jsonl, line 61: not JSON"):
        run("tokenize", corpus, *options)
    result = run("tokenize", corpus, *options, "--on-error", "skip")
    assert "skipped 1 unreadable record" in result.output
    assert "line 61: not JSON" in result.output


def test_pack(run, corpus, tokenizer_dir, tmp_path):
    run("tokenize", corpus, "--tokenizer", tokenizer_dir, "--out", "data/x", "--text-field", "body")
    shard = TokenShard(tmp_path / "data" / "x")
    longest = max(len(shard.document(index)) for index in range(shard.num_documents))
    result = run("pack", "data/x", "--seq-len", longest + 1, "--out", "packed")
    (path,) = (tmp_path / "packed").iterdir()
    first, second = result.output.splitlines()
    assert first.startswith(f"packed/{path.name}: ")
    assert f" rows of {longest + 1} tokens, " in first
    assert "% full, packed in " in first
    assert second.startswith(
        f"0 of {len(RECORDS)} documents are longer than a row and cut; packing: truncate would cut "
    )
    assert "already stored, verified in" in run("pack", "data/x", "--seq-len", longest + 1, "--out", "packed").output
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="delete it to rebuild it"):
        run("pack", "data/x", "--seq-len", longest + 1, "--out", "packed")


def test_progress_is_told_on_stderr(run, corpus, tokenizer_dir, monkeypatch):
    monkeypatch.setattr(tokens, "_FIRST_LINE", 1)
    options = ("--tokenizer", tokenizer_dir, "--text-field", "body")
    lines = {
        "tokenize": (corpus, *options, "--out", "x"),
        "fertility": (corpus, *options),
        "tokenizer": (corpus, "--vocab-size", 310, "--sample-bytes", 2000, "--out", "t", "--text-field", "body"),
        "pack": ("x", "--seq-len", 8),
    }
    told = {command: run(command, *arguments).stderr for command, arguments in lines.items()}
    assert told["tokenize"].startswith("encoding x: 60 documents, ")
    assert told["fertility"] == "encoding: 0 MB of text read\n"
    assert "measuring the sources: 0 MB of text read\nlearning 310 tokens: 0 MB of text read\n" in told["tokenizer"]
    assert told["pack"].endswith("packing x: 100%\n")


def test_nothing_is_made_where_a_part_is_there_already(run, corpus, tokenizer_dir, tmp_path):
    options = ("--tokenizer", tokenizer_dir, "--out", "x", "--text-field", "body")
    run("tokenize", corpus, *options)
    with pytest.raises(DataError, match=r"x.bin: already exists"):
        run("tokenize", corpus, *options, "--held-out", 0.2)
    assert not (tmp_path / "x-held-out.bin").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("tokenizer", "none.jsonl", "--vocab-size", 310, "--out", "file"),
        ("tokenize", "corpus.jsonl", "--tokenizer", "none", "--out", "file/x"),
        ("fertility", "corpus.jsonl", "--tokenizer", "none", "--out", "file/x.json"),
        ("fertility", "corpus.jsonl", "--tokenizer", "none", "--html", "file/x.html"),
        ("mix", "--inputs", "none", "--tokenizer", "none", "--out", "file/x.yaml"),
    ],
)
def test_an_output_that_cannot_be_is_told_before_the_work(run, corpus, tmp_path, arguments):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/\S+: cannot be written \(.*file is a file\)"):
        run(*arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--inputs", ","), r"--inputs ',': no shard given"),
        (("--tokens", "inf"), r"--tokens inf: must be a number"),
        (("--tokenizer", "none"), r"none/tokenizer.json: no such file"),
        (("--tokenizer", "other"), r"x: written by another tokenizer"),
    ],
)
def test_mixtures_that_cannot_be(run, corpus, tokenizer_dir, tmp_path, change, message):
    run("tokenize", corpus, "--tokenizer", tokenizer_dir, "--out", "x", "--text-field", "body")
    run("tokenizer", corpus, "--vocab-size", 300, "--out", "other", "--text-field", "body")
    arguments = {"--inputs": "x", "--tokenizer": "tok", "--out": "m.yaml"} | dict([change])
    with pytest.raises(DataError, match=message):
        run("mix", *(word for pair in arguments.items() for word in pair))
    assert not (tmp_path / "m.yaml").exists()


def test_interrupted_it_says_so_in_a_line(corpus, tokenizer_dir, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenize, "tokenize_corpus", interrupted)
    monkeypatch.setattr(sys, "argv", ["glmforge", "data", "tokenize", str(corpus), "--tokenizer", "tok", "--out", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "glmforge: interrupted"
