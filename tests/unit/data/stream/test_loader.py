import pytest
import torch

from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.loader import Loader
from glmforge.data.stream.plan import BatchRange, planned_batches
from glmforge.errors import DataError
from helpers.children import children_from_now_on
from helpers.stream_runs import stream_config

PHASES = [{"steps": 7, "batch_size": 4, "batch_ramp": {"start": 2, "increment": 2, "tokens": 32}}]


@pytest.fixture
def stream(make_curriculum):
    return make_curriculum(PHASES).stream(0, {})


@pytest.fixture
def phase(shards):
    return stream_config(shards, PHASES).phases[0]


def same(first, second):
    return (
        torch.equal(first.ids_BS, second.ids_BS)
        and torch.equal(first.labels_BS, second.labels_BS)
        and first.document_lengths == second.document_lengths
        and first.sample_indices == second.sample_indices
        and first.source_B == second.source_B
    )


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 2)])
def test_batches_of_a_phase(stream, phase, num_workers, rank, world):
    started = children_from_now_on()
    planned = list(planned_batches(phase, 0))
    loader = Loader(stream, planned_batches(phase, 0), rank=rank, world=world, num_workers=num_workers)
    batches = list(loader)
    assert len(batches) == len(planned) == 7
    for batch, (first, size) in zip(batches, planned, strict=True):
        assert same(batch, stream.batch(first, size, rank, world))
        assert batch.ids_BS.dtype == batch.labels_BS.dtype == torch.int64
    assert started() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_skipped_samples(stream, phase, num_workers):
    batches = list(Loader(stream, planned_batches(phase, 4, [(8, 15)]), num_workers=num_workers))
    assert [batch.sample_indices[0] for batch in batches] == [4, 15, 19, 23]


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 2), (1, 1), (2, 3)])
def test_batches_are_planned_no_further_than_they_are_read_ahead(stream, num_workers, prefetch):
    planned = []

    def endless():
        while True:
            planned.append(BatchRange(4 * len(planned), 4))
            yield planned[-1]

    batches = iter(Loader(stream, endless(), num_workers=num_workers, prefetch=prefetch))
    for _ in range(5):
        next(batches)
    batches.close()
    assert len(planned) <= 5 + num_workers * prefetch


def test_closing_early_ends_the_reading_processes(stream, phase):
    started = children_from_now_on()
    batches = iter(Loader(stream, planned_batches(phase, 0), num_workers=2))
    next(batches)
    assert len(started()) == 2
    batches.close()
    assert started() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_reading_process_refuses_is_one_line(make_shard, num_workers):
    started = children_from_now_on()
    shard = make_shard([range(20), [5] * 20 + [1500]], vocab_size=2000)
    config = stream_config({"web": shard}, [{"steps": 2}])
    stream = Curriculum(config, {"web": shard}).stream(0, {})
    with pytest.raises(DataError) as caught:
        list(Loader(stream, planned_batches(config.phases[0], 0), num_workers=num_workers))
    assert str(caught.value).startswith(f"{shard.prefix}: token 40 is id 1,500, outside the vocabulary of 1,024")
    assert "\n" not in str(caught.value)
    assert started() == []


def test_no_batches(stream, phase):
    assert list(Loader(stream, planned_batches(phase, phase.num_samples), num_workers=1)) == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_global_random_state_is_left_alone(stream, phase, num_workers):
    before = torch.get_rng_state()
    list(Loader(stream, planned_batches(phase, 0), num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_pinning_without_a_gpu_does_nothing(stream, phase, recwarn):
    batches = list(Loader(stream, planned_batches(phase, 0), pin_memory=True))
    assert all(batch.ids_BS.is_pinned() == torch.cuda.is_available() for batch in batches)
    assert not recwarn.list


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_batches_reach_the_gpu_whole(stream, phase, num_workers):
    for batch in Loader(stream, planned_batches(phase, 0), num_workers=num_workers, pin_memory=True):
        assert batch.ids_BS.is_pinned()
        assert batch.labels_BS.is_pinned()
        assert torch.equal(batch.to("cuda").ids_BS.cpu(), batch.ids_BS)
