"""Why items failed: by kind, subject, level and length, and what to change first.

Each failed reply has one kind, the first that applies:

    repetition  its second half says little that is new, so a longer answer would not help
    cut         it reached the longest answer
    no answer   nothing follows the reasoning, or nothing comes before the task's stop string
    extraction  it gives the right answer, as `verify.final_answer` reads it, and the task's filter missed it
    mixed       it changes into a writing system that neither the prompt nor the target uses
    no format   the task's filter found no answer in it
    wrong       an answer of the right form, and not the right one

A wrong choice is "wrong"; a text of which only the likelihood is measured cannot fail. What to change first is the kind
with the largest gain that its evidence supports: cut replies would score as finished ones do, unread ones as read ones.
These gains are upper bounds, since cut and unread items may be the harder ones.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from glmforge.errors import DataError
from glmforge.evaluate.result import Item, Written, items_by_benchmark, read_result
from glmforge.files import shown
from glmforge.verify.answers import final_answer, same_answer
from glmforge.verify.text import is_mixed, repeats

Kind = Literal["repetition", "cut", "no answer", "extraction", "mixed", "no format", "wrong"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_LONGEST_ANSWER = 100  # characters of a final answer
_NUM_LENGTHS = 4
_ALWAYS = 0.8  # share of items: a model that chooses one place more often, and mostly wrongly, prefers it


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
    """What to change, the gain that the evidence supports (a share; None where it supports none), and the evidence."""

    change: str
    gain: float | None
    evidence: str

    def __str__(self) -> str:
        if self.gain is None:
            return self.change
        gain = f"up to {100 * self.gain:.1f} points" if self.gain else "this result shows no gain"
        return f"{self.change} ({gain})"


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
        raise DataError(f"{shown(directory)}: has no benchmark {shown(benchmark)}; it has {shown(', '.join(names))}")
    items = items_by_benchmark(directory)
    return [find_failures(name, items[name]) for name in names if name in items and benchmark in (None, name)]


def find_failures(benchmark: str, items: Sequence[Item]) -> Failures:
    """Sort the failures of a benchmark's items; there is one item at least."""
    failures = _failures(items)

    def grouped(name_of: Callable[[Item], str]) -> list[Group]:
        scores: dict[str, list[float]] = defaultdict(list)
        kinds: dict[str, Counter[Kind]] = defaultdict(Counter)
        for item in sorted(items, key=lambda item: len(item.prompt)):
            scores[name_of(item)].append(item.score)
        for failure in failures:
            kinds[name_of(failure.item)][failure.kind] += 1
        groups = [Group(name, len(own), float(np.mean(own)), kinds[name]) for name, own in scores.items()]
        return groups if len(groups) > 1 else []

    return Failures(
        benchmark,
        num_items=len(items),
        num_replies=sum(max(1, len(item.written)) for item in items),
        unit="replies" if any(item.written for item in items) else "items",
        score=float(np.mean([item.score for item in items])),
        failures=tuple(failures),
        kinds=Counter(failure.kind for failure in failures),
        by_subject=tuple(sorted(grouped(lambda item: item.subject), key=lambda group: group.score)),
        by_level=tuple(sorted(grouped(lambda item: item.level), key=lambda group: group.name)),
        by_length=tuple(grouped(_length_name(items))),
        advice=tuple(_advice(items, failures)),
    )


def reasons(items: Iterable[Item]) -> Counter[Kind]:
    """The kinds of the failed replies of some items."""
    return Counter(failure.kind for failure in _failures(items))


def kind_of_failure(item: Item, reply: Written) -> Kind:
    """Why a reply failed."""
    if repeats(reply.text):
        return "repetition"
    if reply.is_cut:
        return "cut"
    if not reply.answer.strip():
        return "no answer"
    if _is_right(final_answer(reply.answer), final_answer(item.target) or item.target):
        return "extraction"
    if is_mixed(reply.text, item.prompt + item.target):
        return "mixed"
    return "no format" if reply.extracted is None else "wrong"


