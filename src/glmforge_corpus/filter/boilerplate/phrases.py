"""Lines that web pages add to their text, as patterns: our own lists, in fourteen languages.

`phrases.toml` has three kinds of phrases, by rule and language, each in hyperscan's syntax and without regard to case:

    whole     the line is this, but for decoration around it (white space, arrows, bars, brackets, full stops)
    start     the line begins so
    anywhere  the line contains it; whole notices, too distinctive to stand in prose about something else

They are applied to short lines only (`block.py`). A word that is also an ordinary one-word answer or heading
("Yes", "Contents", "Introduction") is not listed. The lists are a file of their own, one phrase per line, for whoever
knows the language better than Python; a blank at a line's end is written `[ ]`.
"""

import tomllib
from importlib.resources import files
from typing import Literal, get_args

Kind = Literal["whole", "start", "anywhere"]


def _read() -> dict[Kind, dict[str, dict[str, str]]]:
    tables = tomllib.loads(files(__package__).joinpath("phrases.toml").read_text(encoding="utf-8"))
    return {
        kind: {
            rule: {language: "|".join(phrases.splitlines()) for language, phrases in lists.items()}
            for rule, lists in tables[kind].items()
        }
        for kind in get_args(Kind)
    }


PHRASES = _read()
"""Kind -> rule -> language -> one expression of all phrases."""

_SIGN = r"[^\s|·•»›\d.,:;=<>+_(){}\[\]`\"\\-]"
_ITEM = rf"{_SIGN}(?:{_SIGN}| {_SIGN}){{1,28}}"
BARS = {
    "navigation": rf"{_ITEM}(?: [|·•»›] {_ITEM}){{2,12}}",
}
"""Several short items in one line with signs between them: `Home | News | Contact`."""
