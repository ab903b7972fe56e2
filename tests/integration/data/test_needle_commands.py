"""`glmforge data needles` and `glmforge evaluate needles` as a user types them."""

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from glmforge.checkpoint.convert import export_hf
from glmforge.cli.app import app
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError, GlmforgeError
from helpers.copying import copying_config, copying_model
from helpers.tiny_data import VOCAB_SIZE, TinyData

Run = Callable[..., Result]
TESTS = ("--length", 256, "--length", 200, "--depth", 0, "--depth", 0.5, "--num-examples", 1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def export(tiny_data: TinyData, tmp_path: Path) -> Path:
    config = copying_config(VOCAB_SIZE, 256)
    export_hf(copying_model(config).state_dict(), config, tmp_path / "model", tokenizer_dir=tiny_data.tokenizer)
    return tmp_path / "model"


def test_documents_questions_and_conversations(run: Run, tiny_data: TinyData, tmp_path: Path) -> None:
    """All three are of the same tests."""
    options = ("--tokenizer", tiny_data.tokenizer, *TESTS, "--haystack", tiny_data.held_out)
    for form in ("shard", "questions", "conversations"):
        written = run("data", "needles", *options, "--format", form, "--out", f"data/{form}")
        assert written.output == f"data/{form}: 4 tests\n"
    shard, tokenizer = TokenShard(tmp_path / "data" / "shard"), Tokenizer.load(tiny_data.tokenizer)
    shard.check_tokenizer(tokenizer)
    assert shard.num_documents == 4
    for number, (question, conversation) in enumerate(
        zip(
            *(map(json.loads, (tmp_path / "data" / form).open()) for form in ("questions", "conversations")),
            strict=True,
        )
    ):
        *ids, end = shard.document(number).tolist()
        text = tokenizer.decode(ids)
        assert end == tokenizer.end_of_text_id
        assert 150 < len(ids) <= question["length"] == (200, 200, 256, 256)[number]
        assert text == f"{question['prompt']} {question['answers'][0]}."
        assert question["id"] == f"single-{question['length']}-{question['depth']:g}-0"
        user, assistant = conversation["messages"]
        assert text == f"{user['content']} {assistant['content']}"
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert assistant["content"].startswith("The secret number for ")
    with pytest.raises(DataError, match=r"already exists.*--force"):
        run("data", "needles", *options, "--out", "data/shard")


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may pass 100 bytes: a longer write fails after a part, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_nothing(run: Run, tiny_data: TinyData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"q\.jsonl: cannot be written \(File too large\)"):
        run("data", "needles", "--tokenizer", tiny_data.tokenizer, *TESTS, "--format", "questions", "--out", "q.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answers", ["scored", "generated"])
def test_a_model_that_copies_is_found_to(run: Run, export: Path, tmp_path: Path, answers: str) -> None:
    options = ("--dtype", "fp32", "--answers", answers, "--out", "found.jsonl")
    replies = ("--replies", "replies.jsonl") if answers == "generated" else ()
    shown = run("evaluate", "needles", export, *TESTS, *options, *replies)
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines() if line.strip(" ─")]
    assert rows[0] == ["task", "tokens", "depth", "0", "depth", "0.5", "answers"]
    assert rows[1:] == [["single", "200", "100%", "100%", "2"], ["single", "256", "100%", "100%", "2"]]
    records = [json.loads(line) for line in (tmp_path / "found.jsonl").open()]
    assert [one["needle_accuracy"] for one in records] == [1.0] * 4
    assert {one["needle_method"] for one in records} == {answers}
    if replies:
        kept = [json.loads(line) for line in (tmp_path / "replies.jsonl").open()]
        assert [(one["task"], one["length"], one["depth"]) for one in kept] == [
            ("single", length, depth) for length in (200, 256) for depth in (0.0, 0.5)
        ]
        assert all(one["answers"][0] in one["samples"][0]["text"] for one in kept)


def test_what_the_model_cannot_hold_is_refused(run: Run, export: Path) -> None:
    with pytest.raises(GlmforgeError, match=r"--length 300: .* has 256 positions"):
        run("evaluate", "needles", export, "--length", 300)
    with pytest.raises(GlmforgeError, match="tiny: has no tokenizer"):
        run("evaluate", "needles", "tiny", "--length", 200)
    with pytest.raises(GlmforgeError, match=r"--replies: .*; add --answers generated"):
        run("evaluate", "needles", export, "--length", 200, "--replies", "replies.jsonl")
    with pytest.raises(DataError, match="no token shard"):
        run("evaluate", "needles", export, "--length", 200, "--haystack", "nowhere")
