"""Loss weights on their way from a shard into batches, by every packing."""

import pickle
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.cache import copy_shards, local_prefix
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.evaluation import DrawnSamples, EvaluationBatches
from glmforge.data.stream.rows import open_rows
from glmforge.data.stream.windows import to_batch
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import CheckpointError, DataError
from helpers.stream_runs import stream_config

LENGTHS = [5, 9, 3, 7, 1, 8, 4, 12, 6]
PACKINGS = [("truncate", 8), ("best_fit", 8), ("single", 12)]


@pytest.fixture
def make_weighted(tmp_path) -> Callable[..., TokenShard]:
    """Token t has id 1 + t, and weight `weight(t)`."""

    def make(weight, name="weighted") -> TokenShard:
        total = sum(LENGTHS)
        with ShardWriter(tmp_path / name, 1000, weighted=True) as writer:
            weights = np.array([weight(token) for token in range(total)], np.float32)
            writer.add(np.arange(1, total + 1), np.array(LENGTHS), weights)
            writer.finish("fingerprint", "test", total)
        return TokenShard(tmp_path / name)

    return make


def thirds(token: int) -> float:
    return (0.0, 1.0, 0.5)[token % 3]


@pytest.mark.parametrize("document_mask", [True, False])
@pytest.mark.parametrize(("packing", "seq_len"), PACKINGS)
def test_a_label_weighs_what_its_token_does(make_weighted, make_shard, packing, seq_len, document_mask):
    """Against the same documents without weights: labels of weight 0 are gone, all others are as they were."""
    shard = make_weighted(thirds)
    ends = np.cumsum([0, *LENGTHS])
    plain = make_shard([range(1 + a, 1 + b) for a, b in pairwise(ends)], "plain")
    rows, expected = (
        open_rows(s, seq_len=seq_len, packing=packing, document_mask=document_mask) for s in (shard, plain)
    )
    assert rows.num_rows == expected.num_rows
    num_trained = 0
    for index in range(rows.num_rows):
        window, whole = pickle.loads(pickle.dumps(rows)).row(index), expected.row(index)
        assert window.ids_S.tolist() == whole.ids_S.tolist()
        assert window.lengths == whole.lengths
        assert sum(window.lengths) == seq_len
        for label, weight, of_all in zip(window.labels_S, window.weights_S, whole.labels_S, strict=True):
            due = thirds(of_all - 1) if of_all != IGNORED_LABEL else 0
            assert weight == due
            assert label == (of_all if due else IGNORED_LABEL)
        num_trained += int((window.weights_S > 0).sum())
    assert num_trained > 20


@pytest.mark.parametrize(("packing", "seq_len"), PACKINGS)
def test_a_mask_is_in_the_labels_alone(make_weighted, packing, seq_len):
    rows = open_rows(make_weighted(lambda t: t % 2), seq_len=seq_len, packing=packing, document_mask=True)
    windows = [rows.row(index) for index in range(rows.num_rows)]
    assert all(window.weights_S is None for window in windows)
    labels = np.concatenate([window.labels_S for window in windows])
    assert set((labels[labels != IGNORED_LABEL] - 1) % 2) == {1}
    assert to_batch(windows, range(len(windows)), [0] * len(windows)).per_token == {}


def test_every_document_has_a_row_of_its_own(make_weighted):
    shard = make_weighted(lambda t: 1)
    rows = open_rows(shard, seq_len=12, packing="single", document_mask=True)
    assert rows.num_rows == len(LENGTHS)
    for index, length in enumerate(LENGTHS):
        window = rows.row(index)
        assert window.ids_S[:length].tolist() == shard.document(index).tolist()
        assert window.labels_S.tolist() == [*shard.document(index)[1:].tolist(), *[IGNORED_LABEL] * (13 - length)]
        assert window.lengths == ((length, 12 - length) if length < 12 else (12,))
    with pytest.raises(DataError, match="document 7 has 12 tokens, more than seq_len 11; raise seq_len"):
        open_rows(shard, seq_len=11, packing="single", document_mask=True)


