"""How checkpoint errors are put into words: lists of names, and what is wrong in a file."""

from collections.abc import Sequence

from pydantic import ValidationError

from glmforge.files import shown

_NAMED = 3  # messages name this many items of a list and count the others


def describe_invalid(error: ValidationError) -> tuple[str, str]:
    """Where the first of the mistakes is ("config.model.vocab_size") and what it is, each without line ends."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return shown(where) if where else "the file", shown(first["msg"])


def list_some(items: Sequence[str], separator: str = ", ") -> str:
    """The first few items; how many more there are."""
    more = len(items) - _NAMED
    return separator.join(items[:_NAMED]) + (f" and {more} more" if more > 0 else "")
