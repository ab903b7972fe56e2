import pytest

from glmforge.config import load_config, resolve_layout
from glmforge.errors import ConfigError


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
        (["parallel.dp_replicate=8"], 4, "set it to 4 or start 8 processes"),
        (
            ["parallel.dp_shard=2"],
            4,
            r"1 x 2 = 2, but there are 4 processes: set dp_shard to 4 \(or 'auto'\)",
        ),
        ([], 3, "phases.0.batch_size: 16 sequences do not divide over 3 data ranks: set it to 15 or 18"),
        ([], 32, "phases.0.batch_size: 16 sequences do not divide over 32 data ranks: set it to 32$"),
        (
            ["parallel.micro_batch_size=3"],
            2,
            "micro_batch_size: 3 does not divide the 8 sequences .* phases.0.batch_size = 16: "
            "set it to 2, or phases.0.batch_size to 12 or 18",
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
