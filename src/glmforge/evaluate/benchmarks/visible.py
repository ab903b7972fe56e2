"""The part of a reply that is the answer: what follows the reasoning, up to the task's stop strings.

A stop string inside the reasoning does not end the answer: "Question:" in a chain of thought is no new question. A
reply that was cut while it reasoned has no answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

THINK, END_OF_THINKING = "<think>", "</think>"


def visible_answer(text: str, stops: Sequence[str] = ()) -> str:
    """The answer in what a model wrote, "" where it did not get to one."""
    _, end, answer = text.rpartition(END_OF_THINKING)
    if not end:
        if THINK in text:
            return ""
        return _up_to(text, stops)
    return _up_to(answer.lstrip("\n"), stops)


def stop_strings(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of a task's `until` that can end a text."""
    until = settings.get("until") or ()
    return tuple(dict.fromkeys(text for text in ([until] if isinstance(until, str) else until) if text))


def _up_to(text: str, stops: Sequence[str]) -> str:
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
