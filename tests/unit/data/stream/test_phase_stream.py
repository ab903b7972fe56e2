from collections import Counter

import numpy as np
import pytest
import torch

from glmforge.data.stream.phase import PhaseStream, Source
from glmforge.errors import DataError

SEQ_LEN = 8


@pytest.fixture
def sources(make_shard):
    """Shards of 25 and 10 windows, whose ids tell them apart."""
    web = make_shard([range(1, 101), range(101, 202)], "web")
    code = make_shard([range(500, 581)], "code")
    return [Source("web", web, 3.0), Source("code", code, 1.0)]


def make_stream(sources, **changes):
    options = {"seq_len": SEQ_LEN, "batch_size": 8, "vocab_size": 1000, "seed": 1, "phase_index": 0}
    return PhaseStream(sources, **(options | changes))


def ids(stream, samples):
    return [tuple(stream.sample(i).ids_S.tolist()) for i in samples]


def test_batches_are_the_samples_whatever_the_world(sources):
    stream = make_stream(sources)
    for step in (0, 3, 1000):
        expected = ids(stream, range(step * 8, step * 8 + 8))
        for world in (1, 2, 4, 8):
            parts = [stream.batch(step, rank, world) for rank in range(world)]
            assert [tuple(row) for part in parts for row in part.ids_BS.tolist()] == expected
            assert sum((part.sample_indices for part in parts), ()) == tuple(range(step * 8, step * 8 + 8))


def test_samples_do_not_depend_on_the_batch_size(sources):
    small, large = make_stream(sources, batch_size=4), make_stream(sources, batch_size=8)
    rows = torch.cat([small.batch(4).ids_BS, small.batch(5).ids_BS])
    assert torch.equal(rows, large.batch(2).ids_BS)


def test_every_epoch_of_a_source_visits_every_window_once(sources):
    stream = make_stream(sources[:1])
    epochs = [ids(stream, range(25 * epoch, 25 * epoch + 25)) for epoch in range(3)]
    assert len(set(epochs[0])) == 25
    assert {row[0] for row in epochs[0]} == set(range(1, 201, 8))
    for epoch in epochs[1:]:
        assert sorted(epoch) == sorted(epochs[0])
        assert epoch != epochs[0]


def test_epochs_hold_within_a_mixture(sources):
    """The first 100 samples are 75 of web (3 epochs) and 25 of code (2.5 epochs)."""
    stream = make_stream(sources)
    rows = Counter(ids(stream, range(100)))
    web = [count for row, count in rows.items() if row[0] < 500]
    code = [count for row, count in rows.items() if row[0] >= 500]
    assert web == [3] * 25
    assert sorted(code) == [2] * 5 + [3] * 5
    assert stream.batch(0).source_B == tuple(int(row[0] >= 500) for row in ids(stream, range(8)))


@pytest.mark.parametrize("change", [{"seed": 2}, {"phase_index": 1}])
def test_seed_and_phase_change_the_order(sources, change):
    first, second = make_stream(sources), make_stream(sources, **change)
    assert ids(first, range(25)) != ids(second, range(25))
    assert first.fingerprint() != second.fingerprint()


def test_order_is_the_same_on_every_machine(sources):
    """Pinned: a change would make old runs resume on other data."""
    assert [row[0] for row in ids(make_stream(sources), range(8))] == [500, 73, 177, 89, 564, 137, 97, 49]


def test_document_mask(sources):
    """Window 12 of web holds the border after token 100."""
    masked, plain = make_stream(sources[:1]), make_stream(sources[:1], document_mask=False)
    lengths = Counter(masked.sample(i).lengths for i in range(25))
    assert lengths == {(8,): 24, (4, 4): 1}
    assert {plain.sample(i).lengths for i in range(25)} == {(8,)}
    assert masked.batch(0).num_label_tokens + masked.batch(1).num_label_tokens >= 2 * 64 - 1


def test_fingerprint_names_what_the_samples_depend_on(sources):
    fingerprint = make_stream(sources).fingerprint()
    assert fingerprint == make_stream(sources, batch_size=16).fingerprint()
    assert fingerprint["sources"][1]["num_tokens"] == 81
    changed = [
        make_stream(sources, seq_len=4),
        make_stream(sources, document_mask=False),
        make_stream(sources[::-1]),
        make_stream([sources[0], Source("code", sources[1].shard, 2.0)]),
        make_stream([sources[0], Source("code", sources[0].shard, 1.0)]),
    ]
    assert all(stream.fingerprint() != fingerprint for stream in changed)


def test_order_costs_no_memory(sources):
    """The 10^15th sample is as near as the first."""
    far = make_stream(sources).batch(10**14)
    assert far.sample_indices[0] == 8 * 10**14


def test_id_outside_the_models_vocabulary(sources):
    stream = make_stream(sources, vocab_size=501)
    with pytest.raises(DataError, match=r"code: token \d+ is id \d+, outside the vocabulary of 501"):
        [stream.batch(step) for step in range(4)]


def test_source_shorter_than_a_window(sources):
    with pytest.raises(DataError, match=r"source 'code' .*81 tokens are too few for one sequence of seq_len 81"):
        make_stream(sources, seq_len=81)
    assert np.array_equal(make_stream(sources[1:], seq_len=80).sample(0).ids_S, np.arange(500, 580))


def test_batch_that_ranks_cannot_share(sources):
    with pytest.raises(DataError, match="batch_size 8: cannot be shared by 3 data ranks"):
        make_stream(sources).batch(0, 0, 3)


def test_two_sources_of_one_name(sources):
    with pytest.raises(DataError, match="two have one name"):
        make_stream([sources[0], sources[0]])
