"""Programs, verified by reading the text: an evaluator of Python's own syntax trees, and one of described steps.

Nothing is handed to `eval` or `exec`. Every line of a trace must be the state of the program at that pass.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from glmforge_corpus.synthesise.check.formulas import Unreadable

_MAX_STEPS = 5000
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {"range": range, "len": len, "sum": sum, "max": max, "min": min}


class _Program:
    """Carries out a program; `passes` holds the variables after each pass of an innermost loop."""

    def __init__(self, source: str) -> None:
        self.variables: dict[str, Any] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.passes: list[dict[str, Any]] = []
        self.printed: list[str] = []
        self.steps = 0
        self.run(ast.parse(source).body)

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise Unreadable("program: runs too long")
            self.execute(statement)

    def execute(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.variables[name] = self.value(value)
            case ast.For(target=ast.Name(id=name), iter=values, body=body):
                for item in self.value(values):
                    self.variables[name] = item
                    self.loop(body)
            case ast.While(test=test, body=body):
                while self.value(test):
                    self.loop(body)
            case ast.If(test=test, body=body, orelse=otherwise):
                self.run(body if self.value(test) else otherwise)
            case ast.FunctionDef(name=name):
                self.functions[name] = statement
            case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[value])):
                self.printed.append(str(self.value(value)))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value])):
                self.value(target).append(self.value(value))
            case _:
                raise Unreadable(f"program: statement {type(statement).__name__}")

    def loop(self, body: Sequence[ast.stmt]) -> None:
        self.run(body)
        if not any(isinstance(statement, ast.For | ast.While) for statement in body):
            self.passes.append({k: list(v) if isinstance(v, list) else v for k, v in self.variables.items()})

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.variables:
                return self.variables[name]
            case ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
                return _BINARY[type(sign)](self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARE:
                return _COMPARE[type(sign)](self.value(left), self.value(right))
            case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(op=ast.USub()))):
                return self.value(value)[::-1]
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self.call(name, [self.value(a) for a in arguments])
        raise Unreadable(f"program: expression {ast.dump(node)[:80]}")

    def call(self, name: str, arguments: list[Any]) -> Any:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*arguments)
        match self.functions.get(name):
            case ast.FunctionDef(args=ast.arguments(args=[parameter]), body=[ast.Return(value=ast.expr() as result)]):
                outer, self.variables = self.variables, {parameter.arg: arguments[0]}
                value = self.value(result)
                self.variables = outer
                return value
        raise Unreadable(f"program: function {name}")


def python_code(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the output or a line of the trace, or None."""
    source = re.search(r"```python\n(.+?)\n```", question, re.DOTALL)
    if source is None:
        raise Unreadable("no program")
    try:
        program = _Program(source[1])
    except (TypeError, ZeroDivisionError, SyntaxError) as error:
        raise Unreadable(f"program: {error}") from error
    if program.printed != [answer]:
        return "prints something else"
    lines = reasoning.splitlines()[1:]
    if len(lines) != len(program.passes):
        return f"{len(lines)} lines of trace for {len(program.passes)} passes"
    for line, state in zip(lines, program.passes, strict=True):
        for name, value in re.findall(r"(\w+) = (\[.*?\]|[^,]*)", line):
            if str(state.get(name)) != value:
                return f"trace: '{line}'"
    return None


