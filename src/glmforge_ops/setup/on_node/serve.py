"""Answers one request on a machine: facts, what changes would meet, changes, and their undoing. See `changes`."""

from __future__ import annotations

from glmforge_ops.setup.on_node.changes import Refusal, apply, look, undo
from glmforge_ops.setup.on_node.facts import can_bind, facts, find_gpus, greet

TYPE_CHECKING = False  # as in typing, whose import takes long
if TYPE_CHECKING:
    from typing import Any


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to `request`."""
    answer: dict[str, Any] = {}
    if "facts" in request:
        answer["facts"] = facts(request["facts"])
    if "look" in request:
        answer["look"] = [look(change) for change in request["look"]]
    if "greet" in request:
        answer["greet"] = greet(request["greet"])
    if "gpus" in request:
        answer["gpus"] = find_gpus()
    if "bind" in request:
        answer["bind"] = can_bind(request["bind"])
    for task, act in (("apply", apply), ("undo", undo)):
        if task in request:
            answer[task] = [_try(act, entry) for entry in request[task]]
    return answer


def _try(act: Any, entry: list[Any]) -> str:
    """Empty if it went well; else why not. One that fails does not keep the others from being tried."""
    change, before = entry
    try:
        act(change, before)
    except Refusal as error:
        return str(error)
    except OSError as error:
        return f"{change['path']}: {error.strerror or error}"
    return ""
