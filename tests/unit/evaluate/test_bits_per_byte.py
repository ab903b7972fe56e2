"""Held-out scores against the definition written out, and on every layout against one process."""

import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from glmforge.config.layout import resolve_layout
from glmforge.config.parallel import ParallelConfig
from glmforge.data.stream.evaluation import DrawnSamples, EvaluationBatches, Subset
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.evaluate import bits_per_byte
from glmforge.evaluate.bits_per_byte import HeldOut, evaluate_held_out
from glmforge.evaluate.scoring import score_batch
from glmforge.model import GlmMoe
from glmforge.observe.metrics import Record
from glmforge.parallel.build import build_model
from glmforge.parallel.communication import Collective, CollectiveObserver, GroupAxes
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.models import randomize_, run_config, tiny_config
from helpers.tiny_data import TinyData

SEQ_LEN, MAX_TOKENS = 16, 16 * 21 + 5  # three batches of eight rows, the last row not full
WORLD = World.single("cpu")


def evaluate(model: ParallelModel, tokenizer_dir: Path, *prefixes: Path, subset: Subset = MAX_TOKENS) -> list[Record]:
    return evaluate_held_out(
        model,
        held_out=[HeldOut(prefix.name, TokenShard(prefix)) for prefix in prefixes],
        tokenizer=Tokenizer.load(tokenizer_dir),
        seq_len=SEQ_LEN,
        subset=subset,
    )


def random_model(world: World, **changes: object) -> ParallelModel:
    """A whole model on this rank with weights that matter."""
    model = GlmMoe(tiny_config(**changes))
    randomize_(model)
    return ParallelModel(model.config, world, ParallelConfig(), [model])


