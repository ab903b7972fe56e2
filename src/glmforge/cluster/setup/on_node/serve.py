"""Answers one request on a machine: facts, what changes would meet, changes, and their undoing. See `changes`."""

from __future__ import annotations

from typing import Any


def serve(request: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The answer to `request`; `parts` are the functions of `changes` and `facts` by name."""
    answer: dict[str, Any] = {}
    if "facts" in request:
        answer["facts"] = parts["facts"](request["facts"])
    if "look" in request:
        answer["look"] = [parts["look"](change) for change in request["look"]]
    if "greet" in request:
        answer["greet"] = parts["greet"](request["greet"])
    if "gpus" in request:
        answer["gpus"] = parts["find_gpus"]()
    if "bind" in request:
        answer["bind"] = parts["can_bind"](request["bind"])
    for task in ("apply", "undo"):
        if task in request:
            answer[task] = [_try(parts[task], entry, parts["Refusal"]) for entry in request[task]]
    return answer


def _try(act: Any, entry: list[Any], refusal: Any) -> str:
    """Empty if it went well; else why not. One that fails does not keep the others from being tried."""
    change, before = entry
    try:
        act(change, before)
    except refusal as error:
        return str(error)
    except OSError as error:
        return f"{change['path']}: {error.strerror or error}"
    return ""
