"""A result: what was measured of which model, how, and every item. What comparison, failures and pages read.

    DIR/result.json     `Result`: model, settings, versions, a `Score` for each benchmark
    DIR/items.jsonl     `Item`: a line for each item of each benchmark
    DIR/replies-*.jsonl what the model said, by request (`benchmarks/replies.py`): from it a stopped evaluation resumes

The first two are written when the evaluation is whole. They are checked on reading: a result may come from elsewhere.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmforge.data.files import disk_errors, write_whole
from glmforge.errors import DataError
from glmforge.files import kind_of, shown

RESULT, ITEMS = "result.json", "items.jsonl"

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Written(_Stored):
    """A reply of a generation task.

    Attributes:
        text: all that the model wrote, reasoning included.
        answer: what the task saw of it.
        extracted: what its filter took from that; None if nothing was found.
        score: of this reply.
        is_cut: it reached the longest answer, so the score says what was there, not what the model would have said.
        logprob: summed over its tokens, in nats.
    """

    text: str
    answer: str
    extracted: str | None = None
    score: Finite
    is_cut: bool = False
    num_tokens: int
    num_prompt_tokens: int
    logprob: Finite | None = None
    seconds: Finite = 0.0


class Choice(_Stored):
    """A choice of an item, as the model scored it."""

    text: str
    logprob: Finite
    num_tokens: int


class Item(_Stored):
    """One item, its score and what the score is made of.

    Attributes:
        benchmark, number: which one; the number is the document's in its data.
        digest: of the prompts: two results compare items of equal digests.
        subject, level: as the data says, for tables.
        cluster: what it shares with other items, for the interval; "" for nothing.
        prompt: as the model got it.
        target: the right answer as the data has it.
        score: the mean over `written`, or of the choice.
        metrics: everything that the task measured, by name; of several replies the mean.
        written, choices: one of them is empty.
        is_truncated: its prompt lost its beginning.
    """

    benchmark: str
    number: int
    digest: str
    subject: str = ""
    level: str = ""
    cluster: str = ""
    prompt: str
    target: str
    score: Finite
    metrics: dict[str, Finite] = {}
    written: tuple[Written, ...] = ()
    choices: tuple[Choice, ...] = ()
    predicted: int | None = None
    is_truncated: bool = False

    @property
    def is_cut(self) -> bool:
        """Any of its replies was."""
        return any(one.is_cut for one in self.written)


class Interval(_Stored):
    """Of a mean, at 95 %."""

    low: Finite
    high: Finite


class Score(_Stored):
    """A benchmark's row.

    Attributes:
        metric: the task's name for the score; the higher, the better.
        score: mean over all items; cut replies count as they are.
        interval: None where the items say nothing of it (a single item or cluster).
        finished_score, num_finished: of replies that were not cut.
        cut_share: of all replies.
        chance: what guessing scores.
        fingerprint: of prompts and data: results with equal ones are of the same questions.
        extra: further figures by name: pass@k, majority, bits per byte.
        refused: why there is no score, such as choices that are all equally likely.
    """

    benchmark: str
    metric: str
    num_items: int
    num_samples: int = 1
    score: Finite | None
    interval: Interval | None = None
    finished_score: Finite | None = None
    num_finished: int | None = None
    cut_share: Finite = 0.0
    num_truncated: int = 0
    chance: Finite | None = None
    fingerprint: str
    extra: dict[str, Finite] = {}
    refused: str = ""
    num_tokens: int = 0
    seconds: Finite = 0.0


class Result(_Stored):
    """A whole evaluation.

    Attributes:
        model: where it came from, as given.
        weights: digest of the weights, or "" for an endpoint.
        step, tokens: of training, where known.
        settings: how it was asked: chat form, thinking, temperature, longest answer, seed, limits.
        versions: of packages and data.
        created: UTC, ISO 8601.
    """

    version: Literal[1] = 1
    model: str
    weights: str = ""
    step: int | None = None
    tokens: int | None = None
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    created: str = ""
    scores: tuple[Score, ...]


def write_result(directory: Path, result: Result, items: Sequence[Item]) -> None:
    """Write both files, the result last: a directory with one is whole. What is not Unicode (half a surrogate pair in
    a benchmark's data) becomes "?"."""
    lines = [json.dumps(item.model_dump(exclude_defaults=True), ensure_ascii=False) for item in items]
    write_whole(directory / ITEMS, "".join(f"{line}\n" for line in lines).encode(errors="replace"))
    whole = json.dumps(result.model_dump(mode="json"), ensure_ascii=False, indent=2)
    write_whole(directory / RESULT, f"{whole}\n".encode(errors="replace"))


def read_result(directory: Path) -> Result:
    """Raises `DataError` where there is none, or one that is not as it should be."""
    path = directory if directory.name == RESULT else directory / RESULT
    if kind_of(path, error=DataError) != "file":
        raise DataError(f"{shown(directory)}: has no {RESULT}; give the directory of a finished evaluation")
    with disk_errors(path):
        content = path.read_bytes()
    try:
        return Result.model_validate_json(content)
    except ValidationError as error:
        raise DataError(f"{path}: {_first(error)}") from None


def read_items(directory: Path, benchmark: str | None = None) -> Iterator[Item]:
    """The items of a result, of one benchmark or of all. Raises `DataError`."""
    path = directory / ITEMS
    if kind_of(path, error=DataError) != "file":
        raise DataError(f"{shown(directory)}: has no {ITEMS}; evaluate the model again")
    with disk_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                item = Item.model_validate_json(line)
            except ValidationError as error:
                raise DataError(f"{path}:{number}: {_first(error)}") from None
            if benchmark is None or item.benchmark == benchmark:
                yield item


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in a line."""
    one = error.errors(include_url=False)[0]
    place = ".".join(map(str, one["loc"])) or "content"
    return f"{place}: {one['msg']}"
