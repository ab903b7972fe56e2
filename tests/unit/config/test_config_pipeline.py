"""The spread of layers over pipeline stages against all spreads there are, and who runs which stage."""

import itertools

import pytest

from glmforge.config.model import ModelConfig
from glmforge.config.parallel import ParallelConfig
from glmforge.config.pipeline import balanced_split, layer_costs, stages_of_rank, stages_per_rank
from helpers.models import tiny_config

MODELS = {
    "tiny": tiny_config(num_hidden_layers=7),
    "all moe": tiny_config(num_hidden_layers=6, first_k_dense_replace=0),
    "dear dense layers": tiny_config(num_hidden_layers=7, first_k_dense_replace=3, intermediate_size=400),
    "dear head": tiny_config(num_hidden_layers=6, vocab_size=4096),
    "no mtp": tiny_config(num_hidden_layers=7, num_nextn_predict_layers=0),
    "cheap head": tiny_config(
        num_hidden_layers=7, num_nextn_predict_layers=0, vocab_size=8, eos_token_id=[3], pad_token_id=3
    ),
}


def stage_costs(model: ModelConfig, split: tuple[int, ...]) -> list[int]:
    costs, tail = layer_costs(model)
    ends = list(itertools.accumulate(split))
    sums = [sum(costs[end - layers : end]) for end, layers in zip(ends, split, strict=True)]
    return [*sums[:-1], sums[-1] + tail]


def all_splits(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    """Every stage but the last has a layer."""
    counts = itertools.product(range(1, num_layers + 1), repeat=num_stages - 1)
    return [(*first, num_layers - sum(first)) for first in counts if sum(first) <= num_layers]


@pytest.mark.parametrize("num_stages", [2, 3, 4, 6])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_no_spread_has_a_cheaper_dearest_stage(model: ModelConfig, num_stages: int) -> None:
    split = balanced_split(model, num_stages)
    assert len(split) == num_stages
    assert sum(split) == model.num_hidden_layers
    assert min(split[:-1]) >= 1
    dearest = {other: max(stage_costs(model, other)) for other in all_splits(model.num_hidden_layers, num_stages)}
    assert max(stage_costs(model, split)) == min(dearest.values())
    equals = [other for other, cost in dearest.items() if cost == min(dearest.values())]
    squares = {other: sum(cost**2 for cost in stage_costs(model, other)) for other in equals}
    assert squares[split] == min(squares.values())


def test_the_head_takes_layers_from_the_last_stage() -> None:
    assert balanced_split(MODELS["dear head"], 2) == (6, 0)
    assert balanced_split(MODELS["cheap head"], 7) == (1,) * 7


def test_costs_are_the_matrices_that_a_token_meets() -> None:
    model = tiny_config(num_hidden_layers=2, first_k_dense_replace=1)
    attention = 48 * 16 * (4 + 2 + 2) + 4 * 16 * 48
    dense, moe = attention + 3 * 48 * 80, attention + 8 * 48 + 3 * 3 * 48 * 32
    head = 512 * 48
    assert layer_costs(model) == ([dense, moe], head + moe + 2 * 48 * 48 + head)


@pytest.mark.parametrize(
    ("schedule", "per_rank", "expected"),
    [
        ("1f1b", 1, [[0], [1], [2]]),
        ("interleaved_1f1b", 2, [[0, 3], [1, 4], [2, 5]]),
        ("looped_bfs", 3, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
        ("zbv", 2, [[0, 5], [1, 4], [2, 3]]),
        ("dualpipev", 2, [[0, 5], [1, 4], [2, 3]]),
    ],
)
def test_stages_of_each_rank(schedule: str, per_rank: int, expected: list[list[int]]) -> None:
    assert [stages_of_rank(schedule, rank, 3, per_rank) for rank in range(3)] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),
        ({"pipeline_schedule": "gpipe"}, 1),
        ({"pipeline_schedule": "interleaved_1f1b"}, 2),
        ({"pipeline_schedule": "looped_bfs", "pipeline_stages_per_rank": 3}, 3),
        ({"pipeline_schedule": "zbv", "pipeline_stages_per_rank": 2}, 2),
        ({"pp": 1, "pipeline_schedule": "zbv"}, 1),
    ],
)
def test_stages_per_rank(changes: dict, expected: int) -> None:
    assert stages_per_rank(ParallelConfig(**({"pp": 2} | changes))) == expected
