"""A file read while it grows, is cut and is replaced; what is read is always what the file says in the end."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from glmforge.doctor.follow import Follower
from glmforge.observe.record_files import JsonlFile, read_jsonl


def add(path: Path, *steps: int, **more: Any) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"step": step} | more) + "\n" for step in steps)


def steps(records: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in records]


def test_it_waits_for_the_file_and_for_the_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.poll() == (False, [])
    path.write_text('{"step": 1}\n{"st')
    assert follower.poll() == (False, [{"step": 1}])
    assert follower.poll() == (False, [])
    with path.open("a") as file:
        file.write('ep": 2}\nno JSON\n[3]\n{"step": 4, "loss": "NaN"}\n')
    was_cut, records = follower.poll()
    assert (was_cut, steps(records)) == (False, [2, 4])
    assert records[1]["loss"] != records[1]["loss"]


def test_a_cut_is_noticed_even_if_the_file_is_longer_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *range(1, 11), loss=1.0)
    follower = Follower(path)
    follower.poll()
    with JsonlFile(path, resume_step=6) as file:
        for step in range(7, 20):
            file.write({"step": step, "loss": 2.0})
    was_cut, records = follower.poll()
    assert was_cut
    assert steps(records) == list(range(1, 20))
    assert [record["loss"] for record in records] == [1.0] * 6 + [2.0] * 13


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *range(10_000))
    found = steps(Follower(path, tail_bytes=1000).poll()[1])
    assert found == list(range(10_000 - len(found), 10_000))
    assert 40 < len(found) < 80


@pytest.mark.parametrize("seed", range(20))
def test_it_ends_with_what_the_file_says(tmp_path: Path, seed: int) -> None:
    rng, path, known = random.Random(seed), tmp_path / "metrics.jsonl", list[dict[str, Any]]()
    follower = Follower(path)
    for turn in range(30):
        deed = rng.choice(["grow", "grow", "cut", "replace", "look"])
        last = read_jsonl(path)[-1]["step"] if path.exists() and path.stat().st_size else 0
        if deed == "cut" and last:
            with JsonlFile(path, resume_step=rng.randrange(last)):
                pass
        if deed == "replace":
            other = tmp_path / "other"
            add(other, *range(1, rng.randrange(2, 6)), turn=turn)
            os.replace(other, path)  # noqa: PTH105
        if deed == "grow":
            add(path, *range(last + 1, last + rng.randrange(2, 9)), turn=turn)
        if deed != "look" and rng.random() < 0.6:
            continue
        was_cut, records = follower.poll()
        known = ([] if was_cut else known) + records
    was_cut, records = follower.poll()
    assert ([] if was_cut else known) + records == (read_jsonl(path) if path.exists() else [])
