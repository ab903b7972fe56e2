"""Results of evaluations, made by hand."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from glmforge.evaluate.result import Choice, Interval, Item, Result, Score, Written, write_result


def item(number: int, score: float, *, benchmark: str = "gsm8k", digest: str = "", **fields: Any) -> Item:
    """An item that is asked in words of its own, unless they are given."""
    given: dict[str, Any] = {"prompt": f"Question {number}?", "target": "4"} | fields
    return Item(benchmark=benchmark, number=number, digest=digest or f"asked-{number}", score=score, **given)


def reply(text: str, score: float = 0.0, **fields: Any) -> Written:
    given: dict[str, Any] = {"answer": text, "extracted": "5", "num_tokens": 9, "num_prompt_tokens": 3} | fields
    return Written(text=text, score=score, **given)


def written(number: int, score: float, text: str = "The answer is 5.", **fields: Any) -> Item:
    """An item with one reply; `fields` are the reply's."""
    return item(number, score, written=(reply(text, score, **fields),))


def chosen(number: int, predicted: int, right: int, **fields: Any) -> Item:
    choices = tuple(
        Choice(text=f" {letter}", logprob=-1.0 - place, num_tokens=1) for place, letter in enumerate("ABCD")
    )
    score = float(predicted == right)
    return item(number, score, benchmark="mmlu", choices=choices, predicted=predicted, target=str(right), **fields)


def row(items: Sequence[Item], **fields: Any) -> Score:
    """The row of a benchmark, its interval made up."""
    replies = [one for each in items for one in each.written]
    finished = [one.score for one in replies if not one.is_cut]
    mean = sum(each.score for each in items) / len(items)
    given: dict[str, Any] = {
        "benchmark": items[0].benchmark,
        "metric": "exact_match",
        "num_items": len(items),
        "score": mean,
        "interval": Interval(low=max(0.0, mean - 0.1), high=min(1.0, mean + 0.1)),
        "finished_score": sum(finished) / len(finished) if finished else None,
        "num_finished": len(finished) if replies else None,
        "cut_share": sum(one.is_cut for one in replies) / len(replies) if replies else 0.0,
        "fingerprint": "the same questions",
    }
    return Score(**given | fields)


def made_result(directory: Path, items: Sequence[Item], model: str = "exports/glm", **fields: Any) -> Path:
    """Write the result of some items."""
    names = dict.fromkeys(one.benchmark for one in items)
    rows = fields.pop("scores", None) or [row([one for one in items if one.benchmark == name]) for name in names]
    directory.mkdir(parents=True, exist_ok=True)
    write_result(directory, Result(model=model, scores=tuple(rows), **fields), items)
    return directory


def text_of(page: Path) -> str:
    """What a reader of an HTML file sees, with single spaces."""
    reader = _Reader()
    reader.feed(page.read_text())
    return " ".join(" ".join(reader.texts).split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.is_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self.is_style = False

    def handle_data(self, data: str) -> None:
        if not self.is_style:
            self.texts.append(data)
