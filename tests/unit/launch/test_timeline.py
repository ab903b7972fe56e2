"""Spans of a job's time: they cover every allocation exactly, and each cause gets what is its own."""

import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.launch.timeline import Allocation, Attempt, Span, Step, Use, spans_of
from helpers.made_jobs import at


def seconds(spans: Sequence[Span], attempt: int | None = None) -> dict[str, float]:
    """Node-seconds by cause."""
    sums = Counter[str]()
    for span in spans:
        if attempt is None or span.attempt == attempt:
            sums[span.use.value] += span.node_microseconds
    return {use: micro / 1e6 for use, micro in sums.items()}


def attempt(number: int, begin: float, end: float, nodes: int = 1, **marks: object) -> Attempt:
    times = {name: at(value) for name, value in marks.items() if isinstance(value, int | float) and name != "hung"}
    return Attempt(number, at(begin), at(end), nodes, **(marks | times))  # type: ignore[arg-type]


def steps(*rows: tuple[float, int, int, float]) -> list[Step]:
    """(time, last step, how many, seconds of training)."""
    return [Step(at(time), last, count, {Use.USEFUL: useful}) for time, last, count, useful in rows]


def test_an_attempt_from_start_to_stop() -> None:
    done = attempt(1, 5, 100, processes=10, joined=20, loaded=30, steps=steps((60, 3, 3, 25), (90, 6, 3, 30)))
    spans = spans_of([Allocation(at(0), at(104), 1)], [done])
    assert seconds(spans) == {"start": 5 + 15, "load": 10, "useful": 55, "other": 5, "stop": 10 + 4}
    assert seconds(spans, 1) == {"start": 15, "load": 10, "useful": 55, "other": 5, "stop": 14}


def test_parts_of_a_step() -> None:
    parts = {Use.USEFUL: 20.0, Use.DATA: 3.0, Use.EVALUATION: 4.0, Use.SAVING: 2.0}
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


def test_steps_that_are_partly_done_again() -> None:
    first = attempt(1, 0, 100, loaded=0, steps=steps((100, 10, 10, 100)))
    second = attempt(2, 100, 200, loaded=100, steps=steps((200, 15, 10, 100)))
    assert seconds(spans_of([Allocation(at(0), at(200), 1)], [first, second]), 2) == {"useful": 50, "recompute": 50}


def test_a_roll_back_within_an_attempt() -> None:
    done = attempt(1, 0, 30, loaded=0, steps=steps((10, 10, 10, 10), (20, 10, 5, 10), (30, 15, 5, 10)))
    assert seconds(spans_of([Allocation(at(0), at(30), 1)], [done])) == {"useful": 20, "recompute": 10}


def test_a_hang_lasts_from_the_last_step_to_its_end() -> None:
    done = attempt(1, 0, 100, loaded=10, steps=steps((20, 1, 1, 10)), hung=True)
    assert seconds(spans_of([Allocation(at(0), at(100), 1)], [done])) == {"load": 10, "useful": 10, "hang": 80}


def test_a_failure_before_the_first_step() -> None:
    assert seconds(spans_of([Allocation(at(0), at(9), 1)], [attempt(1, 1, 9)])) == {"start": 9}
    loading = attempt(1, 0, 9, processes=1, joined=4, fault=8)
    assert seconds(spans_of([Allocation(at(0), at(9), 1)], [loading])) == {"start": 4, "load": 4, "stop": 1}


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


MOMENTS = st.floats(-50, 500).map(at)
MARKS = st.none() | MOMENTS
STEPS = st.lists(
    st.builds(
        Step,
        MOMENTS,
        st.integers(0, 40),
        st.integers(1, 12),
        st.dictionaries(
            st.sampled_from([Use.USEFUL, Use.DATA, Use.EVALUATION, Use.SAVING]), st.floats(0, 300), max_size=4
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
        decided=MARKS,
        processes=MARKS,
        joined=MARKS,
        loaded=MARKS,
        fault=MARKS,
        steps=STEPS,
        hung=st.booleans(),
        goes_on=st.booleans(),
    ),
    max_size=5,
)


@given(st.lists(st.tuples(MOMENTS, MOMENTS, st.integers(5, 8)), max_size=4), ATTEMPTS)
def test_spans_add_up_to_what_was_allocated(drawn: list[tuple[datetime, datetime, int]], found: list[Attempt]) -> None:
    """Whatever clocks and files say: exactly, in whole microseconds, without a gap and without a second use."""
    allocations: list[Allocation] = []
    for begin, end, nodes in sorted(drawn):
        begin = max([begin, *(each.end for each in allocations[-1:])])
        allocations.append(Allocation(begin, max(begin, end), nodes))
    spans = spans_of(allocations, found)
    micro = timedelta(microseconds=1)
    assert sum(span.node_microseconds for span in spans) == sum(
        (each.end - each.begin) // micro * each.nodes for each in allocations
    )
    assert all(span.begin < span.end and span.nodes > 0 for span in spans)
    for each in allocations:
        begin, end = ((time - at(0)) // micro + at(0).timestamp() * 1e6 for time in (each.begin, each.end))
        inside = [span for span in spans if begin <= span.begin < end]
        moments = sorted({moment for span in inside for moment in (span.begin, span.end)})
        for left, right in itertools.pairwise(moments):
            assert sum(span.nodes for span in inside if span.begin <= left and right <= span.end) == each.nodes


def test_overlapping_allocations_count_once() -> None:
    spans = spans_of([Allocation(at(0), at(10), 1), Allocation(at(5), at(15), 1)], [])
    assert seconds(spans) == {"not measured": pytest.approx(15)}
