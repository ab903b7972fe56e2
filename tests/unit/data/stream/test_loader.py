import pytest
import torch

from glmforge.data.stream.loader import Loader
from glmforge.data.stream.phase import PhaseStream, Source
from glmforge.errors import DataError


@pytest.fixture
def stream(make_shard):
    shard = make_shard([range(1, 101), range(101, 202)])
    return PhaseStream([Source("web", shard)], seq_len=8, batch_size=4, vocab_size=1000)


def same(first, second):
    return (
        torch.equal(first.ids_BS, second.ids_BS)
        and torch.equal(first.labels_BS, second.labels_BS)
        and first.document_lengths == second.document_lengths
        and first.sample_indices == second.sample_indices
    )


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 2)])
def test_batches_of_a_phase(stream, num_workers, rank, world):
    loader = Loader(stream, 7, rank=rank, world=world, num_workers=num_workers)
    batches = list(loader)
    assert len(batches) == 7
    assert all(same(batch, stream.batch(step, rank, world)) for step, batch in enumerate(batches))
    assert loader.samples_consumed == 28


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_goes_on_with_the_next_batch(stream, num_workers):
    """What reading processes had prepared but not handed out is not consumed."""
    loader = Loader(stream, 7, num_workers=num_workers)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = Loader(stream, 7, num_workers=num_workers)
    resumed.samples_consumed = loader.samples_consumed
    rest = list(resumed)
    assert [batch.sample_indices[0] for batch in rest] == [12, 16, 20, 24]


def test_finished_phase(stream):
    loader = Loader(stream, 7)
    loader.samples_consumed = 28
    assert list(loader) == []


def test_place_inside_a_batch(stream):
    loader = Loader(stream, 7)
    loader.samples_consumed = 6
    with pytest.raises(DataError, match="batch_size 4: does not divide the 6 samples"):
        next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_global_random_state_is_left_alone(stream, num_workers):
    before = torch.get_rng_state()
    list(Loader(stream, 2, num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)
