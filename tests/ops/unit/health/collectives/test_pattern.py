"""What is sent can be told from what is not, and sums of it are exact in every type."""

import pytest
import torch

from glmforge_ops.health.collectives import pattern
from glmforge_ops.health.collectives.kinds import DTYPES
from glmforge_ops.health.collectives.pattern import count_wrong, fill

NUM = 1000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 5, 16, 40])
def test_sums_are_exact_in_any_order(dtype: str, ranks: int) -> None:
    kind = getattr(torch, dtype)
    given = [fill(torch.zeros(NUM, dtype=kind), rank, summed_over=ranks) for rank in range(ranks)]
    for order in (given, given[::-1]):
        total = torch.zeros(NUM, dtype=kind)
        for one in order:
            total += one
        assert count_wrong(total, 0, summed_over=ranks) == 0
    assert count_wrong(total - given[0], 0, summed_over=ranks) > NUM // 4 * min(1, 16 / ranks)


def test_every_wrong_element_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern, "_PIECE", 64)  # several pieces, the last one not full
    found = fill(torch.zeros(NUM), 3, start=17)
    assert count_wrong(found, 3, start=17) == 0
    found[[0, 63, 64, NUM - 1]] = torch.tensor([torch.nan, torch.inf, -1, found[0] + 1])
    assert count_wrong(found, 3, start=17) == 4
    assert count_wrong(found, 4, start=17) > NUM // 2
    assert count_wrong(found, 3, start=18) > NUM // 2


def test_no_element_looks_as_if_nothing_had_come() -> None:
    assert (fill(torch.zeros(NUM), 5) > 0).all()
    assert pattern.POISON < 0
