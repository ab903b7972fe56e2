"""Why items failed: by kind, subject, level and length, and what to change first.

Each failed reply has one kind, the first that applies:

    repetition  its second half says little that is new, so a longer answer would not help
    cut         it reached the longest answer
    no answer   nothing follows the reasoning, or nothing comes before the task's stop string
    mixed       it changes into a writing system that neither the prompt nor the target uses
    no format   the task's filter found no answer in it
    wrong       an answer of the right form, and not the right one

What to change first is the kind with the largest gain that its evidence supports: longer answers would let cut replies
score as finished ones do; replies without an extractable answer would score as those with one. These gains are upper
bounds: cut and unread items may be the harder ones. A choice fails by being wrong; a text of which only the likelihood
is measured cannot fail.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glmforge.errors import DataError
from glmforge.evaluate.result import Item, Written, read_items, read_result
from glmforge.files import shown
from glmforge.verify.text import is_mixed, repeats

Kind = Literal["repetition", "cut", "no answer", "mixed", "no format", "wrong"]
KINDS: tuple[Kind, ...] = ("repetition", "cut", "no answer", "mixed", "no format", "wrong")

_NUM_LENGTHS = 4
_ALWAYS = 0.8
"""Of the items: a model that chooses one place more often, and more than twice as often as rightly, prefers a place."""


@dataclass(frozen=True)
class Failure:
    """A failed reply, or a wrong choice (`reply` None)."""

    item: Item
    reply: Written | None
    kind: Kind


@dataclass(frozen=True)
class Group:
    """Items that share a subject, a level or a range of lengths."""

    name: str
    num_items: int
    score: float
    kinds: Counter[Kind]


@dataclass(frozen=True)
class Advice:
    """What to change, the gain that the evidence supports (a share; None where it tells nothing), and the evidence."""

    change: str
    gain: float | None
    evidence: str

    @property
    def gains(self) -> str:
        """The gain in words, behind the change."""
        if self.gain is None:
            return ""
        return f" (up to {100 * self.gain:.1f} points)" if self.gain else " (this result shows no gain)"


@dataclass(frozen=True)
class Failures:
    """The failures of one benchmark; `unit` names what there are `num_replies` of."""

    benchmark: str
    num_items: int
    num_replies: int
    unit: str
    score: float
    failures: tuple[Failure, ...]
    kinds: Counter[Kind]
    by_subject: tuple[Group, ...]
    by_level: tuple[Group, ...]
    by_length: tuple[Group, ...]
    advice: tuple[Advice, ...]


def failures_of(directory: Path, benchmark: str | None = None) -> list[Failures]:
    """Of each benchmark of a result, or of one. Raises `DataError`: no result, or it does not have the benchmark."""
    names = [score.benchmark for score in read_result(directory).scores]
    if benchmark is not None and benchmark not in names:
        raise DataError(f"{shown(directory)}: has no benchmark {shown(benchmark)}; it has {', '.join(names)}")
    items: dict[str, list[Item]] = {}
    for item in read_items(directory, benchmark):
        items.setdefault(item.benchmark, []).append(item)
    return [find_failures(name, items[name]) for name in names if name in items]


def reasons(items: Iterable[Item]) -> Counter[Kind]:
    """The kinds of the failed replies of some items."""
    return Counter(failure.kind for item in items for failure in _of_item(item))


def find_failures(benchmark: str, items: Sequence[Item]) -> Failures:
    """Sort the failures of a benchmark's items; there is one item at least."""
    failures = [failure for item in items for failure in _of_item(item)]
    by_item: dict[int, Counter[Kind]] = defaultdict(Counter)
    places = {id(item): place for place, item in enumerate(items)}
    for failure in failures:
        by_item[places[id(failure.item)]][failure.kind] += 1
    kinds = Counter(failure.kind for failure in failures)

    def grouped(name_of: Callable[[Item], str], order: Callable[[Group], Any]) -> tuple[Group, ...]:
        groups: dict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            groups[name_of(item)].append(place)
        made = (
            Group(
                name,
                len(some),
                float(np.mean([items[place].score for place in some])),
                sum((by_item[place] for place in some), Counter()),
            )
            for name, some in groups.items()
        )
        return tuple(sorted(made, key=order)) if len(groups) > 1 else ()

    return Failures(
        benchmark,
        len(items),
        sum(max(1, len(item.written)) for item in items),
        "replies" if any(item.written for item in items) else "items",
        float(np.mean([item.score for item in items])),
        tuple(failures),
        kinds,
        grouped(lambda item: item.subject, lambda group: group.score),
        grouped(lambda item: item.level, lambda group: group.name),
        grouped(_length_name(items), lambda group: int(group.name.split()[0].replace(",", ""))),
        tuple(_advice(items, kinds)),
    )


