"""The result of an evaluation: model, settings, scores, and every item.

    DIR/result.json     `Result`: model, settings, versions, a `Score` for each benchmark
    DIR/items.jsonl     `Item`: a line for each item of each benchmark
    DIR/replies-*.jsonl what the model said, by request (`benchmarks/replies.py`), to resume a stopped evaluation

The first two are written at the end. They are checked on reading: a result may come from elsewhere.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmforge.data.files import disk_errors, write_whole
from glmforge.errors import DataError
from glmforge.files import kind_of, shown

RESULT, ITEMS = "result.json", "items.jsonl"

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
"""Within bounds, so that sums of numbers from elsewhere stay finite."""
Count = Annotated[int, Field(ge=0, le=1 << 53)]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


Kind = TypeVar("Kind", bound=_Stored)


class Written(_Stored):
    """A reply of a generation task."""

    text: str  # all that the model wrote, reasoning included
    answer: str  # the part that the task reads
    extracted: str | None = None  # what its filter took from that; None if it found nothing
    score: Number
    is_cut: bool = False  # it reached the longest answer; the score is that of an unfinished answer
    num_tokens: Count
    num_prompt_tokens: Count
    logprob: Number | None = None  # summed over its tokens, in nats
    seconds: Number = 0.0


class Choice(_Stored):
    """A choice of an item, as the model scored it."""

    text: str
    logprob: Number
    num_tokens: Count


class Item(_Stored):
    """One item with its score; one of `written` and `choices` is empty."""

    benchmark: str
    number: Count  # of the document in its data
    digest: str  # of the prompts: two results compare items of equal digests
    subject: str = ""
    level: str = ""
    cluster: str = ""  # what it shares with other items, for the interval; "" for nothing
    prompt: str  # as the model got it
    target: str  # the right answer as the data has it
    score: Number  # the mean over `written`, or of the choice
    metrics: dict[str, Number] = {}  # everything that the task measured; of several replies the mean
    written: tuple[Written, ...] = ()
    choices: tuple[Choice, ...] = ()
    predicted: Count | None = None  # place of the chosen one
    is_truncated: bool = False  # its prompt lost its beginning

    @property
    def is_cut(self) -> bool:
        """Any of its replies was cut."""
        return any(one.is_cut for one in self.written)


class Interval(_Stored):
    """Of a mean, at 95 %."""

    low: Number
    high: Number


class ScoreText(NamedTuple):
    """A score as tables show it: never without the score of finished replies and the share of cut ones."""

    score: str
    interval: str
    finished: str
    cut: str
    chance: str


class Score(_Stored):
    """A benchmark's row."""

    benchmark: str
    metric: str  # the task's name for the score; the higher, the better
    num_items: Count
    num_samples: Count = 1
    score: Number | None  # mean over all items; cut replies count as they are
    interval: Interval | None = None  # None for a single item or cluster
    finished_score: Number | None = None  # of replies that were not cut
    num_finished: Count | None = None  # None where no replies were written
    cut_share: Number = 0.0  # of all replies
    num_truncated: Count = 0
    chance: Number | None = None  # what guessing scores
    fingerprint: str  # of prompts and data; equal where two results have the same questions
    extra: dict[str, Number] = {}  # pass@k, majority, bits per byte
    refused: str = ""  # why there is no score, such as choices that are all equally likely
    num_tokens: Count = 0
    seconds: Number = 0.0

    @property
    def text(self) -> ScoreText:
        interval, replies = self.interval, self.num_finished is not None
        return ScoreText(
            format_score(self.score),
            "" if interval is None else f"{format_score(interval.low)} to {format_score(interval.high)}",
            format_score(self.finished_score) if replies else "",
            format_score(self.cut_share) if replies else "",
            "" if self.chance is None else format_score(self.chance),
        )


class Result(_Stored):
    """A whole evaluation."""

    version: Literal[1] = 1
    model: str  # where it came from, as given
    weights: str = ""  # digest of the weights, "" for an endpoint
    step: Count | None = None
    tokens: Count | None = None
    settings: dict[str, Any] = {}  # how it was asked: chat form, thinking, temperature, longest answer, seed, limits
    versions: dict[str, str] = {}  # of packages
    created: str = ""  # UTC, ISO 8601
    scores: tuple[Score, ...]


def format_score(value: float | None) -> str:
    """A share in percent; other measures, such as bits per byte, as they are."""
    if value is None:
        return "none"
    return f"{value:.1%}" if 0 <= value <= 1 else f"{value:.3f}"


def flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    if not isinstance(settings, dict):
        return {name: settings}
    parts = (flat(value, f"{name}.{key}" if name else str(key)) for key, value in settings.items())
    return {key: value for part in parts for key, value in part.items()}


def changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by dotted name: what each was and is; None for a missing one."""
    before, after = flat(old), flat(new)
    pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def write_result(directory: Path, result: Result, items: Sequence[Item]) -> None:
    """Write both files, the result last: a directory with one is whole. A lone surrogate in the data becomes "?"."""
    lines = [json.dumps(item.model_dump(exclude_defaults=True), ensure_ascii=False) for item in items]
    write_whole(directory / ITEMS, "".join(f"{line}\n" for line in lines).encode(errors="replace"))
    whole = json.dumps(result.model_dump(mode="json"), ensure_ascii=False, indent=2)
    write_whole(directory / RESULT, f"{whole}\n".encode(errors="replace"))


def read_result(directory: Path) -> Result:
    """Raises `DataError` for a directory without a result, or with a damaged one."""
    path = directory if directory.name == RESULT else directory / RESULT
    if kind_of(path, error=DataError) != "file":
        raise DataError(f"{shown(directory)}: has no {RESULT}; give the directory of a finished evaluation")
    with disk_errors(path):
        return _parsed(Result, path.read_bytes(), f"{path}")


def read_items(directory: Path) -> Iterator[Item]:
    """The items of a result. Raises `DataError`."""
    path = (directory.parent if directory.name == RESULT else directory) / ITEMS
    if kind_of(path, error=DataError) != "file":
        raise DataError(f"{shown(directory)}: has no {ITEMS}; give the directory of a finished evaluation")
    with disk_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield _parsed(Item, line, f"{path}:{number}")


def items_by_benchmark(directory: Path) -> dict[str, list[Item]]:
    """Raises `DataError`."""
    items: dict[str, list[Item]] = {}
    for item in read_items(directory):
        items.setdefault(item.benchmark, []).append(item)
    return items


def _parsed(kind: type[Kind], content: bytes, where: str) -> Kind:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DataError(f"{where}: {shown('.'.join(map(str, first['loc'])) or 'content')}: {first['msg']}") from None