def spread_windows(shard: TokenShard) -> list[Tensor]:
    """The evaluated rows and their last labels, by the definition: row i of n is floor(i N / n)."""
    num_rows, of_shard = -(-MAX_TOKENS // SEQ_LEN), -(-(shard.num_tokens - 1) // SEQ_LEN)
    assert of_shard > num_rows
    starts = [row * of_shard // num_rows * SEQ_LEN for row in range(num_rows)]
    lengths = [SEQ_LEN] * (num_rows - 1) + [MAX_TOKENS - SEQ_LEN * (num_rows - 1)]
    return [torch.from_numpy(shard.tokens(a, a + n + 1).astype("int64")) for a, n in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("num_mtp", [1, 2])
def test_equals_the_definition(tiny_data: TinyData, num_mtp: int) -> None:
    model = random_model(WORLD, num_nextn_predict_layers=num_mtp)
    with torch.no_grad():
        model.parts[0].lm_head.weight[4:] = 0  # choices among few tokens, which often agree
    (record,) = evaluate(model, tiny_data.tokenizer, tiny_data.held_out)
    (part,) = model.parts
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    nll, labels, right, num_bytes = 0.0, 0, 0, 0
    accepted, guesses = [0] * num_mtp, [0] * num_mtp
    for window in spread_windows(TokenShard(tiny_data.held_out)):
        assert tokenizer.end_of_text_id not in window, "the definition below knows no document borders"
        output = part(window[None, :-1])
        logits, targets = output.main, window[1:]
        nll += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        labels += len(targets)
        right += int((logits.argmax(-1) == targets).sum())
        num_bytes += sum(len(spelling) for spelling in map(tokenizer.id_to_token, targets.tolist()))
        for depth in range(1, num_mtp + 1):
            for position in range(len(targets) - depth):
                guesses[depth - 1] += 1
                guess = output.mtp[depth - 1][position].argmax()
                accepted[depth - 1] += int(guess == logits[position + depth].argmax())
    acceptance = [a / n for a, n in zip(accepted, guesses, strict=True)]
    assert min(acceptance) > 0.05
    assert record["num_tokens"] == labels == MAX_TOKENS
    assert record["num_bytes"] == num_bytes
    assert record["accuracy"] == right / labels
    # Sums of fp32 losses in another order.
    assert record["nll"] == pytest.approx(nll / labels, rel=1e-5)
    assert record["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)
    assert record["mtp_acceptance"] == pytest.approx(acceptance[0], rel=1e-9)
    assert record.get("mtp_acceptance_by_depth") == (pytest.approx(acceptance, rel=1e-9) if num_mtp > 1 else None)


@pytest.fixture(scope="module")
def weighted(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 5 to 16 tokens; of each the second half is learnt, with weights that evaluation does not heed."""
    ids = TokenShard(tiny_data.held_out).tokens(0, 2000)
    prefix, start = tmp_path_factory.mktemp("weighted") / "weighted", 0
    with ShardWriter(prefix, 512, weighted=True) as writer:
        for number in range(100):
            length = 5 + 7 * number % 12
            weights = np.where(np.arange(length) < length // 2, 0, (1, 0.5, 2)[number % 3])
            writer.add(ids[start : start + length], np.array([length]), weights.astype(np.float32))
            start += length
        writer.finish(Tokenizer.load(tiny_data.tokenizer).fingerprint, "test", start)
    return prefix


def test_of_conversations_only_what_is_learnt_is_scored(tiny_data: TinyData, weighted: Path) -> None:
    model = random_model(WORLD)
    with torch.no_grad():
        model.parts[0].lm_head.weight[64:] = 0
    (record,) = evaluate_held_out(
        model,
        held_out=[HeldOut("chat", TokenShard(weighted))],
        tokenizer=Tokenizer.load(tiny_data.tokenizer),
        seq_len=SEQ_LEN,
        subset=None,
    )
    shard, tokenizer, nll, labels, right, num_bytes = (
        TokenShard(weighted),
        Tokenizer.load(tiny_data.tokenizer),
        0,
        0,
        0,
        0,
    )
    for number in range(shard.num_documents):
        ids = torch.from_numpy(shard.document(number).astype("int64"))
        first = len(ids) // 2
        logits, targets = model.parts[0](ids[None, :-1]).main[first - 1 :], ids[first:]
        nll += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        labels += len(targets)
        right += int((logits.argmax(-1) == targets).sum())
        num_bytes += sum(len(spelling) for spelling in map(tokenizer.id_to_token, targets.tolist()))
    assert (record["num_tokens"], record["num_bytes"]) == (labels, num_bytes)
    assert record["accuracy"] == right / labels > 0
    assert record["nll"] == pytest.approx(nll / labels, rel=1e-5)  # fp32 sums in another order
    assert record["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)


def test_a_model_without_mtp_has_no_acceptance(tiny_data: TinyData) -> None:
    (record,) = evaluate(random_model(WORLD, num_nextn_predict_layers=0), tiny_data.tokenizer, tiny_data.held_out)
    assert "mtp_acceptance" not in record


def test_sources_are_told_apart(tiny_data: TinyData) -> None:
    """Together they give the records that each gives alone."""
    model, shards = random_model(WORLD), (tiny_data.train, tiny_data.held_out)
    together = evaluate(model, tiny_data.tokenizer, *shards)
    assert together == [evaluate(model, tiny_data.tokenizer, shard)[0] for shard in shards]
    assert together[0]["nll"] != together[1]["nll"]


def rank_evaluate(parallel: dict[str, Any], tokenizer_dir: Path, *prefixes: Path) -> list[Record]:
    config = run_config(parallel=parallel)
    with join_world(resolve_layout(config, torch.distributed.get_world_size()), timeout_s=60) as world:
        return evaluate(build_model(config, world), tokenizer_dir, *prefixes)


@pytest.mark.parametrize(
    "parallel",
    [
        {},
        {"tp": 2},
        {"cp": 2},
        {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "dualpipev"},
    ],
    ids=str,
)
def test_layouts_give_the_same_records(tiny_data: TinyData, weighted: Path, parallel: dict[str, Any]) -> None:
    """Three batches of each source: two data ranks score batches of both in one round; a pipeline fills up rows."""
    shards = (tiny_data.train, tiny_data.held_out, weighted)
    expected = evaluate(build_model(run_config(), WORLD), tiny_data.tokenizer, *shards)
    for records in run_ranks(rank_evaluate, 2, parallel, tiny_data.tokenizer, *shards):
        assert [record.pop("source") for record in records] == ["train", "held_out", "weighted"]
        for record, theirs in zip(records, expected, strict=True):
            # fp32 sums in another order; counts are equal as they are.
            assert record == pytest.approx({k: v for k, v in theirs.items() if k != "source"}, rel=1e-6)


def rank_evaluate_counted(tokenizer_dir: Path, *prefixes: Path) -> tuple[int, int, list[Record]]:
    """How many batches this rank read, how many sums over all ranks there were, and what came out."""
    config, reads, sums = run_config(), [], []
    read, add_up = EvaluationBatches.__getitem__, World.sum
    with (
        join_world(resolve_layout(config, torch.distributed.get_world_size()), timeout_s=60) as world,
        mock.patch.object(EvaluationBatches, "__getitem__", lambda self, i: reads.append(i) or read(self, i)),
        mock.patch.object(World, "sum", lambda self, x, *axes: sums.append(axes) or add_up(self, x, *axes)),
    ):
        records = evaluate(build_model(config, world), tokenizer_dir, *prefixes)
    return len(reads), sums.count(()), records


def test_ranks_read_their_own_batches_and_add_up_once(tiny_data: TinyData) -> None:
    """Six batches on four data ranks: two rounds, in the second of which two ranks only keep up."""
    arguments = (tiny_data.tokenizer, tiny_data.train, tiny_data.held_out)
    expected = evaluate(build_model(run_config(), WORLD), *arguments)
    for num_reads, num_sums, records in run_ranks(rank_evaluate_counted, 4, *arguments):
        assert (num_reads, num_sums) == (2, 1)
        assert [record["num_tokens"] for record in records] == [MAX_TOKENS, MAX_TOKENS]
        # fp32 sums in another order.
        assert [r["nll"] for r in records] == pytest.approx([r["nll"] for r in expected], rel=1e-6)


def rank_evaluate_observed(
    sections: dict[str, Any], tokenizer_dir: Path, *prefixes: Path
) -> tuple[list[Collective], list[Collective]]:
    """The collectives of this rank in an evaluation: those within forward passes, and the others."""
    config, calls, of_forwards = run_config(**sections), [], []

    def forward(*args: Any) -> Any:
        first = len(calls)
        output = score_batch(*args)
        of_forwards.extend(calls[first:])
        return output

    with join_world(resolve_layout(config, torch.distributed.get_world_size()), timeout_s=60) as world:
        model = build_model(config, world)
        with (
            mock.patch.object(bits_per_byte, "score_batch", forward),
            CollectiveObserver(GroupAxes.of(world), calls.append),
        ):
            evaluate(model, tokenizer_dir, *prefixes)
    others = list(calls)
    for call in of_forwards:
        others.remove(call)
    return of_forwards, others


@pytest.mark.parametrize("num_mtp", [0, 1])
@pytest.mark.parametrize(
    ("parallel", "shares_rows"),
    [
        ({"ep": 2}, False),
        ({"pp": 2, "micro_batch_size": 2}, False),
        ({"cp": 2}, True),
    ],
    ids=str,
)
def test_an_evaluation_has_one_collective_of_its_own(
    tiny_data: TinyData, parallel: dict[str, Any], shares_rows: bool, num_mtp: int
) -> None:
    """All sources meet in one all-reduce. Ranks that share rows also add up the trunk's choices, where MTP layers guess
    them: once in each of the six batches, which all of these ranks run."""
    sections = {"parallel": parallel, "model": tiny_config(num_nextn_predict_layers=num_mtp).model_dump()}
    shards = (tiny_data.train, tiny_data.held_out)
    for of_forwards, own in run_ranks(rank_evaluate_observed, 2, sections, tiny_data.tokenizer, *shards):
        assert {call.op for call in own} == {"all_reduce"}
        assert len(own) == 1 + (6 if shares_rows and num_mtp else 0)
        assert own[-1].bytes == 8 * len(shards) * (4 + 2 * num_mtp)
        # Copies of the model score batches of their own, without a word.
        assert bool(of_forwards) == (parallel != {"dp_replicate": 2})


def test_a_drawn_subset_is_the_same_on_every_layout(tiny_data: TinyData, weighted: Path) -> None:
    shards = (tiny_data.train, weighted)
    expected = evaluate(build_model(run_config(), WORLD), tiny_data.tokenizer, *shards, subset=DrawnSamples(19, 42))
    for records in run_ranks(rank_evaluate_drawn, 2, tiny_data.tokenizer, *shards):
        assert [r["num_tokens"] for r in records] == [r["num_tokens"] for r in expected]
        # fp32 sums in another order.
        assert [r["nll"] for r in records] == pytest.approx([r["nll"] for r in expected], rel=1e-6)
    assert expected[0]["num_tokens"] == 19 * SEQ_LEN


def rank_evaluate_drawn(tokenizer_dir: Path, *prefixes: Path) -> list[Record]:
    config = run_config()
    with join_world(resolve_layout(config, torch.distributed.get_world_size()), timeout_s=60) as world:
        return evaluate(build_model(config, world), tokenizer_dir, *prefixes, subset=DrawnSamples(19, 42))
