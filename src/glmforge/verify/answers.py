"""Final answers: where they stand in a reply, and when two of them are the same.

The final answer is what the last `\\boxed{...}` after `</think>` holds, or what follows "answer is", "答案是" or
"####" where nothing is boxed. Kinds of answers and when they agree:

    number   as exact fractions: 0.5, 1/2, \\frac{1}{2}, 1,234, 50\\% (as 50); a unit after the number is ignored
    choice   by its letter: B, (B), B. text
    list     item by item, brackets and spaces ignored
    text     after normalisation of LaTeX, case and spaces

Answers made of tool calls are in `tool_calls`.
"""

import re
from fractions import Fraction

_BOXED = "\\boxed{"
_PHRASE = re.compile(
    r"(?:####\s*(?:\**(?:final )?answer\**)?|answer\**(?: is|:)|答案\**(?:是|为|选|：|:)|故选)[\s:：*]*", re.IGNORECASE
)
_FENCE = re.compile(r"^```\w*$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[\d%)$])\.\s|。")
"""Where the sentence of an answer ends: a full stop behind a word may be an abbreviation's."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*[-+]?\d+)?")
_FRACTION = re.compile(r"([-+]?)\\frac\{?([-+]?\d+)\}?\{?([-+]?\d+)\}?")
_WRAPPERS = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\(?:left|right|displaystyle|[,;!:()\[\] ])|[$。]|\s+$|^\s+")
_MARKS = ' *`"“”'
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}\d]*\}(?:\^\{?[23]\}?)?[\s$]*$")
_PLAIN_UNIT = re.compile(r"(?:\s*[a-z]{2,}|\s+[mgshl])(?:\s*/\s*[a-z]+)?(?:\^?\{?[23]\}?)?")
_BEFORE = re.compile(r"^(?:(?:about|approximately|roughly)\s|\\approx|[≈~约])\s*")
_EQUALITY = re.compile(r"(?:[a-z](?:_?\{?\w+\}?)?(?:\(\w+\))?|[-+*/().\d\s]+)\s*=([^=<>,;]*)")
_MIXED = re.compile(r"([-+]?)(\d+)\s*(?:\\frac\{?(\d+)\}?\{?(\d+)\}?|\s(\d+)/(\d+))")
_SPELLINGS = (
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\%", "%"), ("\\$", ""), ("\\{", "{"), ("\\}", "}"),
    ("−", "-"), ("，", ","), ("；", ";"),
)  # fmt: skip
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")


def final_answer(reply: str) -> str | None:
    """The final answer of a reply, or None."""
    text = after_reasoning(reply)
    start = text.rfind(_BOXED)
    if start >= 0:
        return _balanced(text, start + len(_BOXED))
    text = _FENCE.sub("", text)
    for found in reversed(list(_PHRASE.finditer(text))):
        line = text[found.end() :].partition("\n")[0]
        if answer := _SENTENCE.split(line)[0].strip().rstrip(".。*"):
            return answer
    return None


def after_reasoning(reply: str) -> str:
    """What follows `</think>`; nothing where the reply was cut while it reasoned."""
    _, end, text = reply.rpartition("</think>")
    return text if end or "<think>" not in text else ""


def _balanced(text: str, start: int) -> str | None:
    depth = 1
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[start:position].strip() or None
    return None


def normalised(answer: str) -> str:
    """Without LaTeX's dressing, in lower case, with single spaces."""
    text = answer
    for old, new in _SPELLINGS:
        text = text.replace(old, new)
    previous = None
    while previous != text:
        previous, text = text, _WRAPPERS.sub(r"\1", text)
    text = _NOISE.sub("", text).replace("~", " ").strip(_MARKS)
    return " ".join(text.split()).casefold().rstrip(".")


def as_number(answer: str) -> Fraction | None:
    """The number that an answer is, or None; a unit, a currency sign, "about" or "x =" before it is left aside."""
    text = _BEFORE.sub("", _THOUSANDS.sub("", normalised(_UNIT.sub("", answer)))).replace("\\pi", "?")
    if equality := _EQUALITY.fullmatch(text):
        text = equality[1].strip()
    text = re.sub(r"\^?\{?(?:\\circ|°)\}?", "", re.sub(r"^([-+]?)[€£¥￥]", r"\1", text))
    text = _MIXED.sub(_improper, text, count=1)
    text = _FRACTION.sub(lambda m: f"{m[1]}{m[2]}/{m[3]}", text).strip()
    found = _NUMBER.match(text)
    if found is None:
        return None
    rest = text[found.end() :]
    rest = "" if _PLAIN_UNIT.fullmatch(rest) else rest.strip()
    if any(c.isdigit() for c in rest) or any(c in "+*/^=?\\_<>|" for c in rest) or re.match(r"^[a-z](?![a-z])", rest):
        return None
    up, _, down = found[0].replace(" ", "").partition("/")
    if down and int(down) == 0:
        return None
    return Fraction(up) / (int(down) if down else 1)


def _improper(mixed: re.Match[str]) -> str:
    """A whole number and a fraction as one fraction."""
    sign, whole, up, down = mixed[1], int(mixed[2]), int(mixed[3] or mixed[5]), int(mixed[4] or mixed[6])
    return f"{sign}{whole * down + up}/{down}"


def _items(answer: str) -> list[str]:
    text = normalised(answer).strip("[](){} ")
    parts = re.split(r"\s*[,;、]\s*(?:and\s)?|\sand\s", text) if text else []
    return [part.strip("'\"() ") for part in parts]


def _letter(answer: str) -> str | None:
    text = normalised(answer)
    found = re.match(r"^(?:option\s|choice\s|选项)?\s*[(（\[]?([a-j])(?:[)）\].．:,、\s*]|$)", text)
    return found[1] if found else None


def same_answer(given: str, expected: str, kind: str = "number") -> bool:
    """Whether two answers agree as answers of that kind."""
    match kind:
        case "number":
            wanted, got = as_number(expected), as_number(given)
            if wanted is not None:
                return wanted == got
            return normalised(given).replace(" ", "") == normalised(expected).replace(" ", "")
        case "choice":
            letter = _letter(given)
            return letter is not None and letter == _letter(expected)
        case "list":
            return [_plain(i) for i in _items(given)] == [_plain(i) for i in _items(expected)]
        case _:
            return normalised(given) == normalised(expected)


def _plain(item: str) -> str | Fraction:
    number = as_number(item) if re.fullmatch(r"[-+0-9./ ]+", item) else None
    return item if number is None else number
