"""Spans of a job's time: they cover every allocation exactly, and each cause gets what is its own."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.report.goodput_spans import Allocation, Attempt, Span, Step, Use, spans_of
from helpers.made_jobs import at


def seconds(spans: Sequence[Span], attempt: int | None = None) -> dict[str, float]:
    """Node-seconds by cause."""
    sums: dict[str, float] = defaultdict(float)
    for span in spans:
        if attempt is None or span.attempt == attempt:
            sums[span.use.value] += span.node_time.total_seconds()
    return dict(sums)


def attempt(
    number: int, begin: float, end: float, nodes: int = 1, *, steps: Sequence[Step] = (), **marks: float
) -> Attempt:
    goes_on, hung = (bool(marks.pop(name, False)) for name in ("goes_on", "hung"))
    times = {name: at(second) for name, second in marks.items()}
    return Attempt(number, at(begin), at(end), nodes, times, steps, hung, goes_on)


def steps(*rows: tuple[float, int, int, float]) -> list[Step]:
    """(time, last step, how many, seconds of training)."""
    return [Step(at(time), last, count, {Use.USEFUL: timedelta(seconds=useful)}) for time, last, count, useful in rows]


def test_an_attempt_from_start_to_stop() -> None:
    done = attempt(1, 5, 100, processes=10, joined=20, loaded=30, steps=steps((60, 3, 3, 25), (90, 6, 3, 30)))
    spans = spans_of([Allocation(at(0), at(104), 1)], [done])
    assert seconds(spans) == {"start": 5 + 15, "load": 10, "useful": 55, "other": 5, "stop": 10 + 4}
    assert seconds(spans, 1) == {"start": 15, "load": 10, "useful": 55, "other": 5, "stop": 14}


def test_parts_of_a_step() -> None:
    seconds_of = {Use.USEFUL: 20, Use.DATA: 3, Use.EVALUATION: 4, Use.SAVING: 2}
    parts = {use: timedelta(seconds=length) for use, length in seconds_of.items()}
    done = attempt(1, 0, 40, loaded=0, steps=[Step(at(30), 1, 1, parts)])
    spans = spans_of([Allocation(at(0), at(40), 2)], [done])
    assert seconds(spans) == {
        "useful": 20, "data": 3, "evaluation": 4, "saving": 2, "other": 1, "stop": 10, "spare": 40,
    }  # fmt: skip


def test_steps_that_are_done_again_are_not_useful() -> None:
    """The first attempt gets to step 10; the second begins after step 6: 4 of its 8 steps were done before."""
    first = attempt(1, 0, 100, loaded=0, steps=steps((100, 10, 10, 100)), decided=101)
    second = attempt(2, 110, 190, loaded=110, steps=steps((150, 10, 4, 40), (190, 14, 4, 40)))
    spans = spans_of([Allocation(at(0), at(190), 1)], [first, second])
    assert seconds(spans) == {"useful": 140, "recompute": 40, "checks": 1, "back-off": 9}


def test_a_roll_back_within_an_attempt() -> None:
    done = attempt(1, 0, 30, loaded=0, steps=steps((10, 10, 10, 10), (20, 10, 5, 10), (30, 15, 5, 10)))
    assert seconds(spans_of([Allocation(at(0), at(30), 1)], [done])) == {"useful": 20, "recompute": 10}


def test_a_hang_lasts_from_the_last_step_to_its_end() -> None:
    done = attempt(1, 0, 100, loaded=10, steps=steps((20, 1, 1, 10)), hung=True)
    assert seconds(spans_of([Allocation(at(0), at(100), 1)], [done])) == {"load": 10, "useful": 10, "hang": 80}


def test_an_attempt_that_goes_on_and_still_loads() -> None:
    now = attempt(1, 0, 50, processes=2, joined=5, goes_on=True)
    assert seconds(spans_of([Allocation(at(0), at(50), 1)], [now])) == {"start": 5, "load": 45}


def test_the_order_in_which_they_are_told_is_of_no_account() -> None:
    first = attempt(1, 0, 10, loaded=0, steps=steps((10, 10, 10, 10)))
    second = attempt(2, 12, 20, loaded=12, steps=steps((20, 14, 8, 8)))
    third = attempt(3, 50, 60, loaded=50, steps=steps((60, 20, 10, 10)))
    given = [Allocation(at(0), at(20), 1), Allocation(at(50), at(60), 1)]
    found = spans_of(given, [first, second, third])
    assert seconds(found) == {"useful": 10 + 4 + 6, "recompute": 4 + 4, "back-off": 2}
    assert spans_of(given[::-1], [third, second, first]) == found


def test_a_failure_before_the_first_step() -> None:
    assert seconds(spans_of([Allocation(at(0), at(9), 1)], [attempt(1, 1, 9)])) == {"start": 9}
    loading = attempt(1, 0, 9, processes=1, joined=4, fault=8)
    assert seconds(spans_of([Allocation(at(0), at(9), 1)], [loading])) == {"start": 4, "load": 4, "stop": 1}


def test_a_mark_behind_the_attempt_is_moved_to_its_end() -> None:
    done = attempt(1, 0, 20, loaded=30, steps=steps((35, 1, 1, 5)))
    assert seconds(spans_of([Allocation(at(0), at(40), 1)], [done])) == {"load": 20, "stop": 20}


def test_a_program_that_tells_nothing() -> None:
    done = attempt(1, 0, 100, processes=2, fault=90)
    assert seconds(spans_of([Allocation(at(0), at(100), 1)], [done])) == {
        "start": 2, "not measured": 88, "stop": 10,
    }  # fmt: skip


def test_spare_nodes_are_lost() -> None:
    done = attempt(1, 0, 10, nodes=3, loaded=0, steps=steps((10, 1, 1, 10)))
    assert seconds(spans_of([Allocation(at(0), at(10), 4)], [done])) == {"useful": 30, "spare": 10}


def test_the_time_in_the_queue_is_in_no_span() -> None:
    first = attempt(1, 0, 10, loaded=0, steps=steps((10, 1, 1, 10)))
    second = attempt(2, 1000, 1010, loaded=1000, steps=steps((1010, 2, 1, 10)))
    spans = spans_of([Allocation(at(0), at(10), 1), Allocation(at(1000), at(1010), 1)], [first, second])
    assert seconds(spans) == {"useful": 20}


def test_an_allocation_of_which_nothing_is_known() -> None:
    assert seconds(spans_of([Allocation(at(0), at(10), 2)], [])) == {"not measured": 20}


MOMENTS = st.integers(-10, 80).map(lambda half: at(half / 2 + 1e-6))
MARKS = st.dictionaries(st.sampled_from(["decided", "processes", "joined", "loaded", "fault"]), MOMENTS, max_size=5)
STEPS = st.lists(
    st.builds(
        Step,
        MOMENTS,
        st.integers(0, 40),
        st.integers(1, 12),
        st.dictionaries(
            st.sampled_from([Use.USEFUL, Use.DATA, Use.EVALUATION, Use.SAVING]),
            st.floats(0, 20).map(lambda length: timedelta(seconds=length)),
            max_size=4,
        ),
    ),
    max_size=4,
)
ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        number=st.integers(1, 9),
        begin=MOMENTS,
        end=MOMENTS,
        nodes=st.integers(1, 5),
        marks=MARKS,
        steps=STEPS,
        hung=st.booleans(),
        goes_on=st.booleans(),
    ),
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30), st.integers(5, 8)), min_size=1, max_size=4), ATTEMPTS)
def test_spans_add_up_to_what_was_allocated(drawn: list[tuple[int, int, int]], found: list[Attempt]) -> None:
    """Whatever clocks and files say: exactly, in whole microseconds, without a gap and without a second use."""
    allocations: list[Allocation] = []
    moment = 0
    for gap, length, nodes in drawn:
        allocations.append(Allocation(at(moment + gap), at(moment + gap + length), nodes))
        moment += gap + length
    spans = spans_of(allocations, found)
    allocated = [(each.end - each.begin) * each.nodes for each in allocations]
    assert sum((span.node_time for span in spans), timedelta()) == sum(allocated, timedelta())
    assert all(span.begin < span.end and span.nodes > 0 for span in spans)
    for each in allocations:
        inside = [span for span in spans if each.begin <= span.begin < each.end]
        moments = sorted({moment for span in inside for moment in (span.begin, span.end)})
        for left, right in itertools.pairwise(moments):
            assert sum(span.nodes for span in inside if span.begin <= left and right <= span.end) == each.nodes


def test_overlapping_allocations_count_once() -> None:
    spans = spans_of([Allocation(at(0), at(10), 1), Allocation(at(5), at(15), 1)], [])
    assert seconds(spans) == {"not measured": pytest.approx(15)}
    within = [Allocation(at(0), at(10), 1), Allocation(at(2), at(4), 1), Allocation(at(8), at(12), 1)]
    assert seconds(spans_of(within, [])) == {"not measured": pytest.approx(12)}
