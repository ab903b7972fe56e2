"""`glmforge data chat` as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.data.app import app
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError
from helpers.tiny_data import TinyData

QUESTION, ANSWER = {"role": "user", "content": "Is it hot?"}, {"role": "assistant", "content": "It is, and loud."}
RECORDS = [{"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION]}, {"messages": [QUESTION, ANSWER] * 4}]


@pytest.fixture
def run(tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))

    def run(*args: object) -> str:
        words = ["chat", "chat.jsonl", "--tokenizer", str(tiny_data.tokenizer), *map(str, args)]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    return run


def test_a_look_shows_what_is_learnt_and_counts_everything(run) -> None:
    output = run("--show", 1, "--max-tokens", 60)
    assert "--- chat.jsonl:1:" in output
    shown = "[gMASK]<sop><|user|>\nIs it hot?/nothink<|assistant|>\n<think></think>»\nIt is, and loud.<|user|>«"
    assert shown in output
    assert "chat.jsonl:3:" not in output
    assert "3 records, 1 of them invalid, 1 document, 1 too long and dropped, " in output
    assert "longer than 60 tokens (--out would refuse the first of them)" in output
    assert "chat.jsonl:2: the last message must be the assistant's" in output


def test_what_a_text_does_to_a_terminal_is_shown_and_not_done(run) -> None:
    record = {"messages": [QUESTION, {"role": "assistant", "content": "\x1b[2J\rgone"}]}
    Path("chat.jsonl").write_text(json.dumps(record))
    assert "»\n\\x1b[2J\\rgone<|user|>«" in run("--show", 1)


def test_writing(run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"chat\.jsonl:2: .*invalid records: 1, allowed: 0"):
        run("--out", "a")
    assert "3 records, 1 of them invalid, 2 documents, " in run("--out", "a", "--max-wrong", 1)
    assert TokenShard(tmp_path / "a").num_documents == 2
    with pytest.raises(DataError, match="already exists"):
        run("--out", "a", "--max-wrong", 1)
    options = ("--out", "a", "--max-wrong", 1, "--force", "--max-tokens", 60, "--overlong", "cut", "--show", 2)
    output = run(*options)
    assert output.count("--- chat.jsonl") == 2
    assert ", 1 too long and cut, " in output
    assert TokenShard(tmp_path / "a").loss.is_mask
