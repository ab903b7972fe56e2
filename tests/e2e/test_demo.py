"""The demo, short: a small model, few steps, the real kill, resume, export and report."""

import shutil
import sysconfig
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from glmforge.cli.app import main
from glmforge.config import load_config
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.demo import Demo, DemoOptions
from helpers.prepared import programs

SMALL = (
    *("model.hidden_size=64", "model.num_hidden_layers=2", "model.intermediate_size=128"),
    *("model.moe_intermediate_size=32", "model.n_routed_experts=8", "model.num_experts_per_tok=2", "phases.0.steps=24"),
    *("phases.0.batch_size=8", "phases.0.seq_len=64", "phases.1.steps=8", "phases.1.batch_size=8"),
    *("phases.1.seq_len=64", "optim.lr=2e-2", "optim.warmup_steps=4", "checkpoint.every_steps=4"),
    *("observe.evaluate_every=16", "observe.evaluate_tokens=4096"),
)

SMALL_SFT = (
    *("phases.0.steps=8", "optim.warmup_steps=2", "checkpoint.every_steps=4", "observe.evaluate_every=4"),
    *("observe.evaluate_tokens=4096", "observe.samples.held_out=4"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    library = Path(sysconfig.get_path("stdlib"))
    for package in ("asyncio", "email", "importlib", "json", "logging", "multiprocessing", "unittest", "xml"):
        shutil.copytree(library / package, directory / package, ignore=shutil.ignore_patterns("test*", "__pycache__"))
    return directory


def test_the_whole_story(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(programs() / "python"))  # by which it starts what it trains
    console = Console(record=True, width=120)
    out = tmp_path / "demo"
    options = DemoOptions(out, corpus, minutes=1.0, overrides=SMALL, sft_overrides=SMALL_SFT)
    result = Demo(options, console).run()

    assert result.resumed_from_step <= result.killed_at_step < 32
    assert result.resumed_from_step % 4 == 0
    records = read_jsonl(out / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 33))
    # An untrained model gives log(8192) = 9.01 nats per token; 32 small steps learn at least the frequent tokens.
    assert result.last_loss < result.first_loss - 1.0
    assert result.logits_difference < 1e-4
    assert 0 < result.bits_per_byte < 8
    events = [record["event"] for record in read_jsonl(out / "events.jsonl")]
    assert [event for event in events if event != "saved"] == ["started", "killed", "resumed", "finished"]
    of_chat = [record for record in read_jsonl(out / "sft/evaluation.jsonl") if record["source"] == "chat"]
    assert [record["step"] for record in of_chat] == [4, 4, 8, 8]
    scores, answers = of_chat[-2:]
    assert scores["bits_per_byte_change"] < 0
    assert answers["num_answers"] == 4
    assert len(read_jsonl(out / "sft/metrics.jsonl")) == 8
    assert load_config(str(out / "sft.yaml")).init_from == out
    page = result.report.read_text()
    HTMLParser().feed(page)
    assert page.count("<svg") >= 5
    story = console.export_text()
    for stage in (
        *("Gather a corpus", "killed with SIGKILL", "bits per byte", "Fine-tune on conversations"),
        *("held-out questions", "loaded with transformers", "glmforge chat", "glmforge checkpoint show"),
    ):
        assert stage in story, stage


def test_another_directory_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    monkeypatch.setattr("sys.argv", ["glmforge", "demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "was not made by a demo" in capfd.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "precious"
