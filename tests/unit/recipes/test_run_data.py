"""A run may name a file of conversations: it trains on what the assistant writes, by every packing alike."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.backend.native import NativeBackend
from glmforge.config.chat import ChatConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.data.chat.tokenize import tokenize_chat
from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.errors import ConfigError, DataError
from glmforge.objectives.sft import SftObjective
from glmforge.parallel.world import World
from glmforge.recipes.run_data import open_data
from glmforge.training.source import Phase, StepInput
from glmforge.training.trainer import Trainer
from helpers.distributed import run_ranks
from helpers.tiny_data import TinyData

WORLD = World.single("cpu")
SEQ_LEN = 64


def record(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"What is {number}?"}
    answer = {"role": "assistant", "content": "a number " * (number % 3 + 1)}
    return {"messages": [question, answer] * (number % 2 + 1)}


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(record(number)) + "\n" for number in range(12)))
    return path


def config_of(data: TinyData, directory: Path, source: dict[str, Any], **phase: Any) -> RunConfig:
    phases = [{"name": "main", "steps": 3, "seq_len": SEQ_LEN, "batch_size": 4, "packing": "best_fit", **phase}]
    sources = [{"name": "chat", **source}]
    held_out = [{"name": "held_out", "path": str(data.held_out)}]
    run_data = {"tokenizer": str(data.tokenizer), "sources": sources, "held_out": held_out}
    return data.run_config(directory, phases=phases, data=run_data)


def first_batches(config: RunConfig, world: World = WORLD) -> list[Batch]:
    stream = open_data(config, world).curriculum.stream(0, {})
    return [
        stream.batch(4 * step, 4, world.data_rank, resolve_layout(config, world.size).data_ranks) for step in range(3)
    ]


def assert_equal(found: list[Batch], expected: list[Batch]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.ids_BS, other.ids_BS)
        assert torch.equal(one.labels_BS, other.labels_BS)
        assert one.document_lengths == other.document_lengths


def test_a_file_of_conversations_is_the_shard_that_it_would_be_written_as(tiny_data, chat, tmp_path):
    tokenize_chat([chat], tiny_data.tokenizer, tmp_path / "shard", ChatConfig(max_tokens=SEQ_LEN))
    expected = first_batches(config_of(tiny_data, tmp_path, {"path": str(tmp_path / "shard")}))
    assert any((batch.labels_BS == IGNORED_LABEL).sum() > 40 for batch in expected)
    assert_equal(first_batches(config_of(tiny_data, tmp_path, {"path": str(chat)})), expected)


def _on_a_rank(config: RunConfig) -> list[Batch]:
    return first_batches(config, World.join(resolve_layout(config, 2), torch.device("cpu")))


def test_two_ranks_read_the_file_once_and_share_what_it_became(tiny_data, chat, tmp_path):
    config = config_of(tiny_data, tmp_path, {"path": str(chat)})
    ranks = run_ranks(_on_a_rank, 2, config)
    for whole, *shares in zip(first_batches(config), *ranks, strict=True):
        assert torch.equal(torch.cat([share.labels_BS for share in shares]), whole.labels_BS)
    assert len(list(tmp_path.glob("chat.jsonl.tokens-*.idx"))) == 2  # the shard's and its packing's


def test_the_phases_say_how_long_a_conversation_may_be(tiny_data, chat, tmp_path):
    with pytest.raises(DataError, match=r"chat\.jsonl:\d+: \d+ tokens, more than max_tokens 16"):
        open_data(config_of(tiny_data, tmp_path, {"path": str(chat)}, seq_len=16), WORLD)
    open_data(config_of(tiny_data, tmp_path, {"path": str(chat), "chat": {"max_tokens": 64}}, seq_len=16), WORLD)
    cut = {"path": str(chat), "chat": {"overlong": "cut", "max_tokens": 40}}
    assert open_data(config_of(tiny_data, tmp_path, cut, packing="single"), WORLD).curriculum.planned_draws()


def test_a_file_that_is_not_there(tiny_data, tmp_path):
    config = config_of(tiny_data, tmp_path, {"path": str(tmp_path / "nowhere.jsonl")})
    with pytest.raises(DataError, match=r"data\.sources\.0\.path: .*nowhere\.jsonl does not exist; correct the path$"):
        open_data(config, WORLD)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"path": "shard", "chat": {}}, "is a token shard; remove it"),
        ({"path": "a.jsonl", "code": True}, "fill-in-the-middle does not apply to conversations"),
        ({"path": "a.jsonl", "chat": {"turns": "first"}}, "'all' or 'last'"),
    ],
)
def test_settings_that_cannot_be(tiny_data, tmp_path, source, complaint):
    with pytest.raises((ConfigError, ValueError), match=complaint):
        config_of(tiny_data, tmp_path, source)


QUESTIONS = 5


@pytest.mark.parametrize("overlong", ["refuse", "drop"])
@pytest.mark.parametrize("packing", ["best_fit", "single"])
def test_a_conversation_weighs_one_however_many_documents_it_is(tiny_data, tmp_path, packing, overlong):
    """Five questions with reasoning are five documents, each with its own answer learnt, in rows and micro-batches that
    come as they come; two of one question beside them are one document each."""
    unfolded = [
        message
        for number in range(QUESTIONS)
        for message in (
            {"role": "user", "content": f"What is {number}?"},
            {"role": "assistant", "content": "number " * (number + 1), "reasoning_content": "Let me think."},
        )
    ]
    records = [{"messages": messages} for messages in (unfolded, record(0)["messages"], record(2)["messages"])]
    chat = tmp_path / "chat.jsonl"
    chat.write_text("".join(json.dumps(one) + "\n" for one in records))
    # The last question has 126 tokens with its history: where it is dropped, the others are all of the conversation.
    limit = {"overlong": "drop", "max_tokens": 120} if overlong == "drop" else {}
    source = {"path": str(chat), "chat": limit}
    config = config_of(tiny_data, tmp_path, source, packing=packing, seq_len=256, aux_loss_weight=0.0)
    stream = open_data(config, WORLD).curriculum.stream(0, {})
    rows = stream.sources["chat"].rows
    batch = stream.batch(0, rows.num_rows)
    num_documents = rows.shard.num_documents
    assert num_documents == (QUESTIONS if overlong == "refuse" else QUESTIONS - 1) + 2
    objective = SftObjective(config.phases[0], config.model.num_nextn_predict_layers, mean="conversations")
    parts = batch.micro_batches(1)
    assert sum(float(objective.denominators(part)[0]) for part in parts) == pytest.approx(3, rel=1e-6)
    # Within the conversation every token that is learnt weighs the same, whichever question it answers.
    weights = torch.cat([objective.weights_T(part) for part in parts])
    distinct = torch.unique(weights[weights > 0])
    learnt = [int((weights == weight).sum()) for weight in distinct]
    assert len(distinct) == 3
    assert [float(weight) * number for weight, number in zip(distinct, learnt, strict=True)] == pytest.approx([1] * 3)


@pytest.mark.parametrize("mean", ["tokens", "conversations"])
def test_packed_rows_and_rows_of_one_document_have_one_loss(tiny_data, chat, tmp_path, mean):
    """And one gradient. All twelve conversations in one batch, MTP's labels among them; fp32 sums in other orders."""
    losses, gradients = [], []
    for packing in ("best_fit", "single"):
        config = config_of(tiny_data, tmp_path, {"path": str(chat)}, packing=packing, aux_loss_weight=0.0)
        stream = open_data(config, WORLD).curriculum.stream(0, {})
        num_rows = stream.sources["chat"].rows.num_rows
        assert num_rows == 12 if packing == "single" else num_rows < 12
        objective = SftObjective(config.phases[0], config.model.num_nextn_predict_layers, mean=mean)
        backend = NativeBackend.build(config, WORLD)
        given = StepInput(stream.batch(0, num_rows), Phase("main", objective), lr=0.0)
        backend.accumulate(objective, [given.batch])
        gradients.append({name: p.grad for name, p in backend.model.named_parameters() if p.grad is not None})
        losses.append(Trainer(config, NativeBackend.build(config, WORLD)).step(given).losses)
    assert losses[0].keys() == losses[1].keys() == {"loss", "mtp_1"}
    for term, loss in losses[0].items():
        assert loss == pytest.approx(losses[1][term], rel=1e-6)
    largest = max(float(gradient.norm()) for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        # That of a key's bias is zero but for rounding: it is measured by the largest one.
        error = (gradient - gradients[1][name]).norm() / gradient.norm().clamp_min(1e-2 * largest)
        assert error < 1e-6, name
