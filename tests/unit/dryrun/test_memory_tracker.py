"""The memory tracker against torch's own, and on operators whose bytes can be counted by hand."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from glmforge.dryrun.tracker import MemoryTracker
from glmforge.model.transformer import GlmMoe
from glmforge.plan.memory.purposes import Purpose
from helpers.models import tiny_config


def peak_of(tracker: MemoryTracker) -> int:
    level = peak = 0
    for _, change in tracker.log:
        level += change
        peak = max(peak, level)
    return peak


def test_storages_count_from_their_birth_to_their_death() -> None:
    with FakeTensorMode(), MemoryTracker() as tracker:
        kept = torch.empty(1000)
        view = kept[:10].view(2, 5)
        dropped = torch.empty(500)
        del dropped
        other = kept + 1
        del kept, other
        assert view.shape == (2, 5)  # holds the whole storage
        level = sum(change for _, change in tracker.log)
    assert level == 4000
    assert peak_of(tracker) == 8000


def test_resized_storages_are_gathered_weights() -> None:
    with MemoryTracker() as tracker:
        gathered = torch.empty(100)
        gathered.untyped_storage().resize_(0)
        level_freed = sum(change for _, change in tracker.log)
        gathered.untyped_storage().resize_(400)
    assert level_freed == 0
    assert sum(change for _, change in tracker.log) == 400
    assert {storage.purpose for storage, _ in tracker.log} == {Purpose.GATHERED}


def test_torch_is_left_as_it_was() -> None:
    before = torch.UntypedStorage.resize_
    with MemoryTracker():
        assert torch.UntypedStorage.resize_ is not before
    assert torch.UntypedStorage.resize_ is before


def step_of_a_model() -> None:
    model = GlmMoe(tiny_config())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(torch.randn_like(tensor) * 0.02)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.arange(64).view(2, 32)
    output = model(ids)
    (output.main.float().square().mean() + output.mtp[0].float().square().mean()).backward()
    optimizer.step()


def test_it_agrees_with_torch_s_tracker() -> None:
    theirs = MemTracker()
    with theirs, MemoryTracker() as ours:
        step_of_a_model()
    expected = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]

    assert peak_of(ours) == expected