def kind_of_failure(item: Item, reply: Written) -> Kind:
    """Why a reply failed."""
    if repeats(reply.text):
        return "repetition"
    if reply.is_cut:
        return "cut"
    if not reply.answer.strip():
        return "no answer"
    if is_mixed(reply.text, item.prompt + item.target):
        return "mixed"
    return "no format" if reply.extracted is None else "wrong"


def _of_item(item: Item) -> Iterable[Failure]:
    if not item.written:
        return [Failure(item, None, "wrong")] if item.choices and item.score <= 0 else []
    return [Failure(item, reply, kind_of_failure(item, reply)) for reply in item.written if reply.score <= 0]


def _length_name(items: Sequence[Item]) -> Callable[[Item], str]:
    """Names quarters of the prompts by their length in characters."""
    lengths = sorted(len(item.prompt) for item in items)
    edges = [lengths[len(lengths) * part // _NUM_LENGTHS] for part in range(1, _NUM_LENGTHS)]

    def name(item: Item) -> str:
        part = sum(len(item.prompt) >= edge for edge in edges)
        low, high = ([0, *edges])[part], ([*edges, lengths[-1] + 1])[part] - 1
        return f"{low:,} to {high:,} characters"

    return name


def _advice(items: Sequence[Item], kinds: Counter[Kind]) -> list[Advice]:
    """Changes by their gain, the largest first; none where the failures are wrong answers alone."""
    found = [*_of_replies([reply for item in items for reply in item.written], kinds), *_of_prompts(items)]
    return sorted((one for one in found if (one.gain or 0) >= 0), key=lambda one: -(one.gain or 0))


def _of_replies(replies: Sequence[Written], kinds: Counter[Kind]) -> Iterable[Advice]:
    total = len(replies)
    whole = [reply.score for reply in replies if not reply.is_cut]
    cut = [reply.score for reply in replies if reply.is_cut and not repeats(reply.text)]
    if cut and whole:
        evidence = f"{len(cut):,} of {total:,} replies were cut; those that finished score {np.mean(whole):.1%}"
        gain = float(np.mean(whole) - np.mean(cut)) * len(cut) / total
        yield Advice("raise --max-new-tokens", gain, evidence)
    elif cut:
        yield Advice("raise --max-new-tokens", None, f"none of {total:,} replies finished: the score says nothing yet")
    read = [reply.score for reply in replies if reply.extracted is not None and not reply.is_cut]
    unread = kinds["no format"] + kinds["no answer"]
    if unread:
        scored = f"; those that have one score {np.mean(read):.1%}" if read else ""
        yield Advice(
            "teach or ask for the answer's form: few-shot examples, --chat, the system message",
            float(np.mean(read)) * unread / total if read else None,
            f"{unread:,} of {total:,} replies have no answer that can be read{scored}",
        )
    if kinds["repetition"]:
        yield Advice(
            "sample (--temperature 0.6 to 1), or train longer: the model repeats itself",
            float(np.mean(whole)) * kinds["repetition"] / total if whole else None,
            f"{kinds['repetition']:,} of {total:,} replies repeat themselves",
        )


def _of_prompts(items: Sequence[Item]) -> Iterable[Advice]:
    """Prompts that did not fit, and a model that always chooses the same place."""
    short = [item.score for item in items if item.is_truncated]
    whole = [item.score for item in items if not item.is_truncated]
    if short:
        gain = float(np.mean(whole) - np.mean(short)) * len(short) / len(items) if whole else None
        evidence = f"{len(short):,} of {len(items):,} prompts were too long and lost their beginning"
        yield Advice("ask with fewer examples (--num-fewshot), or a model with more positions", gain, evidence)
    chosen = Counter(item.predicted for item in items if len(item.choices) > 1)
    place, number = chosen.most_common(1)[0] if chosen else (None, 0)
    right = sum(item.score > 0 for item in items if item.predicted == place)
    if place is not None and len(items) > 1 and number > _ALWAYS * len(items) and number > 2 * right:
        evidence = f"it chose place {place + 1} in {number:,} of {len(items):,} items, {right:,} times rightly"
        yield Advice(
            "train on questions of this form: the model prefers a place, whatever the question", None, evidence
        )