def test_batches_of_a_mixture_weigh_every_label(make_weighted, make_shard):
    """A source with weights beside one without: the latter's labels weigh 1."""
    shards = {"chat": make_weighted(thirds), "web": make_shard([range(100, 190)], "web")}
    config = stream_config(shards, [{"steps": 4, "packing": "best_fit"}])
    stream = Curriculum(config, shards).stream(0, {})
    batches = [stream.batch(4 * step, 4) for step in range(4)]
    assert {source for batch in batches for source in batch.source_B} == {0, 1}
    for batch in batches:
        weights_BS = batch.per_token["loss_weight"]
        assert weights_BS.dtype == torch.float32
        assert ((weights_BS > 0) == (batch.labels_BS != IGNORED_LABEL)).all()
        for source, weights_S in zip(batch.source_B, weights_BS, strict=True):
            assert set(weights_S.tolist()) <= ({0, 0.5, 1} if config.data.sources[source].name == "chat" else {0, 1})


@pytest.mark.parametrize("seq_len", [12, 20, 64])
def test_held_out_conversations_are_scored_whole_and_where_they_are_learnt(make_weighted, seq_len):
    shard = make_weighted(thirds)
    batches = EvaluationBatches(shard, seq_len, 1000, np.ones(1000, np.int64), rows_per_batch=2)
    scored = [batches[index] for index in range(len(batches))]
    labels = torch.cat([each.batch.labels_BS.flatten() for each in scored])
    found = labels[labels != IGNORED_LABEL].tolist()
    starts = {0, *np.cumsum(LENGTHS).tolist()}
    assert found == [1 + t for t in range(sum(LENGTHS)) if thirds(t) and t not in starts]
    assert sum(each.num_bytes for each in scored) == len(found)


def test_few_held_out_conversations_are_spread_evenly(make_weighted):
    batches = EvaluationBatches(make_weighted(thirds), 12, 30, np.ones(1000, np.int64))
    assert len(batches) == 2
    assert [batches[row].batch.ids_BS[0, 0].item() for row in range(2)] == [1, 26]  # rows 0 and 3 of 6


def test_samples_of_conversations_are_whole_documents(make_weighted):
    shard = make_weighted(lambda t: 1)
    batches = EvaluationBatches(shard, max(LENGTHS), DrawnSamples(3, 42), np.ones(1000, np.int64))
    chosen = DrawnSamples(3, 42).of(len(LENGTHS))
    expected = [list(shard.document(number)) for number in chosen]
    found = []
    for each in batches:
        (lengths,), ids = each.batch.document_lengths, each.batch.ids_BS[0].tolist()
        for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
            found.append(ids[start : start + length])
    assert [document for document in found if document in expected] == expected
    assert sum(each.batch.num_label_tokens for each in batches) == sum(LENGTHS[n] - 1 for n in chosen)


def test_a_longer_held_out_conversation_is_cut(make_weighted):
    batches = EvaluationBatches(make_weighted(lambda t: 1), 8, 1000, np.ones(1000, np.int64))
    assert {length for each in batches for row in each.batch.document_lengths for length in row} <= set(range(1, 9))
    assert sum(each.batch.num_label_tokens for each in batches) == sum(LENGTHS) - len(LENGTHS)


def test_a_run_does_not_go_on_with_other_weights(make_weighted):
    first, second = (Curriculum(stream_config(s, [{"steps": 9}]), s) for s in _with(make_weighted, thirds, lambda t: 1))
    first.stream(0, {})
    with pytest.raises(CheckpointError, match="source 'chat'"):
        second.load_state_dict(first.state_dict(), {"phase0": 4})


def _with(make_weighted, *weights):
    return [{"chat": make_weighted(weight, f"weighted-{number}")} for number, weight in enumerate(weights)]


def test_fill_in_the_middle_does_not_take_weights_apart(make_weighted, tokenizer_dir):
    shards = {"code": make_weighted(thirds)}
    config = stream_config(shards, [{"steps": 1, "fim_rate": 0.5}], code={"code": True})
    data = config.data.model_copy(update={"tokenizer": tokenizer_dir})
    with pytest.raises(DataError, match="source 'code': fim_rate does not apply to documents"):
        Curriculum(config.model_copy(update={"data": data}), shards)


def test_weights_travel_to_the_nodes_disk(make_weighted, tmp_path):
    shards = {"chat": make_weighted(thirds)}
    data = stream_config(shards, [{"steps": 1}]).data.model_copy(update={"cache_dir": tmp_path / "cache"})
    copy_shards(data)
    copy = TokenShard(local_prefix(data.sources[0], data))
    copy.verify()
    assert copy.identity() == shards["chat"].identity()
