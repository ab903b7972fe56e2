"""Several things done one after the other, none of which keeps the next ones from being done."""

from collections.abc import Callable, Iterable

from glmforge.errors import GlmforgeError, LaunchError

_MOST_SHOWN = 3


def do_all(actions: Iterable[Callable[[], object]]) -> None:
    """Raises at the end: the only error as it was, several as one `LaunchError`."""
    errors: list[GlmforgeError] = []
    for action in actions:
        try:
            action()
        except GlmforgeError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        rest = f"; and {len(errors) - _MOST_SHOWN} more" if len(errors) > _MOST_SHOWN else ""
        raise LaunchError("; ".join(str(error) for error in errors[:_MOST_SHOWN]) + rest)
