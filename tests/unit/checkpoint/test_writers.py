"""Each part is written by one of the ranks that hold it, and the ranks write about equal amounts."""

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from glmforge.checkpoint.format.writers import deal_out

WHOLE = torch.Size((1000, 10))


def part(name: str, start: int, rows: int) -> WriteItem:
    offsets, sizes = torch.Size((start, 0)), torch.Size((rows, 10))
    data = TensorWriteData(ChunkStorageMetadata(offsets, sizes), TensorProperties(dtype=torch.float32), WHOLE)
    return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)


def rows_of(plans: list[SavePlan]) -> list[int]:
    return [sum(item.tensor_data.chunk.sizes[0] for item in plan.items if item.tensor_data) for plan in plans]


def names_of(plans: list[SavePlan]) -> list[list[str]]:
    return [[item.index.fqn for item in plan.items] for plan in plans]


def test_the_size_of_the_part_counts_and_not_that_of_the_tensor() -> None:
    """Both ranks hold all of it: one large part against four small ones."""
    held = [part(f"small{i}", 0, 25) for i in range(4)] + [part("large", 0, 100)]
    plans = deal_out([SavePlan(held), SavePlan(held)])
    assert rows_of(plans) == [100, 100]


def test_what_only_one_rank_has_counts_first() -> None:
    both = [part("a", 0, 40), part("b", 0, 50)]
    plans = deal_out([SavePlan([*both, part("own", 0, 90)]), SavePlan(both)])
    assert names_of(plans) == [["own"], ["a", "b"]]


def test_parts_of_one_tensor_are_different_things() -> None:
    first, second = part("x", 0, 10), part("x", 10, 10)
    plans = deal_out([SavePlan([first]), SavePlan([second]), SavePlan([second])])
    assert rows_of(plans) == [10, 10, 0]
