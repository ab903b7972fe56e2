"""Functions for agents: a calculator, Python in the sandbox, search over a local corpus.

What is wrong with an argument is told to the model as the result ("error: ..."): it may try again.
"""

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.data.chat.read import read_records
from glmforge.errors import DataError
from glmforge.files import shown
from glmforge.verify.sandbox import run_program

PROGRAM_S = 10.0
_MAX_BITS = 4096
"""Of a number while it is computed."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A function of texts; `parameters`: what each argument is. All of them are required."""

    name: str
    description: str
    parameters: dict[str, str]
    function: Callable[..., str]

    @property
    def schema(self) -> dict[str, Any]:
        """As the chat template writes it."""
        properties = {name: {"type": "string", "description": said} for name, said in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def tools_named(names: Sequence[str], corpus: Path | None = None) -> list[Tool]:
    """Raises `GlmforgeError`: no sandbox for Python, no corpus that can be read."""
    found = []
    for name in names:
        if name == "calculator":
            found.append(
                Tool(name, "Compute + - * / // % ** and brackets.", {"expression": "such as 2*(3+4)"}, calculate)
            )
        elif name == "python":
            run_program("")
            found.append(Tool(name, "Run a program; returns what it prints.", {"code": "Python"}, run_python))
        else:
            assert corpus is not None, "checked with the configuration"
            search = Corpus.read(corpus).search
            found.append(Tool(name, "Search documents; returns the best ones.", {"query": "words"}, search))
    return found


def calculate(expression: str) -> str:
    """The value of an arithmetic expression: whole numbers exactly, others to 10 digits."""
    try:
        value = _value(ast.parse(expression.strip()[:1000], mode="eval").body)
        return str(value) if isinstance(value, int) else f"{value:.10g}"
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError):
        return "error: not an expression of + - * / // % ** that has a value"


def _value(node: ast.AST) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _bounded(_OPERATORS[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if abs(right) > _MAX_BITS or (isinstance(left, int) and left.bit_length() * abs(right) > _MAX_BITS):
                raise ValueError("too large")
            return _bounded(left**right)
        if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](left, right))
    raise ValueError("no arithmetic")


def _bounded(value: Any) -> int | float:
    if isinstance(value, complex) or (isinstance(value, int) and value.bit_length() > _MAX_BITS):
        raise ValueError("too large")
    return value if isinstance(value, int) else float(value)


def run_python(code: str) -> str:
    """What a program prints, in the sandbox; of one that fails the last line of its error, too."""
    finished = run_program(code, timeout_s=PROGRAM_S)
    if finished.reason == "time":
        return f"{finished.output}\nerror: took longer than {PROGRAM_S:g} s".strip()
    problem = f"\nerror: {finished.errors.strip().rpartition(chr(10))[2]}" if finished.status else ""
    return f"{finished.output}{problem}".strip()


class Corpus:
    """Documents, found by BM25 (Robertson and Zaragoza, 2009) with k1 = 1.2, b = 0.75. Held in memory."""

    def __init__(self, documents: Sequence[str], num_found: int = 3) -> None:
        self._documents, self._num_found = documents, num_found
        self._counts = [Counter(_words(one)) for one in documents]
        self._holding = Counter(word for counts in self._counts for word in counts)
        self._mean = sum(counts.total() for counts in self._counts) / max(1, len(documents)) or 1.0

    @classmethod
    def read(cls, path: Path) -> "Corpus":
        """JSON lines, of which `text` is searched. Raises `DataError`."""
        documents = []
        for raw in read_records([path], ["text"]):
            text = raw.parse().get("text")
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{raw.where}: needs a text to search; add the field text")
            documents.append(text)
        if not documents:
            raise DataError(f"{shown(path)}: has no documents")
        return cls(documents)

    def search(self, query: str) -> str:
        """The best documents, the best one first."""
        words = set(_words(query))
        scores = [(self._score(counts, words), -place) for place, counts in enumerate(self._counts)]
        best = sorted((one for one in scores if one[0] > 0), reverse=True)[: self._num_found]
        return "\n\n".join(self._documents[-place] for _, place in best) or "error: no document has such words"

    def _score(self, counts: Counter[str], words: set[str]) -> float:
        number, length, score = len(self._documents), counts.total() / self._mean, 0.0
        for word in words & counts.keys():
            rarity = math.log1p((number - self._holding[word] + 0.5) / (self._holding[word] + 0.5))
            score += rarity * counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * length))
        return score


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
