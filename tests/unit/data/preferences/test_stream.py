"""Rows of pairs: both sides at the same place, nothing lost, and an order that only seed and epoch decide."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from glmforge.data.preferences.stream import PairStream, pack_pairs
from glmforge.data.stream.batch import Batch
from glmforge.errors import DataError
from glmforge.objectives.pairs import pairs_of
from helpers.preferences import random_pairs, random_stream


def test_every_pair_is_in_one_row_and_fits() -> None:
    lengths_P2 = np.random.default_rng(0).integers(1, 31, (400, 2))
    rows = pack_pairs(lengths_P2, 32)
    assert Counter(pair for row in rows for pair in row) == Counter(range(400))
    assert all((lengths_P2[row].sum(0) <= 31).all() for row in rows)
    # Two sides at once waste more than one; a row for each pair would need 400.
    assert len(rows) < 1.25 * lengths_P2.max(1).sum() / 31


def numbers(batch: Batch) -> list[int]:
    pairs = pairs_of(batch)
    return pairs.number_P[pairs.weight_P > 0].tolist()


def test_an_epoch_visits_every_pair_once_and_the_next_in_another_order() -> None:
    stream = random_stream()
    epochs = [
        [n for k in range(0, stream.num_samples, 2) for n in numbers(stream.batch(first + k, 2))]
        for first in (0, stream.num_samples)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(stream.num_pairs))] * 2
    assert epochs[0] != epochs[1]
    other = PairStream(stream.sources, 32, seed=4)
    assert numbers(other.batch(0, stream.num_samples)) != epochs[0]


def test_both_rows_have_the_same_pairs_and_labels_of_answers_alone() -> None:
    stream = random_stream(with_reference=True)
    batch = stream.batch(0, 4)
    for row in (0, 2):
        documents = list(zip(*(batch.document_lengths[row + side] for side in (0, 1)), strict=True))
        ends = [np.cumsum(batch.document_lengths[row + side]) - 1 for side in (0, 1)]
        assert len(documents) > 1
        for number in range(len(documents) - 1):
            marks = [int(batch.per_token["pair"][row + side, ends[side][number]]) for side in (0, 1)]
            assert marks[0] == marks[1] > 0
            source = batch.source_B[row]
            pair = marks[0] - 1 - int(stream.first_S[source])
            pairs = stream.sources[source]
            for side in (0, 1):
                start, length = pairs.starts_P2[pair, side], pairs.lengths_P2[pair, side]
                last = ends[side][number]
                first = last - length + 1
                assert np.array_equal(batch.ids_BS[row + side, first : last + 1], pairs.ids[start : start + length])
                labels = batch.labels_BS[row + side, first : last + 1].numpy()
                prompt = pairs.prompts_P[pair]
                assert (labels[: prompt - 1] == -100).all()
                assert np.array_equal(labels[prompt - 1 : -1], pairs.ids[start + prompt : start + length])
                assert labels[-1] == -100
                assert batch.per_token["margin"][row + side, last] == pairs.margins_P[pair]
                assert stream.reference_P2 is not None
                assert batch.per_token["reference_logprob"][row + side, last] == stream.reference_P2[marks[0] - 1, side]


def test_ranks_take_slices_of_the_same_batch() -> None:
    stream = random_stream()
    whole = stream.batch(0, 8)
    for world in (1, 2, 4):
        parts = [stream.batch(0, 8, rank, world) for rank in range(world)]
        assert [ids for part in parts for ids in part.ids_BS.tolist()] == whole.ids_BS.tolist()
    with pytest.raises(
        DataError, match=r"batch_size 8: .* each of 8 data ranks needs an even number; choose a multiple"
    ):
        stream.batch(0, 8, 0, 8)


def test_a_pair_that_nearly_fills_a_row_is_alone_in_it() -> None:
    pairs = random_pairs(1)
    pairs = replace(
        pairs,
        ids=np.arange(31 + 3, dtype=np.int32),
        is_trained=np.ones(34, bool),
        lengths_P2=np.array([[31, 3]]),
        prompts_P=np.array([1]),
    )
    batch = PairStream([pairs], 32, seed=0).batch(0, 2)
    assert batch.document_lengths == ((31, 1), (3, 29))
    assert numbers(batch) == [0]
