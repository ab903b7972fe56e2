"""Functions for agents: a calculator, Python in the sandbox, search over a local corpus.

A function takes texts and returns one; its name, docstring and arguments are what the model is told of it. What is
wrong with an argument is the result ("error: ..."): the model may try again.
"""

import ast
import inspect
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glmforge.data.chat.read import read_records
from glmforge.errors import DataError
from glmforge.verify.sandbox import run_program

Tool = Callable[..., str]
PROGRAM_S = 10.0
NUM_FOUND = 3
_MAX_CHARACTERS = 1000
"""Of an expression, and so about of its value's digits."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def schema_of(tool: Tool) -> dict[str, Any]:
    """As the chat template writes it; all arguments are required."""
    properties = {name: {"type": "string"} for name in inspect.signature(tool).parameters}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}
    return {"type": "function", "function": function}


def tools_named(names: Sequence[str], corpus: Path | None = None) -> list[Tool]:
    """Raises `GlmforgeError`: no sandbox for Python, no corpus that can be read."""
    if "python" in names:
        run_program("")
    known: list[Tool] = [calculator, python, *([] if corpus is None else [search_over(read_corpus(corpus))])]
    return [tool for tool in known if tool.__name__ in names]


def calculator(expression: str) -> str:
    """Computes + - * / // % and brackets: whole numbers exactly, others to 10 digits."""
    try:
        value = _value(ast.parse(expression.strip()[:_MAX_CHARACTERS], mode="eval").body)
        return str(value) if isinstance(value, int) else f"{value:.10g}"
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return "error: not an expression of + - * / // % that has a value"


def _value(node: ast.AST) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    parts = [node.operand] if isinstance(node, ast.UnaryOp) else []
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else parts
    kind = type(getattr(node, "op", None))
    if not parts or kind not in _OPERATORS:
        raise ValueError("no arithmetic")
    found: int | float = _OPERATORS[kind](*map(_value, parts))
    return found


def python(code: str) -> str:
    """Runs a program and returns what it prints."""
    finished = run_program(code, timeout_s=PROGRAM_S)
    problem = finished.errors.strip().rpartition("\n")[2] if finished.status else ""
    problem = f"took longer than {PROGRAM_S:g} s" if finished.reason == "time" else problem
    return finished.output.strip() + (f"\nerror: {problem}" if problem else "")


def read_corpus(path: Path) -> list[str]:
    """The field `text` of JSON lines. Raises `DataError`."""
    records = [(raw.where, raw.parse().get("text")) for raw in read_records([path], ["text"])]
    if wrong := next((where for where, text in records if not isinstance(text, str)), None):
        raise DataError(f"{wrong}: has nothing to search; add the field text")
    return [str(text) for _, text in records]


def search_over(documents: Sequence[str]) -> Tool:
    """A search by BM25 (Robertson and Zaragoza, 2009; k1 = 1.2, b = 0.75)."""
    counts = [Counter(_words(one)) for one in documents]
    holding = Counter(word for one in counts for word in one)
    mean = sum(one.total() for one in counts) / max(1, len(counts)) or 1.0

    def score(one: Counter[str], word: str) -> float:
        rarity = math.log1p((len(documents) - holding[word] + 0.5) / (holding[word] + 0.5))
        return rarity * one[word] * 2.2 / (one[word] + 1.2 * (0.25 + 0.75 * one.total() / mean))

    def search(query: str) -> str:
        """Finds the documents that fit the words of a query best."""
        words = set(_words(query))
        scores = [(sum(score(one, word) for word in words), -place) for place, one in enumerate(counts)]
        best = sorted((one for one in scores if one[0] > 0), reverse=True)[:NUM_FOUND]
        return "\n\n".join(documents[-place] for _, place in best) or "error: no document has such words"

    return search


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
