"""The reward of a reply whose right answer is known: for reinforcement learning, evaluation and synthetic data."""

from collections.abc import Mapping
from typing import Any

from glmforge.verify.answers import final_answer, same_answer
from glmforge.verify.tool_calls import parse_calls, same_calls


def reward(verifier: Mapping[str, Any], reply: str) -> float:
    """1.0 for a right reply, 0.0 for any other.

    Args:
        verifier: a record's `verifier`; `kind` and `answer`, for tool calls `calls`.
        reply: the model's text, reasoning included or not.
    """
    if verifier["kind"] == "calls":
        return float(same_calls(parse_calls(reply), verifier["calls"]))
    answer = final_answer(reply)
    return float(answer is not None and same_answer(answer, verifier["answer"], verifier["kind"]))
