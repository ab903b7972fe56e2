"""A trained run exported, loaded by transformers, and talked to."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import glmforge
from glmforge.deploy.chat import Conversation, continue_text, default_max_new_tokens
from glmforge.deploy.export import compare_with_transformers, export_run
from glmforge.errors import GlmforgeError
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.recipes.train import train
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def run(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("export") / "run"
    train(tiny_data.run_config(directory))
    return directory


@pytest.mark.parametrize("with_mtp", [True, False])
def test_transformers_computes_the_same(run: Path, tmp_path: Path, with_mtp: bool) -> None:
    exported = export_run(run, tmp_path / "out", dtype="fp32", with_mtp=with_mtp)
    ids_BS = torch.randint(0, 476, (2, 40), generator=torch.Generator().manual_seed(0))
    parity = compare_with_transformers(exported.directory, ids_BS)
    assert parity.agrees, parity
    assert parity.max_logit > 0.1


def test_export_loads_as_the_run_does(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", dtype="fp32")
    of_run, of_export = glmforge.load_pretrained(run), glmforge.load_pretrained(tmp_path / "out")
    expected = of_run.state_dict()
    for name, tensor in of_export.state_dict().items():
        assert torch.equal(tensor, expected.pop(name)), name
        assert tensor.data_ptr() % 64 == 0, f"{name}: lies across borders of cache lines"
    assert not expected
    assert of_export.config == of_run.config


def test_default_export_is_bf16_with_fp32_router_biases(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out")
    model = glmforge.load_pretrained(tmp_path / "out")
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    biases = {name for name in dtypes if name.endswith("e_score_correction_bias")}
    assert biases
    assert all(dtype == (torch.float32 if name in biases else torch.bfloat16) for name, dtype in dtypes.items())
    assert model.compute_dtype == torch.bfloat16


def test_a_run_that_was_moved_is_exported_and_talked_to_from_anywhere(
    tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration names a tokenizer by a path that is relative to where it was started, or gone."""
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    shutil.copytree(tiny_data.tokenizer, "tokenizer")
    config = tiny_data.run_config(Path("run"))
    data = config.data.model_copy(update={"tokenizer": Path("tokenizer")})
    train(config.model_copy(update={"data": data}))
    (tmp_path / "start" / "run").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "start" / "tokenizer")
    monkeypatch.chdir(tmp_path)
    for source in (Path("moved"), max(Path("moved/checkpoints").glob("step-*"))):
        assert glmforge.load_tokenizer(source).vocab_size == 512
    exported = export_run(Path("moved"), tmp_path / "out")
    assert (exported.directory / "tokenizer.json").is_file()


@pytest.mark.parametrize("source", ["run", "export"])
def test_chat_streams_what_it_returns(run: Path, tmp_path: Path, source: str) -> None:
    if source == "export":
        run = export_run(run, tmp_path / "out", dtype="fp32").directory
    pieces: list[str] = []
    params = SamplingParams(max_new_tokens=30, temperature=1.0, seed=1)
    text = continue_text(Engine.load(run), "import", params, pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces) == text
    assert "<|" not in text


def test_conversation_keeps_its_turns_and_forgets_the_oldest(run: Path) -> None:
    conversation = Conversation(Engine.load(run))
    for question in ("What is this?", "And that?"):
        conversation.reply(question, SamplingParams(max_new_tokens=8))
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2
    assert conversation.engine.metrics.num_found > 0, "the second turn begins like the first"
    # The model has 256 positions: 220 for the answer leave room for one short question only.
    conversation.reply("Why?", SamplingParams(max_new_tokens=236))
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    with pytest.raises(GlmforgeError, match="shorten it"):
        conversation.reply("very long " * 200, SamplingParams(max_new_tokens=8))
    with pytest.raises(GlmforgeError, match="leaves no room"):
        conversation.reply("short", SamplingParams(max_new_tokens=256))
    kept = [message["role"] for message in conversation.messages]
    assert kept == ["user", "assistant"], "what was refused is no turn, and costs no earlier one"
    assert conversation.reply("And?", SamplingParams(max_new_tokens=8), stopped=lambda: True) == ""
    assert [message["role"] for message in conversation.messages] == kept


def test_an_answer_may_take_half_of_few_positions(run: Path) -> None:
    assert default_max_new_tokens(Engine.load(run)) == 128


def test_an_answer_is_shown_from_its_first_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GLM begins what follows its empty thought with a line's end."""
    written = iter(("\n", " ", "\n It", " is\n", " so.\n"))

    def answer(engine: Engine, prompt: object, params: object, on_text: Callable[[str], None], _: object) -> str:
        for text in written:
            on_text(text)
        return "\n \n It is\n so.\n"

    monkeypatch.setattr("glmforge.deploy.chat._answer", answer)
    shown: list[str] = []
    assert Conversation(Engine.load(run)).reply("Is it so?", SamplingParams(), shown.append) == "It is\n so."
    assert "".join(shown) == "It is\n so.\n"
