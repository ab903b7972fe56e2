"""The search for a layout: what it finds, that it finds the same every time, and what more memory does to it."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.search.fewest import fewest_devices
from glmforge.plan.search.search import USABLE, LayoutSearch, SearchResult, search_layouts
from glmforge.plan.search.space import Space
from glmforge.plan.search.winner import changed_settings, other_phases, settings_words, write_winner

CONFIGS = Path(__file__).parents[4] / "configs"
SMALL = CONFIGS / "scaled_down_64gpu.yaml"
WORLD_SIZE = 16


@cache
def run() -> RunConfig:
    return load_config(SMALL, ["phases.0.batch_size=64", "phases.0.batch_ramp=null"])


def machine(memory: float = 80e9) -> Machine:
    """H100s with so many bytes each."""
    known = find_machine("H100 SXM")
    return replace(known, accelerator=known.accelerator._replace(memory_bytes=int(memory)))


@cache
def found(memory: float = 80e9) -> SearchResult:
    return search_layouts(run(), WORLD_SIZE, machine(memory), phase="general")


def settings_of(result: SearchResult) -> list[str]:
    own = run().parallel
    return [settings_words(changed_settings(one.config, one.layout, own)) for one in result.ranked]


def test_what_is_found_fits_obeys_the_rules_and_is_ranked() -> None:
    result = found()
    assert result.num_layouts >= result.num_fitting > 20
    seconds = [candidate.time.seconds for candidate in result.ranked]
    assert seconds == sorted(seconds)
    for candidate in result.ranked:
        assert candidate.memory.peak <= USABLE * 80e9
        assert resolve_layout(candidate.config, WORLD_SIZE) == candidate.layout
    assert len(set(settings_of(result))) == len(result.ranked)


def test_nothing_found_beats_what_lies_on_the_front() -> None:
    result = found()
    front = result.pareto
    assert front[0] == result.ranked[0]
    for candidate in result.ranked:
        assert any(
            one.time.seconds <= candidate.time.seconds and one.memory.peak <= candidate.memory.peak for one in front
        )


def test_the_same_question_has_the_same_answer() -> None:
    again = search_layouts(run(), WORLD_SIZE, machine(), phase="general")
    assert settings_of(again) == settings_of(found())


def test_few_micro_batches_are_pipelined_by_gpipe_and_many_are_not() -> None:
    """1f1b refuses fewer micro-batches than pipeline ranks; gpipe does the same with them."""
    result = search_layouts(
        load_config(SMALL, ["phases.0.batch_size=32", "phases.0.batch_ramp=null"]),
        WORLD_SIZE,
        machine(),
        phase="general",
    )
    pipelined = [one for one in (*result.ranked, *found().ranked) if one.layout.pp > 1]
    schedules = {"gpipe": 0, "1f1b": 0}
    for one in pipelined:
        phase, layout = one.config.phases[0], one.layout
        assert layout.micro_batch_size is not None
        num = phase.batch_size // layout.data_ranks // layout.micro_batch_size
        if (schedule := one.config.parallel.pipeline_schedule) in schedules:
            schedules[schedule] += 1
            assert (num < layout.pp) == (schedule == "gpipe")
    assert all(schedules.values())


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 80), st.integers(2, 80))
def test_more_memory_never_fits_less(first: int, second: int) -> None:
    less, more = sorted((first, second))
    space = Space(load_phase(), 8, 8)
    fitting = [
        {
            (fit.layout, fit.config.parallel.pipeline_schedule)
            for fit in LayoutSearch(space, machine(1e9 * size)).smallest()
        }
        for size in (less, more)
    ]
    assert fitting[0] <= fitting[1]


@cache
def load_phase() -> RunConfig:
    config = run()
    return config.model_copy(update={"phases": config.phases[:1]})


def test_the_least_recomputation_that_fits_is_taken() -> None:
    """Of one layout, as memory shrinks."""
    space = Space(load_phase(), 8, 8)
    (axes,) = [axes for axes in space.axes() if axes[:-1] == (1, 1, 8, 1, 1, 8) and axes.micro_batch_size == 4]
    taken = []
    for memory in (141e9, 80e9, 40e9):
        resolved = space.resolve(axes, "1f1b", "full")
        assert resolved is not None
        fit = LayoutSearch(space, machine(memory)).least_recomputed(*resolved)
        taken.append(fit.config.parallel.recompute if fit else None)
    assert taken == ["none", "selective", "full"]


def test_fewer_devices_are_needed_if_each_has_more_memory() -> None:
    numbers = [fewest_devices(run(), machine(memory), most=64, phase="general") for memory in (20e9, 40e9, 140e9)]
    sizes = [fit.layout.world_size if fit else 65 for fit in numbers]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_the_winner_is_a_run_that_extends_the_user_s(tmp_path: Path) -> None:
    best = found().ranked[0]
    overrides = ["phases.0.batch_size=64", "phases.0.batch_ramp=null"]
    path = tmp_path / "best.yaml"
    write_winner(best, run(), str(SMALL), overrides, path, ["a note"], num_nodes=2)
    read = load_config(path)
    assert read.phases == run().phases
    assert read.parallel == best.config.parallel
    assert read.fault_tolerance.min_nodes == 2  # the file asks for four nodes
    write_winner(best, run(), str(SMALL), overrides, path, [], num_nodes=2)  # its own file may be written again
    path.write_text("name: mine\n")
    with pytest.raises(ConfigError, match="not written by a search"):
        write_winner(best, run(), str(SMALL), overrides, path, [], num_nodes=2)


def test_other_phases_that_the_winner_does_not_suit_are_named() -> None:
    lines = other_phases(found().ranked[0], run(), "general", int(USABLE * 80e9))
    assert [line.split()[1] for line in lines] == ["code_and_reasoning", "long_context"][-len(lines) :]
    assert lines
