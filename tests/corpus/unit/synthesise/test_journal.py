"""The journal survives a kill at any byte; the budget cannot be exceeded."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.errors import DataError
from glmforge_corpus.synthesise.endpoint.ask import Budget, Prices
from glmforge_corpus.synthesise.endpoint.journal import Journal

ENTRIES = [
    {"type": "sent", "key": "a", "cost": 3.0},
    {"type": "sent", "key": "b", "cost": 5.0},
    {"type": "done", "key": "a", "reply": {"text": "四 \ud800"}, "cost": 2.0},
    {"type": "unpaid", "key": "b"},
    {"type": "sent", "key": "b", "cost": 5.0},
    {"type": "refused", "key": "b", "status": 400, "message": "no"},
    {"type": "sent", "key": "c", "cost": 7.0},
]


def expected(entries):
    """(spent, finished, lost) by hand."""
    spent, finished, in_flight = 0.0, set(), {}
    for entry in entries:
        if entry["type"] == "sent":
            in_flight[entry["key"]] = entry["cost"]
            continue
        in_flight.pop(entry["key"], None)
        spent += entry.get("cost", 0.0)
        if entry["type"] in ("done", "refused"):
            finished.add(entry["key"])
    return spent + sum(in_flight.values()), finished, len(in_flight)


def test_a_kill_at_any_byte_loses_the_torn_line_only(tmp_path):
    path = tmp_path / "whole" / "journal.jsonl"
    ends = [0]
    with Journal(path) as journal:
        for entry in ENTRIES:
            journal.append(entry)
            ends.append(path.stat().st_size)
    whole = path.read_bytes()
    near = {end + shift for end in ends for shift in (-1, 0, 1)}
    for cut in sorted((near & set(range(len(whole) + 1))) | set(range(0, len(whole), 41))):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(whole[:cut])
        count = max(i for i, end in enumerate(ends) if end <= cut)
        for _ in range(2):  # what was in flight is lost once, not once per start
            with Journal(torn) as journal:
                spent, finished, _ = expected(ENTRIES[:count])
                assert (journal.spent, set(journal.finished)) == (spent, finished)
        assert torn.read_bytes().endswith(b"\n") or not count


def test_what_was_in_flight_is_counted_as_paid_and_said(tmp_path):
    with Journal(tmp_path / "j") as journal:
        for entry in ENTRIES:
            journal.append(entry)
        assert journal.entry("a") == ENTRIES[2]
        assert journal.entry("c") is None
    with Journal(tmp_path / "j") as journal:
        assert (journal.lost_at_kill, journal.spent) == (1, 9.0)
        assert journal.entry("a") == ENTRIES[2]
        journal.append({"type": "done", "key": "c", "reply": {}, "cost": 1.0})
        assert journal.entry("c")["reply"] == {}
    with Journal(tmp_path / "j") as journal:
        assert (journal.lost_at_kill, journal.spent) == (0, 10.0)


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path):
    path = tmp_path / "j"
    with Journal(path) as journal:
        for entry in ENTRIES:
            journal.append(entry)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"2.0", b"0.0")
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match="line 3: damaged"), Journal(path):
        pass


def test_one_run_at_a_time(tmp_path):
    with (
        Journal(tmp_path / "j"),
        pytest.raises(DataError, match="another run is writing here"),
        Journal(tmp_path / "j"),
    ):
        pass


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 1)), max_size=40), st.floats(0, 30), st.integers(1, 8))
def test_no_order_of_replies_takes_the_sum_over_the_cap(requests, cap, workers):
    async def run():
        budget = Budget(cap)
        queue = iter(requests)
        highest = 0.0

        async def work():
            nonlocal highest
            for most, share in queue:
                if not await budget.reserve(most):
                    return
                highest = max(highest, budget.spent + budget.reserved)
                await asyncio.sleep(0)
                await budget.settle(most, most * share)

        await asyncio.gather(*(work() for _ in range(workers)))
        return budget, highest

    budget, highest = asyncio.run(asyncio.wait_for(run(), 20))
    # sums of a few dozen floats: rounding of one part in 10^12 at most
    assert highest <= cap * (1 + 1e-12)
    assert budget.spent <= cap * (1 + 1e-12)


def test_costs():
    prices = Prices(prompt=2.0, completion=10.0)
    assert prices.cost({"prompt_tokens": 1000, "completion_tokens": 100}, 9.0) == pytest.approx(0.003)
    assert prices.cost(None, 9.0) == prices.cost({"prompt_tokens": "many"}, 9.0) == 9.0
    assert prices.most(1000, 100) > prices.cost({"prompt_tokens": 1000, "completion_tokens": 100}, 0.0)