# Each: pattern, what it does to (state, number or letters). Lists first, strings second.
_LIST: tuple[tuple[re.Pattern[str], Callable[[list[int], int], Any]], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (r"ascending|升序", lambda v, k: v.sort()),
        (r"descending|降序", lambda v, k: v.sort(key=lambda x: -x)),
        (r"Reverse|反转", lambda v, k: v.reverse()),
        (r"even numbers|偶数", lambda v, k: [x for x in v if not x & 1]),
        (r"odd numbers|奇数", lambda v, k: [x for x in v if x & 1]),
        (r"first occurrence|第一次出现", lambda v, k: [x for i, x in enumerate(v) if x not in v[:i]]),
        (r"its square|平方", lambda v, k: [x**2 for x in v]),
        (r"all before it|前面所有数", lambda v, k: [sum(v[: i + 1]) for i in range(len(v))]),
        (
            r"Swap the first|交换第一个",
            lambda v, k: [v[-1 - i] if i in (0, len(v) - 1) else x for i, x in enumerate(v)],
        ),
        (r"Add (\d+) to|加上(\d+)", lambda v, k: list(map(k.__add__, v))),
        (r"Multiply each number by (\d+)|乘以(\d+)", lambda v, k: list(map(k.__mul__, v))),
        (r"greater than (\d+)|大于(\d+)", lambda v, k: [x for x in v if not x > k]),
        (r"divisible by (\d+)|被(\d+)整除", lambda v, k: [x for x in v if x - x // k * k]),
        (r"Move the first (\d+)|把前(\d+)个数移", lambda v, k: [v[(i + k) % len(v)] for i in range(len(v))]),
        (r"Append the number (\d+)|添加数(\d+)", lambda v, k: v.append(k)),
        (r"remainder modulo (\d+)|除以(\d+)的余数", lambda v, k: [x - x // k * k for x in v]),
    )
)


def list_steps(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the result or a line of the trace, or None."""
    first, *steps, last = question.splitlines()
    start = re.search(r"\[([-\d, ]*)\]", first)
    if start is None:
        raise Unreadable("no list")
    values = [int(x) for x in start[1].split(",")]
    lines = reasoning.splitlines()
    if len(lines) != len(steps):
        return "another number of steps"
    for step, line in zip(steps, lines, strict=True):
        values = _apply_to_list(step, values)
        if line.partition(". ")[2] != str(values):
            return f"trace: '{line}'"
    return None if _asked_of_list(last, values) == answer else "another result"


def _apply_to_list(step: str, values: list[int]) -> list[int]:
    for pattern, act in _LIST:
        found = pattern.search(step)
        if found:
            work = list(values)
            result = act(work, int(next((g for g in found.groups() if g), 0)))
            return work if result is None else list(result)
    raise Unreadable(f"step '{step}'")


def _asked_of_list(text: str, values: list[int]) -> str:
    if re.search(r"sum|之和", text):
        return str(sum(values))
    if re.search(r"largest|最大", text):
        return str(max(values))
    return str(len(values)) if re.search(r"How many|多少个", text) else str(values)


_STRING: tuple[tuple[re.Pattern[str], Callable[[str, tuple[str, ...]], str]], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (r"Reverse|反转", lambda s, g: "".join(reversed(s))),
        (r"vowels|元音", lambda s, g: re.sub("[aeiou]", "", s)),
        (r"alphabetically|字母表顺序", lambda s, g: "".join(c * s.count(c) for c in "abcdefghijklmnopqrstuvwxyz")),
        (r"every second|每隔一个", lambda s, g: "".join(c for i, c in enumerate(s) if i % 2 == 0)),
        (r"Double each|重复一次", lambda s, g: re.sub("(.)", r"\1\1", s)),
        (r"first occurrence|第一次出现", lambda s, g: "".join(c for i, c in enumerate(s) if s.index(c) == i)),
        (r"second half|后半", lambda s, g: s[-(len(s) // 2) :] * (len(s) > 1) + (s[len(s) // 2] if len(s) % 2 else "") + s[: len(s) // 2]),
        (r"Move the first (\d+)|把前(\d+)个字母移", lambda s, g: "".join(s[(i + int(g[0])) % len(s)] for i in range(len(s)))),
        (r"Shift each letter (\d+)|后移(\d+)位", lambda s, g: s.translate({97 + i: 97 + (i + int(g[0])) % 26 for i in range(26)})),
        (r"Remove the first (\d+)|删去前(\d+)个", lambda s, g: s.removeprefix(s[: int(g[0])])),
        (r"Replace each letter '(\w)' by '(\w)'|每个字母 '(\w)' 换成 '(\w)'", lambda s, g: re.sub(g[0], g[1], s)),
        (r"Remove each letter '(\w)'; append '(\w)'|每个字母 '(\w)'，再在末尾添加 '(\w)'", lambda s, g: "".join(s.split(g[0])) + g[1]),
        (r"Append '(\w+)'|末尾添加 '(\w+)'", lambda s, g: s + g[0]),
    )
)  # fmt: skip


def string_steps(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the result or a line of the trace, or None."""
    first, *steps, last = question.splitlines()
    start = re.search(r'"(\w+)"', first)
    if start is None:
        raise Unreadable("no string")
    text, lines = start[1], reasoning.splitlines()
    if len(lines) != len(steps):
        return "another number of steps"
    for step, line in zip(steps, lines, strict=True):
        pattern, act = next(((p, a) for p, a in _STRING if p.search(step)), (None, None))
        if pattern is None or act is None:
            raise Unreadable(f"step '{step}'")
        found = pattern.search(step)
        assert found is not None
        text = act(text, tuple(g for g in found.groups() if g))
        if line.partition(". ")[2] != text:
            return f"trace: '{line}'"
    wanted = str(len(text)) if re.search(r"How many|多少个", last) else text
    return None if wanted == answer else "another result"


CHECKS: dict[str, Callable[[str, str, str], str | None]] = {
    "python_code": python_code,
    "list_steps": list_steps,
    "string_steps": string_steps,
}
