import itertools
from typing import Any

import pytest

from glmforge.config import load_config, resolve_layout
from glmforge.config.layout import AXES, Layout
from glmforge.errors import ConfigError

LAYOUTS = [
    Layout(),
    Layout(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2, ep=1),
    Layout(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2, ep=4),
    Layout(dp_shard=3, cp=2, tp=2, ep=6),
    Layout(pp=3, dp_shard=4, tp=2, ep=8),
    Layout(dp_replicate=3, cp=4, ep=2),
]


@pytest.mark.parametrize(
    ("overrides", "world_size", "mesh", "micro_batches"),
    [
        ([], 1, (1, 1), 1),
        ([], 4, (1, 4), 1),
        (["parallel.dp_replicate=2"], 4, (2, 2), 1),
        (["parallel.dp_replicate=2", "parallel.dp_shard=4"], 8, (2, 4), 1),
        (["parallel.micro_batch_size=2"], 1, (1, 1), 8),
        (["parallel.micro_batch_size=2"], 4, (1, 4), 2),
    ],
)
def test_layouts(
    run_yaml: str, overrides: list[str], world_size: int, mesh: tuple[int, int], micro_batches: int
) -> None:
    config = load_config(run_yaml, overrides)  # batch_size 16
    layout = resolve_layout(config, world_size)
    (phase,) = config.phases
    assert (layout.dp_replicate, layout.dp_shard) == mesh
    assert layout.data_ranks == world_size
    assert layout.rank_batch_size(phase) * world_size == phase.batch_size
    assert layout.num_micro_batches(phase) == micro_batches


