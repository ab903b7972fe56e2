"""What `check_lineage` demands of a run's notes, shown on notes of a run that was killed once."""

from pathlib import Path
from typing import Any

import pytest

from glmforge.config import RunConfig
from helpers.chaos import run_config
from helpers.lineage import Launch, Notes, check_lineage, check_records, lineage, restarts
from helpers.tiny_data import TinyData

WORLD_SIZE, NUM_STEPS, RESUMED = 4, 9, 4
COPIES = [{0, 1}, {2, 3}]
PHASES = [{"name": "main", "steps": NUM_STEPS, "seq_len": 32, "batch_size": 4}]


@pytest.fixture
def config(tiny_data: TinyData, tmp_path: Path) -> RunConfig:
    return run_config(tiny_data, tmp_path, phases=PHASES)


def notes(first: int, last: int) -> tuple[Notes, Notes]:
    """What four ranks note that take these steps."""
    given: Notes = {
        step: {
            rank: {"phase": "main", "data_rank": rank, "samples": [4 * (step - 1) + rank]} for rank in range(WORLD_SIZE)
        }
        for step in range(first, last + 1)
    }
    return given, {step: {rank: {"loss": 1 / step} for rank in of_step} for step, of_step in given.items()}


@pytest.fixture
def launches() -> list[Launch]:
    """Killed in step 6, after step 4 was saved."""
    first, second = notes(1, 6), notes(RESUMED + 1, NUM_STEPS)
    return [
        Launch(WORLD_SIZE, "all", [-9] * WORLD_SIZE, 1, *first, 0.0, 0.0),
        Launch(WORLD_SIZE, "none", [0] * WORLD_SIZE, RESUMED + 1, *second, None, 0.0),
    ]


def records(launches: list[Launch]) -> list[dict[str, Any]]:
    return [{"step": counted.step, "loss": counted.loss} for counted in lineage(launches)]


def test_a_run_that_was_killed_once(config: RunConfig, launches: list[Launch]) -> None:
    steps = lineage(launches)
    check_lineage(config, steps)
    check_records(records(launches), steps)
    assert restarts(launches) == [0, RESUMED]
    assert [counted.step for counted in steps if counted.is_left] == [RESUMED]


@pytest.mark.parametrize("dead", [[2], [3], [2, 3], [0, 1], [0]])
def test_a_node_may_have_died_before_it_noted_what_another_saved(
    config: RunConfig, launches: list[Launch], dead: list[int]
) -> None:
    written = records(launches)
    for rank in dead:
        del launches[0].taken[RESUMED][rank]
    steps = lineage(launches)
    check_lineage(config, steps, COPIES)
    check_records(written, steps)
    without = [record for record in written if record["step"] != RESUMED]
    if 0 in dead:
        check_records(without, steps)  # rank 0 died before it wrote the record
    else:
        with pytest.raises(AssertionError):
            check_records(without, steps)
    with pytest.raises(AssertionError, match=r"step 4 was gone on from, but was noted by ranks"):
        check_lineage(config, steps)


@pytest.mark.parametrize(("launch", "step"), [(0, RESUMED - 1), (1, RESUMED + 1), (1, NUM_STEPS)])
def test_a_rank_that_went_on_has_noted_all_steps(
    config: RunConfig, launches: list[Launch], launch: int, step: int
) -> None:
    del launches[launch].taken[step][3]
    with pytest.raises(AssertionError, match=rf"step {step} was noted by ranks \[0, 1, 2\] of 4"):
        check_lineage(config, lineage(launches), COPIES)


@pytest.mark.parametrize("samples", [[13], [12, 13], []])
def test_samples_twice_in_another_order_or_left_out(
    config: RunConfig, launches: list[Launch], samples: list[int]
) -> None:
    launches[0].given[RESUMED][0]["samples"] = samples
    with pytest.raises(AssertionError):
        check_lineage(config, lineage(launches), COPIES)


@pytest.mark.parametrize("changes", [{"loss": 0.25}, {"step": 8}])
def test_records_of_another_course(launches: list[Launch], changes: dict[str, Any]) -> None:
    written = records(launches)
    written[2] |= changes
    with pytest.raises(AssertionError):
        check_records(written, lineage(launches))
