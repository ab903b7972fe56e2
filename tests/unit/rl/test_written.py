"""Files of answers: bounded, replaced when a step is trained on again, never another rank's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glmforge.errors import DataError
from glmforge.rl.samples import Answer
from glmforge.rl.written import SampleFiles, read_samples, steps_written


def files(directory: Path, share: int | None = 0, num_shares: int = 1, max_bytes: int = 1 << 20) -> SampleFiles:
    prompt: Any = SimpleNamespace(id="p", source="s", text="what?")
    tokenizer: Any = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    return SampleFiles(directory, share, num_shares, lambda number: prompt, tokenizer, max_bytes)


def answer(prompt: int, sample: int = 0) -> Answer:
    tokens = np.array([prompt, sample, 7], dtype=np.int32)
    numbers = np.zeros(3, dtype=np.float32)
    return Answer(prompt, sample, tokens, tokens, numbers, tokens * 0, "stop", reward=1.0, advantages_N=numbers + 0.5)


def names(directory: Path) -> list[str]:
    return sorted(path.name.removesuffix(".jsonl.gz") for path in directory.iterdir())


def test_answers_are_read_by_group_over_all_ranks(tmp_path: Path) -> None:
    files(tmp_path, 0, 2)(3, [answer(4, 1), answer(4, 0)])
    files(tmp_path, 1, 2)(3, [answer(2)])
    files(tmp_path, None, 2)(3, [answer(9)])
    records = read_samples(tmp_path, 3)
    assert [(one["group"], one["sample"]) for one in records] == [(2, 0), (4, 0), (4, 1)]
    assert records[0]["reply"] == "2 0"
    assert records[0]["advantage"] == 0.5
    assert steps_written(tmp_path) == [3]
    with pytest.raises(DataError, match="no answers of step 4; there are steps 3 to 3"):
        read_samples(tmp_path, 4)
    with pytest.raises(DataError, match=r"no answers of step 4$"):
        read_samples(tmp_path / "none", 4)


def test_steps_that_are_trained_on_again_are_forgotten(tmp_path: Path) -> None:
    """On fewer ranks, those of the ranks that are gone, too; those of a rank that is there are its own."""
    for share in range(4):
        write = files(tmp_path, share, 4)
        for step in (1, 2, 3):
            write(step, [answer(10 * step + share)])
    (tmp_path / "step-00000003-00002.jsonl.gz.partial").touch()
    first = files(tmp_path, 0, 2)
    first(2, [answer(5)])
    assert names(tmp_path) == [
        *(f"step-00000001-{share:05d}" for share in range(4)),
        "step-00000002-00000", "step-00000002-00001", "step-00000003-00001",
    ]  # fmt: skip
    files(tmp_path, 1, 2)(2, [answer(6)])
    first(3, [answer(7)])
    assert [one["group"] for one in read_samples(tmp_path, 2)] == [5, 6]
    assert [one["group"] for one in read_samples(tmp_path, 3)] == [7]
    first(2, [answer(8)])  # rolled back
    assert steps_written(tmp_path) == [1, 2]


def test_the_oldest_are_deleted(tmp_path: Path) -> None:
    write = files(tmp_path, 0, 2, max_bytes=1)
    files(tmp_path, 1, 2)(1, [answer(1)])
    for step in (1, 2, 3):
        write(step, [answer(step)])
    assert names(tmp_path) == ["step-00000001-00001", "step-00000003-00000"]
