"""Rewards of kind python, as configurations name them, that are good but for replies that say "bad"."""

from collections.abc import Callable, Mapping
from typing import Any

from helpers import verifiers

Reward = Callable[[Mapping[str, Any], str, Mapping[str, Any]], float]


def _on_bad(function: Callable[[], Any]) -> Reward:
    return lambda prompt, reply, options: function() if "bad" in reply else 1.0


leave_on = _on_bad(verifiers.leave)
devour_on = _on_bad(verifiers.devour)
hang_on = _on_bad(verifiers.hang)
fail_on = _on_bad(verifiers.fail)
nan_on = _on_bad(lambda: float("nan"))
none_on = _on_bad(lambda: None)
