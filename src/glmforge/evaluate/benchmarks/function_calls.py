"""The Berkeley Function-Calling Leaderboard v4 (Patil et al., 2025): its files, and how a model sees the functions.

The categories are the single-turn ones in Python, and those requests that no function given can meet. Files are those
in the package bfcl-eval (Apache 2.0). Functions reach the model through its chat template, as a server's `tools`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask

from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks.local_data import Row, Source, read_rows

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""The leaderboard's names of types as JSON Schema has them."""


class FunctionCallTask(ConfigurableTask):
    """A task whose documents have functions, which only a chat template can write."""

    def fewshot_context(
        self, doc: Row, *, system_instruction: str | None, chat_template: Callable[..., str] | None, **_: object
    ) -> str:
        """The conversation, with the functions."""
        if chat_template is None:
            raise GlmforgeError("bfcl: the chat template writes the functions: add --chat")
        system = [{"role": "system", "content": system_instruction}] if system_instruction else []
        tools = [{"type": "function", "function": as_json_schema(one)} for one in json.loads(doc["functions"])]
        return chat_template(system + json.loads(doc["question"]), tools=tools)


def rows_of(category: str, data: Path | None) -> list[Row]:
    """The documents of a category; what has a form of its own in each of them is JSON text."""
    name, url = f"BFCL_v4_{category}.json", "https://github.com/ShishirPatil/gorilla (bfcl_eval/data)"
    path = Source((f"bfcl/{name}", name), url).find(data, "bfcl")
    questions = read_rows(path, {"id": str, "question": list, "function": list}, is_lines=True)
    possible: dict[str, list[Any]] = {row["id"]: [] for row in questions}
    if category != "irrelevance":
        answers = Source((f"possible_answer/{name}",), url).find(path.parent, "bfcl")
        given = read_rows(answers, {"id": str, "ground_truth": list}, is_lines=True)
        possible = {row["id"]: row["ground_truth"] for row in given}
        if missing := next((row["id"] for row in questions if row["id"] not in possible), None):
            raise DataError(f"{answers}: has no answer to {missing}; take both files from the same version")
    if wrong := next((row["id"] for row in questions if [type(turn) for turn in row["question"]] != [list]), None):
        raise DataError(f"{path}: {wrong}: expected a single turn")
    return [
        {
            "id": row["id"],
            "category": category,
            "question": json.dumps(row["question"][0]),
            "functions": json.dumps(row["function"]),
            "possible": json.dumps(possible[row["id"]]),
        }
        for row in questions
    ]


def as_json_schema(schema: Any) -> Any:
    """A function's description with JSON Schema's names of types."""
    if isinstance(schema, list):
        return [as_json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _JSON_TYPES.get(value, value) if key == "type" and isinstance(value, str) else as_json_schema(value)
        for key, value in schema.items()
    }


def in_glm_form(call: Mapping[str, Any]) -> str:
    """A call in a server's reply as the model wrote it."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}").items()
    except (ValueError, AttributeError):  # not an object: nothing that a call could be read from
        return f"\n<tool_call>{function.get('name')}\n{function.get('arguments')}\n</tool_call>"
    lines = (
        f"<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}</arg_value>\n"
        for key, value in arguments
    )
    return f"\n<tool_call>{function.get('name')}\n{''.join(lines)}</tool_call>"
