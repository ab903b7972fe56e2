"""What can be said of a reply without knowing the right answer: its form, its language, repetition, its length."""

import re
import unicodedata
import zlib
from collections import Counter

from glmforge.verify.reply import MalformedReply, parse_reply

_REPETITIVE = 0.1
"""A text whose second half compresses to less than this share, given the first, repeats itself."""
_LONG_ENOUGH = 100
"""Bytes from which on that is judged."""
_MIXED_SHARE = 0.05
_NOTATION = re.compile(r"</?\w+>|\\[a-zA-Z]+")
"""Tags and LaTeX's commands, which are of no language."""
_SCRIPTS = (
    "LATIN", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "CYRILLIC", "ARABIC", "HEBREW", "THAI", "DEVANAGARI", "GREEK",
)  # fmt: skip


def is_well_formed(reply: str, thinking: bool | None = None) -> bool:
    """Whether a reply is in GLM's format and, where `thinking` says so, has a reasoning or has none; and says anything
    beside it."""
    try:
        parsed = parse_reply(reply)
    except MalformedReply:
        return False
    return bool(parsed.content or parsed.tool_calls) and thinking in (None, bool(parsed.reasoning))


def repeats(text: str) -> bool:
    """Whether the second half is mostly known from the first: what it adds when both are compressed."""
    content = text.encode(errors="replace")
    if len(content) < _LONG_ENOUGH:
        return False
    half = len(content) // 2
    added = len(zlib.compress(content, 9)) - len(zlib.compress(content[:half], 9))
    return added < _REPETITIVE * (len(content) - half)


def is_mixed(text: str, given: str) -> bool:
    """Whether more than 1 letter in 20 is of a writing system that `given` does not use."""
    scripts, known = _scripts(_NOTATION.sub("", text)), _scripts(given)
    foreign = sum(number for script, number in scripts.items() if script not in known)
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


def length_penalty(num_tokens: int, max_tokens: int, soft_tokens: int) -> float:
    """0 up to `max_tokens - soft_tokens` tokens, from there falling to -1 at `max_tokens`: the soft overlong punishment
    of DAPO (arXiv:2503.14476, equation 13)."""
    return max(-1.0, min(0.0, (max_tokens - soft_tokens - num_tokens) / soft_tokens))