def _failures(items: Iterable[Item]) -> list[Failure]:
    found = []
    for item in items:
        if item.choices and item.score <= 0:
            found.append(Failure(item, None, "wrong"))
        found += [Failure(item, reply, kind_of_failure(item, reply)) for reply in item.written if reply.score <= 0]
    return found


def _is_right(answer: str | None, target: str) -> bool:
    return answer is not None and max(len(answer), len(target)) <= _LONGEST_ANSWER and same_answer(answer, target)


def _length_name(items: Sequence[Item]) -> Callable[[Item], str]:
    """Names quarters of the prompts by their length in characters."""
    lengths = sorted(len(item.prompt) for item in items)
    edges = [lengths[len(lengths) * part // _NUM_LENGTHS] for part in range(1, _NUM_LENGTHS)]
    bounds = [0, *edges, lengths[-1] + 1]

    def name(item: Item) -> str:
        part = sum(len(item.prompt) >= edge for edge in edges)
        return f"{bounds[part]:,} to {bounds[part + 1] - 1:,} characters"

    return name


def _advice(items: Sequence[Item], failures: Sequence[Failure]) -> list[Advice]:
    """What to change, the largest gain first; nothing where all failures are wrong answers."""
    found = [*_for_replies([reply for item in items for reply in item.written], failures), *_for_prompts(items)]
    return sorted((one for one in found if (one.gain or 0) >= 0), key=lambda one: -(one.gain or 0))


def _for_replies(replies: Sequence[Written], failures: Sequence[Failure]) -> Iterator[Advice]:
    total, kinds = len(replies), Counter(failure.kind for failure in failures)
    whole = [reply.score for reply in replies if not reply.is_cut]
    cut = [reply.score for reply in replies if reply.is_cut and not repeats(reply.text)]
    if cut:
        gain = float(np.mean(whole) - np.mean(cut)) * len(cut) / total if whole else None
        evidence = f"none of {total:,} replies finished: the score says nothing yet"
        if whole:
            evidence = f"{len(cut):,} of {total:,} replies were cut; those that finished score {np.mean(whole):.1%}"
        yield Advice("raise --max-new-tokens", gain, evidence)
    if number := kinds["extraction"]:
        evidence = f"{number:,} of {total:,} replies give the right answer in a form that the task's filter misses"
        yield Advice(
            "ask for the form that the task reads, or use a task with another filter", number / total, evidence
        )
    if number := kinds["no format"] + kinds["no answer"]:
        read = [reply.score for reply in replies if reply.extracted is not None and not reply.is_cut]
        scored = f"; those that have one score {np.mean(read):.1%}" if read else ""
        yield Advice(
            "teach or ask for the answer's form: few-shot examples, --chat, the system message",
            float(np.mean(read)) * number / total if read else None,
            f"{number:,} of {total:,} replies have no answer that can be read{scored}",
        )
    if number := kinds["repetition"]:
        yield Advice(
            "sample (--temperature 0.6 to 1), or train longer: the model repeats itself",
            float(np.mean(whole)) * number / total if whole else None,
            f"{number:,} of {total:,} replies repeat themselves",
        )


def _for_prompts(items: Sequence[Item]) -> Iterator[Advice]:
    """Prompts that did not fit, and a model that always chooses the same place."""
    short = [item.score for item in items if item.is_truncated]
    whole = [item.score for item in items if not item.is_truncated]
    if short:
        gain = float(np.mean(whole) - np.mean(short)) * len(short) / len(items) if whole else None
        evidence = f"{len(short):,} of {len(items):,} prompts were too long and lost their beginning"
        yield Advice("ask with fewer examples (--num-fewshot), or a model with more positions", gain, evidence)
    chosen = Counter(item.predicted for item in items if len(item.choices) > 1 and item.predicted is not None)
    for place, number in chosen.most_common(1):
        right = sum(item.score > 0 for item in items if item.predicted == place)
        if len(items) > 1 and number > _ALWAYS * len(items) and number > 2 * right:
            evidence = f"it chose place {place + 1} in {number:,} of {len(items):,} items, {right:,} of them rightly"
            yield Advice("train on questions of this form: the model always prefers one place", None, evidence)
