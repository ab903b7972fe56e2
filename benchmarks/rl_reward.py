"""A reward with a spread among answers that are as good as random: of `rl_step.py`, for its processes that reward."""

from collections.abc import Mapping
from typing import Any


def digits(record: Mapping[str, Any], reply: str, options: Mapping[str, Any]) -> float:
    """The share of digits."""
    return sum(map(str.isdigit, reply)) / max(1, len(reply))
