"""An option that takes several words: `--sweep a=1,2 b=3,4` is `--sweep a=1,2 --sweep b=3,4`."""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

_OPTION = "--sweep"


class TakesSeveral(TyperCommand):
    """A command whose `--sweep` goes on to the next option, or to a word without '='."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(words: Sequence[str]) -> list[str]:
    """The words with the option written again before each of its values; nothing changes behind '--'."""
    found: list[str] = []
    is_value = goes_on = False  # the word belongs to the option just before, or to the values that it has already
    for number, word in enumerate(words):
        if word == "--":
            return [*found, *words[number:]]
        if is_value:
            is_value, goes_on = False, True
        elif word == _OPTION:
            is_value = True
        elif word.startswith("-") or "=" not in word:
            goes_on = word.startswith(f"{_OPTION}=")
        elif goes_on:
            found.append(_OPTION)
        found.append(word)
    return found
