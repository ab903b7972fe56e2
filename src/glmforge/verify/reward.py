"""The reward of a reply whose right answer is known: for reinforcement learning, evaluation and synthetic data."""

from collections.abc import Mapping
from typing import Any

from glmforge.verify.answers import final_answer, same_answer
from glmforge.verify.reply import MalformedReply, parse_reply
from glmforge.verify.tool_calls import same_calls


def reward(verifier: Mapping[str, Any], reply: str) -> float:
    """1.0 for a right reply, 0.0 for any other; tool calls are right in GLM's format only.

    Args:
        verifier: a record's `verifier`; `kind` and `answer`, for tool calls `calls`.
        reply: the model's text, reasoning included or not.
    """
    if verifier["kind"] == "calls":
        try:
            answer_alone = parse_reply(reply.rpartition("</think>")[2])
        except MalformedReply:
            return 0.0
        return float(same_calls(answer_alone.tool_calls, verifier["calls"]))
    answer = final_answer(reply)
    return float(answer is not None and same_answer(answer, verifier["answer"], verifier["kind"]))
