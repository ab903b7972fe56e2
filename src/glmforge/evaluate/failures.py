"""Why items failed: by kind, subject, level and length, and what to change first.

Each failed reply has one kind, the first that applies:

    cut         it reached the longest answer
    no answer   nothing follows the reasoning
    repetition  its second half says little that is new
    mixed       it changes into a writing system that neither the prompt nor the target uses
    no format   the task's filter found no answer in it
    wrong       an answer of the right form, and not the right one

What to change first is the kind with the largest gain that its evidence supports: longer answers would let cut replies
score as finished ones do; replies without an extractable answer would score as those with one.
"""

import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glmforge.evaluate.result import Item, Written

Kind = Literal["cut", "no answer", "repetition", "mixed", "no format", "wrong"]
KINDS: tuple[Kind, ...] = ("cut", "no answer", "repetition", "mixed", "no format", "wrong")

_REPETITIVE = 0.1
"""A text whose second half compresses to less than this share, given the first, repeats itself."""
_LONG_ENOUGH = 200
"""Characters from which on that is judged."""
_MIXED_SHARE = 0.05
_NUM_LENGTHS = 4
_SCRIPTS = (
    "LATIN",
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL",
    "CYRILLIC",
    "ARABIC",
    "HEBREW",
    "THAI",
    "DEVANAGARI",
    "GREEK",
)


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
    """What to change, the gain in points that the evidence supports, and the evidence."""

    change: str
    gain: float
    evidence: str


@dataclass(frozen=True)
class Failures:
    """The failures of one benchmark."""

    benchmark: str
    num_items: int
    num_replies: int
    score: float
    failures: tuple[Failure, ...]
    kinds: Counter[Kind]
    by_subject: tuple[Group, ...]
    by_level: tuple[Group, ...]
    by_length: tuple[Group, ...]
    advice: tuple[Advice, ...]


def find_failures(benchmark: str, items: Sequence[Item]) -> Failures:
    """Sort the failures of a benchmark's items; there is one item at least."""
    failures = [failure for item in items for failure in _of_item(item)]
    by_item: dict[int, Counter[Kind]] = defaultdict(Counter)
    places = {id(item): place for place, item in enumerate(items)}
    for failure in failures:
        by_item[places[id(failure.item)]][failure.kind] += 1
    kinds = Counter(failure.kind for failure in failures)

    def grouped(name_of: Callable[[Item], str]) -> tuple[Group, ...]:
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
        return tuple(sorted(made, key=lambda group: group.score)) if len(groups) > 1 else ()

    return Failures(
        benchmark,
        len(items),
        sum(max(1, len(item.written)) for item in items),
        float(np.mean([item.score for item in items])),
        tuple(failures),
        kinds,
        grouped(lambda item: item.subject),
        grouped(lambda item: item.level),
        grouped(_length_name(items)),
        tuple(_advice(items, kinds)),
    )


def kind_of_failure(item: Item, reply: Written) -> Kind:
    """Why a reply failed."""
    if reply.is_cut:
        return "repetition" if _repeats(reply.text) else "cut"
    if not reply.answer.strip():
        return "no answer"
    if _repeats(reply.text):
        return "repetition"
    if _is_mixed(reply.text, item.prompt + item.target):
        return "mixed"
    return "no format" if reply.extracted is None else "wrong"


def _of_item(item: Item) -> Iterable[Failure]:
    if not item.written:
        return [Failure(item, None, "wrong")] if item.score <= 0 else []
    return [Failure(item, reply, kind_of_failure(item, reply)) for reply in item.written if reply.score <= 0]


def _repeats(text: str) -> bool:
    """Whether the second half is mostly known from the first: what it adds when both are compressed."""
    content = text.encode(errors="replace")
    if len(content) < _LONG_ENOUGH:
        return False
    half = len(content) // 2
    added = len(zlib.compress(content, 9)) - len(zlib.compress(content[:half], 9))
    return added < _REPETITIVE * (len(content) - half)


def _is_mixed(text: str, given: str) -> bool:
    scripts = _scripts(text)
    foreign = sum(number for script, number in scripts.items() if script not in _scripts(given))
    return foreign > _MIXED_SHARE * max(1, sum(scripts.values()))


def _scripts(text: str) -> Counter[str]:
    """Letters by writing system; Japanese and Chinese share one."""
    found: Counter[str] = Counter()
    for character, number in Counter(text).items():
        if character.isalpha():
            name = unicodedata.name(character, "")
            script = next((script for script in _SCRIPTS if name.startswith(script)), None)
            if script is not None:
                found["CJK" if script in ("HIRAGANA", "KATAKANA") else script] += number
    return found


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
    replies = [reply for item in items for reply in item.written]
    if not replies:
        return []
    found = []
    whole = [reply.score for reply in replies if not reply.is_cut]
    cut = [reply for reply in replies if reply.is_cut]
    if cut and whole:
        gain = (float(np.mean(whole)) - float(np.mean([reply.score for reply in cut]))) * len(cut) / len(replies)
        found.append(
            Advice(
                "raise --max-new-tokens",
                gain,
                f"{len(cut):,} of {len(replies):,} replies were cut; those that finished score {np.mean(whole):.1%}",
            )
        )
    elif cut:
        found.append(
            Advice("raise --max-new-tokens", 0.0, f"all {len(cut):,} replies were cut: no score says anything")
        )
    read = [reply.score for reply in replies if reply.extracted is not None and not reply.is_cut]
    unread = kinds["no format"] + kinds["no answer"]
    if unread and read:
        gain = float(np.mean(read)) * unread / len(replies)
        found.append(
            Advice(
                "teach or ask for the answer's form: few-shot examples, --chat, the system message",
                gain,
                f"{unread:,} of {len(replies):,} replies have no answer that can be read; those that have one score "
                f"{np.mean(read):.1%}",
            )
        )
    if kinds["repetition"]:
        found.append(
            Advice(
                "sample (--temperature 0.6 to 1), or train longer: the model repeats itself",
                float(np.mean(whole or [0.0])) * kinds["repetition"] / len(replies),
                f"{kinds['repetition']:,} of {len(replies):,} replies repeat themselves",
            )
        )
    return sorted((one for one in found if one.gain >= 0), key=lambda one: -one.gain)
