"""The suite itself: it finds every kind of failure, replays a case from its number, and shares cases out."""

import random
from pathlib import Path

from fuzz import planted
from fuzz.cases import Original
from fuzz.format import Format
from fuzz.mutate import byte_mutator
from fuzz.run import Tally, run_cases
from fuzz.trees import json_mutator, yaml_mutator

EXPECTED = {
    "refused": "refused",
    "traceback": "traceback",
    "two_lines": "not_one_line",
    "escape_code": "not_one_line",
    "long_line": "not_one_line",
    "memory": "memory",
    "slow": "slow",
    "endless": "endless",
    "died": "died",
    "system": "code_run",
    "process": "code_run",
    "eval": "code_run",
    "pickle": "code_run",
    "write": "code_run",
    "swallowed": "code_run",
}


def test_every_planted_mistake_is_found() -> None:
    tally = run_cases("fuzz.planted", list(EXPECTED), seed=0)
    found = {failure.case: failure.outcome for failure in tally.failures}
    assert found == {case: outcome for case, outcome in EXPECTED.items() if outcome != "refused"}
    assert tally.outcomes["refused"] == 1
    assert not Path("/tmp/fuzz-was-here").exists()
    (traceback,) = (failure.detail for failure in tally.failures if failure.case == "traceback")
    assert "KeyError" in traceback


def test_a_reader_that_waits_is_ended(monkeypatch) -> None:
    monkeypatch.setenv("FUZZ_WALL_S", "2")
    tally = run_cases("fuzz.planted", ["fifo", "1"], seed=0)
    assert [failure.outcome for failure in tally.failures] == ["hang"]
    assert sum(tally.outcomes.values()) == 2  # the case after it was read all the same


def test_a_case_is_a_function_of_its_number(tmp_path: Path) -> None:
    form = Format("f", planted.write, planted.read, {"file": byte_mutator()}, damages_directory=False)
    original = Original(form, tmp_path / "case")
    contents = []
    for case in ("5", "6", "5"):
        original.damage(case, seed=1)
        contents.append((original.directory / "file").read_bytes())
        original.restore()
    assert contents[0] == contents[2] != contents[1]
    assert (original.directory / "file").read_bytes() == b"good"


def test_mutators_damage_most_of_the_time() -> None:
    for mutator, content in [
        (byte_mutator(), b"some content"),
        (json_mutator(), b'{"a": [1, {"b": null}], "c": "d"}'),
        (yaml_mutator(), b"a: [1, {b: null}]\nc: d\n"),
    ]:
        changed = [mutator(content, random.Random(seed)) for seed in range(500)]
        assert len(set(changed)) > 250


def test_tallies_add_up() -> None:
    one, two = Tally(), Tally()
    one.add("f", "0", {"outcome": "refused", "detail": "", "cpu_s": 0.5})
    two.add("f", "1", {"outcome": "slow", "detail": "2 s", "cpu_s": 2.0})
    both = one.merge(two)
    assert both.outcomes == {"refused": 1, "slow": 1}
    assert (both.slowest_s, both.cpu_s, len(both.failures)) == (2.0, 2.5, 1)
