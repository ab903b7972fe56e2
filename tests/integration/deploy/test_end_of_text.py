"""A model that learned to end its text ends it wherever it is served, whatever ids its configuration came with."""

import json
import logging
from pathlib import Path

import pytest
import torch

from glmforge.config.load import load_config
from glmforge.config.schema import RunConfig
from glmforge.data.documents.document import Document
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.chat import continue_text
from glmforge.deploy.export import export_run
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.recipes.train import train

TEXT = "to be or not to be"
MAX_NEW_TOKENS = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset `tiny`, its vocabulary larger than the tokenizer's, trained on one short document over and over."""
    directory = tmp_path_factory.mktemp("end")
    alphabet = " ".join(f"{chr(a)}{chr(b)}" for a in range(97, 123) for b in range(97, 123))
    train_tokenizer([f"{TEXT} " * 50, alphabet * 3], 600, directory / "tokenizer")
    tokenize_corpus([Document(str(n), TEXT, "") for n in range(200)], directory / "tokenizer", directory / "text")
    config = {
        "name": "end",
        "output_dir": str(directory / "run"),
        "model": {"preset": "tiny", "vocab_size": 640},
        "data": {
            "tokenizer": str(directory / "tokenizer"),
            "sources": [{"name": "text", "path": str(directory / "text")}],
        },
        "phases": [{"name": "main", "steps": 40, "seq_len": 32, "batch_size": 4}],
        "optim": {"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 2},
        "precision": {"compute": "fp32"},
        "observe": {"progress": False, "tensorboard": False},
    }
    (directory / "config.yaml").write_text(json.dumps(config))
    train(load_config(directory / "config.yaml"))
    return directory / "run"


def test_the_ids_are_the_tokenizers(run: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(run.parent / "tokenizer")
    assert tokenizer.stop_ids == (564, 571, 573)
    assert load_config(run.parent / "config.yaml").model.eos_token_id == [476, 483, 485]  # the preset's: words here
    recorded: RunConfig = load_config(run)
    assert (recorded.model.eos_token_id, recorded.model.pad_token_id) == ([564, 571, 573], 564)
    export_run(run, tmp_path / "export")
    for file in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / "export" / file).read_text())
        assert (content["eos_token_id"], content["pad_token_id"]) == ([564, 571, 573], 564), file


@pytest.mark.parametrize("server", ["transformers", "chat", "chat of the export"])
def test_generation_stops(run: Path, tmp_path: Path, server: str) -> None:
    exported = export_run(run, tmp_path / "export", dtype="fp32").directory
    tokenizer = Tokenizer.load(exported)
    if server == "transformers":
        transformers = pytest.importorskip("transformers")
        model = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
        start = torch.tensor([[tokenizer.end_of_text_id, *tokenizer.encode("to be or")]])
        ids = model.generate(start, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)[0, start.shape[1] :].tolist()
        assert ids[-1] == tokenizer.end_of_text_id
        assert len(ids) < MAX_NEW_TOKENS
        text = tokenizer.decode(ids[:-1])
        # With ids that are words, as a wrong configuration has them, the same model does not stop.
        model.generation_config.eos_token_id = [476, 483, 485]
        assert model.generate(start, do_sample=False, max_new_tokens=20).shape[1] == start.shape[1] + 20
    else:
        engine = Engine.load(exported if server == "chat of the export" else run)
        text = continue_text(engine, "to be or", SamplingParams(max_new_tokens=MAX_NEW_TOKENS))
    assert text == TEXT.removeprefix("to be or")


def test_a_larger_vocabulary_is_said(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    from glmforge.data.tokens.model_ids import describe_changes

    tokenizer = Tokenizer.load(run.parent / "tokenizer")
    lines = describe_changes(load_config(run.parent / "config.yaml").model, tokenizer)
    assert "using the tokenizer's, [564, 571, 573] and 564" in lines[0]
    assert "model.vocab_size 640 is larger than the tokenizer's 600 tokens: 40 embedding rows" in lines[1]
    assert len(describe_changes(load_config(run).model, tokenizer)) == 1
    with caplog.at_level(logging.INFO, logger="glmforge"):
        train(load_config(run.parent / "config.yaml", ["phases.0.steps=41"]))
    assert "using the tokenizer's" in caplog.text
