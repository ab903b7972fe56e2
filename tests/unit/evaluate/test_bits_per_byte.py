"""Held-out scores against the definition written out, on one and several ranks."""

import math
from pathlib import Path

import pytest
import torch

from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.evaluate.bits_per_byte import HeldOut, evaluate_held_out
from glmforge.model import GlmMoe
from glmforge.observe.metrics import Record
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

SEQ_LEN, MAX_TOKENS = 16, 16 * 21 + 5  # three batches of eight rows, the last row not full


def evaluate(tokenizer_dir: Path, prefix: Path, world: World, **model_changes: object) -> Record:
    model = GlmMoe(tiny_config(**model_changes))
    randomize_(model)
    (record,) = evaluate_held_out(
        model,
        held_out=[HeldOut("text", TokenShard(prefix))],
        tokenizer=Tokenizer.load(tokenizer_dir),
        world=world,
        seq_len=SEQ_LEN,
        max_tokens=MAX_TOKENS,
    )
    return record


def test_equals_the_definition(tiny_data: TinyData) -> None:
    record = evaluate(tiny_data.tokenizer, tiny_data.held_out, World.single("cpu"))
    model = GlmMoe(tiny_config())
    randomize_(model)
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    ids = torch.from_numpy(TokenShard(tiny_data.held_out).tokens(0, MAX_TOKENS + 1).astype("int64"))
    nll, labels, num_bytes, accepted, guesses = 0.0, 0, 0, 0, 0
    for start in range(0, MAX_TOKENS, SEQ_LEN):
        window = ids[start : min(start + SEQ_LEN, MAX_TOKENS) + 1]
        assert tokenizer.end_of_text_id not in window, "the definition below knows no document borders"
        output = model(window[None, :-1])
        logits, targets = output.main, window[1:]
        nll += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        labels += len(targets)
        num_bytes += len(tokenizer.decode(targets.tolist()).encode())
        for position in range(len(targets) - 1):
            guesses += 1
            accepted += int(output.mtp[0][position].argmax() == logits[position + 1].argmax())
    assert record["num_tokens"] == labels == MAX_TOKENS
    assert record["num_bytes"] == num_bytes
    # Sums of fp32 losses in another order.
    assert record["nll"] == pytest.approx(nll / labels, rel=1e-5)
    assert record["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)
    assert record["mtp_acceptance"] == pytest.approx(accepted / guesses, rel=1e-9)


def test_a_model_without_mtp_has_no_acceptance(tiny_data: TinyData) -> None:
    world = World.single("cpu")
    record = evaluate(tiny_data.tokenizer, tiny_data.held_out, world, num_nextn_predict_layers=0)
    assert "mtp_acceptance" not in record


def rank_evaluate(tokenizer_dir: Path, prefix: Path) -> Record:
    size = torch.distributed.get_world_size()
    with join_world(1, size, timeout_s=60) as world:
        return evaluate(tokenizer_dir, prefix, world)


def test_ranks_share_the_windows(tiny_data: TinyData) -> None:
    """Three batches over two ranks: one rank runs a batch more than it scores."""
    expected = evaluate(tiny_data.tokenizer, tiny_data.held_out, World.single("cpu"))
    for record in run_ranks(rank_evaluate, 2, tiny_data.tokenizer, tiny_data.held_out):
        assert record.pop("source") == "text"
        assert record == pytest.approx({name: value for name, value in expected.items() if name != "source"}, rel=1e-6)