@pytest.mark.parametrize(
    ("overrides", "world_size", "message"),
    [
        (
            ["parallel.dp_replicate=3"],
            4,
            "parallel.dp_replicate: 3 does not divide the 4 processes: set it to 2 or",
        ),
        (
            ["parallel.dp_shard=2"],
            4,
            r"1 x 2 = 2, but there are 4 processes: set dp_shard to 4 \(or 'auto'\)",
        ),
        ([], 3, "phases.0.batch_size: 16 sequences do not divide over 3 data ranks: set it to 15 or 18"),
        (
            ["parallel.micro_batch_size=3"],
            2,
            "micro_batch_size: 3 does not divide the 8 sequences .* phases.0.batch_size = 16: "
            "set it to 2, or phases.0.batch_size to 12 or 18",
        ),
        (
            ["parallel.ep=2", "parallel.ep_overlap=true"],
            16,
            "parallel.ep_overlap: cuts a rank's 1 sequences of phase '.*' in halves: set parallel.micro_batch_size to",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_a_fix(
    run_yaml: str, overrides: list[str], world_size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_layout(load_config(run_yaml, overrides), world_size)


def test_every_phase_is_checked(run_yaml: str) -> None:
    phases = ", ".join(f"{{name: {n}, steps: 1, seq_len: 8, batch_size: {b}}}" for n, b in [("a", 4), ("b", 6)])
    with pytest.raises(ConfigError, match=r"phases\.1\.batch_size: 6 sequences"):
        resolve_layout(load_config(run_yaml, [f"phases=[{phases}]"]), 4)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_coordinates_are_places_in_the_grid(layout: Layout) -> None:
    """Ranks counted through the grid, the last axis fastest; experts count a replica's ranks anew, ep fastest."""
    rank = itertools.count()
    for places in itertools.product(*(range(layout.size(axis)) for axis in AXES)):
        _, _, dp_shard, cp, tp = places
        number = next(rank)
        found = layout.coordinates(number)
        assert {axis: found[axis] for axis in AXES} == dict(zip(AXES, places, strict=True))
        assert found["fsdp"] == [(s, c) for s in range(layout.dp_shard) for c in range(layout.cp)].index((dp_shard, cp))
        within = list(itertools.product(range(layout.dp_shard), range(layout.cp), range(layout.tp)))
        expert_grid = list(itertools.product(range(layout.efsdp), range(layout.ep)))
        assert (found["efsdp"], found["ep"]) == expert_grid[within.index((dp_shard, cp, tp))]
    assert next(rank) == layout.world_size


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_that_share_sequences_have_one_data_rank(layout: Layout) -> None:
    readers: dict[tuple[int, int], set[int]] = {}
    for rank in range(layout.world_size):
        where = layout.coordinates(rank)
        readers.setdefault((where["dp_replicate"], where["dp_shard"]), set()).add(layout.data_rank(rank))
    assert all(len(numbers) == 1 for numbers in readers.values())
    assert sorted(number for (number,) in readers.values()) == list(range(layout.data_ranks))


@pytest.mark.parametrize(
    ("parallel", "world_size", "expected"),
    [
        ("tp=2", 8, {"dp_shard": 4, "tp": 2, "fsdp": 4, "efsdp": 8}),
        ("tp=2 ep=4", 8, {"dp_shard": 4, "efsdp": 2}),
        ("pp=2 micro_batch_size=4", 4, {"dp_shard": 2, "stage_ranks": 2, "stage_layers": (3, 1)}),
        ("pp=2 micro_batch_size=4 pipeline_layers=[1,3]", 2, {"stage_layers": (1, 3)}),
        ("pp=2 micro_batch_size=4 pipeline_layers=[4,0]", 2, {"stage_layers": (4, 0)}),
        ("pp=2 micro_batch_size=4 pipeline_schedule=dualpipev", 2, {"dp_shard": 1}),
        ("context_method=ulysses cp=2", 2, {"cp": 2}),
    ],
)
def test_what_the_axes_leave(run_yaml: str, parallel: str, world_size: int, expected: dict[str, Any]) -> None:
    layout = resolve_layout(load_config(run_yaml, overrides(parallel)), world_size)
    assert layout.world_size == world_size
    assert {name: getattr(layout, name) for name in expected} == expected


def overrides(changes: str) -> list[str]:
    """Of a model of four layers; keys are those of `parallel` unless they name another section."""
    items = [item if item.startswith(("model.", "phases.")) else f"parallel.{item}" for item in changes.split()]
    return ["model.num_hidden_layers=4", *items]


@pytest.mark.parametrize(
    ("changes", "world_size", "message"),
    [
        ("tp=3", 4, "parallel.tp: 3 does not divide the 4 processes: set it to 2 or start 3 or 6 processes"),
        ("tp=2 dp_shard=2", 8, r"tp x dp_shard = 2 x 2 = 4, but there are 8 processes: set dp_shard to 4"),
        ("tp=8", 8, "parallel.tp: 8 does not divide model.num_attention_heads = 4: set it to 4"),
        ("tp=4", 4, "parallel.tp: 4 does not divide model.num_key_value_heads = 2: set it to 2"),
        ("tp=2 model.intermediate_size=129", 2, "parallel.tp: 2 does not divide model.intermediate_size = 129: .* 1"),
        (
            "tp=2 model.moe_intermediate_size=33",
            2,
            "parallel.tp: 2 does not divide model.n_shared_experts x moe_intermediate_size = 33",
        ),
        ("tp=2 model.vocab_size=513", 2, "parallel.tp: 2 does not divide model.vocab_size = 513"),
        ("ep=3", 3, "parallel.ep: 3 does not divide model.n_routed_experts = 8: set it to"),
        ("ep=4", 2, r"parallel.ep: 4 does not divide the dp_shard x cp x tp = 2 ranks it spans: set it to 2"),
        ("ep=4 dp_replicate=2", 4, "parallel.ep: 4 does not divide the dp_shard x cp x tp = 2 ranks"),
        ("ep=4 pp=2 micro_batch_size=1", 4, "parallel.ep: 4 does not divide the dp_shard x cp x tp = 2 ranks"),
        (
            "cp=4 phases.0.seq_len=252",
            4,
            "phases.0.seq_len: 252 tokens do not divide into 2 x cp x tp = 8 equal parts: set it to 248 or 256",
        ),
        ("tp=2 phases.0.seq_len=255", 2, "255 tokens do not divide into tp = 2 equal parts: set it to 254 or 256"),
        (
            "context_method=ulysses cp=4",
            4,
            "parallel.cp: 4 does not divide the 2 key/value heads of a tp rank, as ulysses needs",
        ),
        ("pp=8", 8, "parallel.pp: 8 x 1 stages are more than the model's 4 layers"),
        (
            "pp=2 pipeline_layers=[2,3]",
            2,
            r"pipeline_layers: \[2, 3\] are 2 stages with 5 layers; give pp x stages per rank = 2 numbers that add up "
            "to num_hidden_layers = 4",
        ),
        (
            "pp=4 pipeline_layers=[2,0,1,1]",
            4,
            "pipeline_layers: only the first and the last stage may have 0 layers",
        ),
        ("pipeline_layers=[4]", 1, "pipeline_layers, pipeline_stages_per_rank: need pp > 1"),
        ("pp=2 pipeline_stages_per_rank=2", 2, "pipeline_stages_per_rank: 1f1b has one stage per rank; set it to 1"),
        ("pp=2 pipeline_schedule=zbv pipeline_stages_per_rank=1", 2, "zbv has two stages per rank; set it to 2"),
        ("pp=2", 2, "makes 1 micro-batches in phase 'pretrain'; 1f1b needs at least pp = 2"),
        (
            "pp=2 pipeline_schedule=dualpipev micro_batch_size=8",
            2,
            "makes 2 micro-batches in phase 'pretrain'; dualpipev needs at least 2 x pp = 4: .* or choose 'zbv'",
        ),
        (
            "pp=2 pipeline_schedule=zbv",
            4,
            "makes a single micro-batch in phase 'pretrain', which zbv cannot train in bf16",
        ),
        (
            "pp=2 pipeline_schedule=interleaved_1f1b micro_batch_size=1 phases.0.batch_size=7",
            2,
            "makes 7 micro-batches in phase 'pretrain'; interleaved_1f1b needs a multiple of 3: 6 or 9",
        ),
        ("cpu_offload=true", 1, "parallel.cpu_offload: .*needs FSDP and at least two processes"),
    ],
)
def test_layouts_that_cannot_be_are_refused(run_yaml: str, changes: str, world_size: int, message: str) -> None:
    config = load_config(run_yaml, overrides(changes))
    with pytest.raises(ConfigError, match=message):
        resolve_layout(config, world_size)
