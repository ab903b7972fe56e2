from collections import Counter

import numpy as np
import pytest

from glmforge.data.stream.curriculum import Curriculum
from glmforge.errors import DataError
from helpers.stream_runs import stream_config

WEIGHTS = {"web": {"weight": 3}, "code": {"weight": 1}}


@pytest.fixture
def make_stream(make_curriculum):
    def make(names=("web", "code"), seed=1, **phase):
        fields = {"steps": 10, **phase}
        return make_curriculum([fields], names, seed=seed, **WEIGHTS).stream(0, {})

    return make


def ids(stream, samples):
    return [tuple(stream.sample(i).ids_S.tolist()) for i in samples]


@pytest.mark.parametrize(("first", "size"), [(0, 8), (3, 8), (12_345, 24)])
def test_batches_are_the_samples_whatever_the_world(make_stream, first, size):
    stream = make_stream()
    expected = ids(stream, range(first, first + size))
    for world in (1, 2, 4, 8):
        parts = [stream.batch(first, size, rank, world) for rank in range(world)]
        assert [tuple(row) for part in parts for row in part.ids_BS.tolist()] == expected
        assert sum((part.sample_indices for part in parts), ()) == tuple(range(first, first + size))


def test_every_epoch_of_a_source_visits_every_row_once(make_stream):
    stream = make_stream(["web"])
    epochs = [ids(stream, range(25 * epoch, 25 * epoch + 25)) for epoch in range(3)]
    assert len(set(epochs[0])) == 25
    assert {row[0] for row in epochs[0]} == set(range(1, 201, 8))
    for epoch in epochs[1:]:
        assert sorted(epoch) == sorted(epochs[0])
        assert epoch != epochs[0]


def test_epochs_hold_within_a_mixture(make_stream):
    """The first 100 samples are 75 of web (3 epochs) and 25 of code (2.5 epochs)."""
    stream = make_stream()
    rows = Counter(ids(stream, range(100)))
    web = [count for row, count in rows.items() if row[0] < 500]
    code = [count for row, count in rows.items() if row[0] >= 500]
    assert web == [3] * 25
    assert sorted(code) == [2] * 5 + [3] * 5
    assert stream.batch(0, 8).source_B == tuple(int(row[0] >= 500) for row in ids(stream, range(8)))


def test_order_of_the_list_of_sources_does_not_matter(make_curriculum):
    """But source_B counts in it. Of equal weights one must come first."""
    first, second = (
        make_curriculum([{"steps": 10}], names).stream(0, {}) for names in (["web", "code"], ["code", "web"])
    )
    assert ids(first, range(40)) == ids(second, range(40))
    assert [1 - source for source in first.batch(0, 40).source_B] == list(second.batch(0, 40).source_B)


@pytest.mark.parametrize("change", [{"seed": 2}, {"seq_len": 4}])
def test_seed_and_length_of_rows_change_the_order(make_stream, change):
    first, second = make_stream(), make_stream(**change)
    rows = [[place.row for place in stream.locate(range(10))] for stream in (first, second)]
    assert rows[0] != rows[1]


def test_order_is_the_same_on_every_machine(make_stream):
    """Pinned: a change would make old runs resume on other data."""
    assert [row[0] for row in ids(make_stream(), range(8))] == [564, 185, 145, 9, 508, 65, 73, 113]


def test_document_mask(make_stream):
    """Row 12 of web holds the border after token 100."""
    masked, plain = make_stream(["web"]), make_stream(["web"], document_mask=False)
    assert Counter(masked.sample(i).lengths for i in range(25)) == {(8,): 24, (4, 4): 1}
    assert {plain.sample(i).lengths for i in range(25)} == {(8,)}
    assert masked.batch(0, 25).num_label_tokens == 25 * 8 - 1
    assert plain.batch(0, 25).num_label_tokens == 25 * 8


def test_best_fit_rows(make_shard, tmp_path):
    """Documents of 3 and 5 tokens make full rows."""
    shard = make_shard([[1, 1, 0], [2, 2, 2, 2, 0]] * 6)
    config = stream_config({"web": shard}, [{"steps": 3, "packing": "best_fit"}], data={"packing_dir": str(tmp_path)})
    batch = Curriculum(config, {"web": shard}).stream(0, {}).batch(0, 6)
    assert {tuple(sorted(lengths)) for lengths in batch.document_lengths} == {(3, 5)}
    assert list(tmp_path.glob("*.pack-8-*"))


def test_far_samples_cost_no_more(make_stream):
    far = make_stream().batch(10**15, 8)
    assert far.sample_indices[0] == 10**15


def test_id_outside_the_models_vocabulary(make_shard):
    shard = make_shard([[*range(17), 1024]], vocab_size=2000)  # 18 tokens: rows of 8, and the last label is too large
    stream = Curriculum(stream_config({"web": shard}, [{"steps": 1}]), {"web": shard}).stream(0, {})
    stream.batch(0, 2)
    shard = make_shard([[*range(16), 1024]], "other", vocab_size=2000)
    stream = Curriculum(stream_config({"web": shard}, [{"steps": 1}]), {"web": shard}).stream(0, {})
    with pytest.raises(DataError, match=r"other: token 16 is id 1,024, outside the vocabulary of 1,024"):
        stream.batch(0, 2)


def test_source_shorter_than_a_row(make_stream):
    with pytest.raises(DataError, match=r"source 'code' .*81 tokens are too few for one sequence of seq_len 81"):
        make_stream(seq_len=81)
    assert np.array_equal(make_stream(["code"], seq_len=80).sample(0).ids_S, np.arange(500, 580))


def test_batch_that_ranks_cannot_share(make_stream):
    with pytest.raises(DataError, match="batch_size 8: cannot be divided over 3 data ranks; choose a"):
        make_stream().batch(0, 8, 0, 3)
