"""Jinja for templates from outside: what they can name is listed, and what they can cost is counted.

Jinja's own sandbox keeps a template from reaching Python's internals. It does not keep `{{ 'a' * 10**10 }}` from
taking all memory or two nested loops over `range(99999)` from running for an hour. Here a template is parsed, its
syntax tree is checked and rewritten, and only then compiled:

* Statements are those that chat templates have; no include, import or extends, no recursive loops.
* Filters, tests, functions and methods are those of a list; each counts what it is given and what it makes.
* Every round of a loop and every call of a macro is a step; operators, comparisons, slices, `~` and output count the
  text that they make or look at (`budget`).
* Nothing is computed while a template is compiled.

Whatever else a template does wrong, it does as any Python code: `TEMPLATE_FAULTS`.
"""

import functools
import json
import math
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, Undefined, nodes, pass_context
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS
from jinja2.ext import loopcontrols
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from glmforge.data.chat_template.budget import MAX_INTEGER, current

TEMPLATE_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError)
"""What compiling or rendering a template may raise besides Jinja's errors (RecursionError is a RuntimeError)."""

MAX_TEMPLATE_CHARACTERS = 1 << 16

_MAX_RANGE = 10_000
_MAX_INDENT = 64

_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.NSRef, nodes.Tuple, nodes.List),
    *(nodes.Dict, nodes.Pair, nodes.Keyword, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.Macro),
    *(nodes.CallBlock, nodes.FilterBlock, nodes.Call, nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem),
    *(nodes.Slice, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.Concat),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.CondExpr),
    *(nodes.Break, nodes.Continue),
)
_TEXT_METHODS = """
    strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith upper lower title capitalize
    replace join find rfind index rindex count isdigit isalpha isalnum isspace isupper islower isnumeric isdecimal
    removeprefix removesuffix swapcase casefold
"""
_METHODS: dict[object, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset(("get", "items", "keys", "values")),
}
_FILTERS = """
    abs capitalize count d default dictsort first float int items last length list lower map max min reject rejectattr
    reverse round select selectattr sort string title trim upper wordcount attr safe
"""
_TESTS = """
    boolean callable defined divisibleby eq equalto even false float ge gt greaterthan in integer iterable le lessthan
    lt lower mapping ne none number odd sameas sequence string true undefined upper == != > >= < <=
"""


def compile_template(source: str) -> Template:
    """Compile a template from outside. Raises `TemplateError` and `TEMPLATE_FAULTS`."""
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise SecurityError(f"it is longer than the {MAX_TEMPLATE_CHARACTERS:,} characters allowed")
    environment = _Environment()
    tree = environment.parse(source)
    for node in tree.find_all(nodes.Node):
        if type(node) not in _NODES or (isinstance(node, nodes.For) and node.recursive):
            raise SecurityError(
                f"line {node.lineno}: it uses {type(node).__name__}, which is not allowed in chat templates"
            )
        if isinstance(node, nodes.Const) and isinstance(node.value, float) and not math.isfinite(node.value):
            raise SecurityError(f"line {node.lineno}: it has a number that is too large")
    counted = _Counting(len(source)).visit(tree)
    return Template.from_code(environment, environment.compile(counted), environment.make_globals(None), None)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], optimized=False, finalize=_count_output
        )
        self.globals = {"range": _range, "namespace": _namespace, "raise_exception": _raise}
        known: dict[str, Any] = DEFAULT_FILTERS
        self.filters = {name: _guarded(known[name]) for name in _FILTERS.split()}
        self.filters |= {
            "tojson": _guarded(_to_json),
            "join": _guarded(_join),
            "replace": _guarded(_replace),
            "indent": _guarded(_indent),
            **_COUNTING_FILTERS,
        }
        known_tests: dict[str, Any] = dict(DEFAULT_TESTS)
        self.tests = {name: _guarded(known_tests[name]) for name in _TESTS.split()}

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        current().step()
        if isinstance(function, Macro | Undefined) or function in (_range, _namespace, _raise):
            return super().call(context, function, *args, **kwargs)
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, LoopContext) and name == "cycle":
            return super().call(context, function, *args, **kwargs)
        if name not in _METHODS.get(type(owner), ()):
            raise SecurityError(f"it calls {name or type(function).__name__!r}, which is not allowed in chat templates")
        for given_to_functions_of_the_context in ("_loop_vars", "_block_vars"):
            kwargs.pop(given_to_functions_of_the_context, None)
        current().spend(len(function.__self__))
        method = _METHODS_IN_WORDS.get(name)
        return _guarded(functools.partial(method, owner) if method else function)(*args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int | Undefined):
            raise SecurityError(f"it looks up a {type(argument).__name__}")
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        current().measure((left, right))
        if operator == "%" and isinstance(left, str):
            raise SecurityError("it formats text with %; use ~")
        if operator == "*" and not isinstance(left, int | float):
            left, right = right, left
        if operator == "*" and isinstance(left, int) and isinstance(right, str | list | tuple):
            current().spend(max(0, left) * (len(right) * (1 if isinstance(right, str) else 64)))
        if operator == "**" and (abs(right) > 128 or (isinstance(left, int) and abs(left) > MAX_INTEGER)):
            raise SecurityError("it raises huge numbers to a power")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > MAX_INTEGER:
            raise SecurityError("it computes with huge numbers")
        return result


class _Counting(NodeTransformer):
    """Puts the counting into a template's syntax tree. The names of its filters cannot be written in a template."""

    def __init__(self, template_size: int) -> None:
        self._size = template_size

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._step(node.lineno))
        if node.test is not None:
            node.test = nodes.And(_filter(nodes.Const(0), ".step"), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._step(node.lineno))
        return node

    visit_CallBlock = visit_Macro

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, ".measured")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, ".measured")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        node.node = _filter(node.node, ".measured")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), ".concat")

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _filter(node.key, ".key")
        return node

    def _step(self, line: int) -> nodes.Node:
        """In a body: what the body says by itself is counted as the whole template at most."""
        return nodes.ExprStmt(_filter(nodes.Const(self._size), ".step")).set_lineno(line)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


def _step(characters: int) -> bool:
    current().step()
    current().spend(characters)
    return True


def _measured(value: Any) -> Any:
    current().measure(value)
    return value


def _concat(values: list[Any]) -> str:
    current().measure(values)
    return "".join(map(str, values))


def _key(value: Any) -> Any:
    if not isinstance(value, str | int | float | None):
        raise SecurityError(f"a {type(value).__name__} as a key")
    return value


_COUNTING_FILTERS = {".step": _step, ".measured": _measured, ".concat": _concat, ".key": _key}


@pass_context
def _count_output(context: Context, value: Any) -> Any:
    """Called with every value that is written; a function of the context, so that Jinja folds no constants."""
    current().measure(value)
    return value


def _guarded(function: Callable[..., Any]) -> Any:
    """The function, counting what it gets and what it makes. Jinja's mark of who gets the context stays on it."""

    @functools.wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        args = tuple(_listed(arg) for arg in args)
        for arg in (*args, *kwargs.values()):
            if not isinstance(arg, Context | _Environment | nodes.EvalContext):
                budget.measure(arg)
        result = function(*args, **kwargs)
        if not isinstance(result, Generator):
            budget.measure(result)
        return result

    return counting


def _listed(value: Any) -> Any:
    """What `map` and its kind have yet to compute, computed."""
    if not isinstance(value, Generator):
        return value
    items = []
    for item in value:
        current().step()
        items.append(item)
    return items


def _range(*args: int) -> range:
    numbers = range(*args)
    if abs(numbers.stop - numbers.start) // abs(numbers.step) > _MAX_RANGE:
        raise SecurityError(f"a range of more than {_MAX_RANGE:,} numbers")
    return numbers


def _namespace(**kwargs: Any) -> Namespace:
    return Namespace(**kwargs)


def _raise(message: object = "") -> NoReturn:
    current().measure(message)
    raise TemplateError(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Replaces Jinja's own filter, which escapes for HTML."""
    _check_indent(indent or 0)
    if indent:
        current().measure([value] * (indent + 1))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    whole, part, other = str(text), str(old), str(new)
    current().spend(len(whole) + whole.count(part) * len(other))
    return whole.replace(part, other, count)


def _join(values: Any, separator: Any = "") -> str:
    texts = [str(value) for value in values]
    current().spend(len(texts) * len(str(separator)))
    return str(separator).join(texts)


def _split(text: str, *args: Any, **kwargs: Any) -> list[str]:
    separator = args[0] if args else kwargs.get("sep")
    pieces = text.count(separator) if separator else min(len(text), sum(map(text.count, " \n\t\r\f\v")))
    current().spend(64 * pieces)
    return text.split(*args, **kwargs)


def _indent(text: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    _check_indent(width)
    lines = str(text).split("\n")
    current().spend(len(lines) * width)
    pad = " " * width
    return "\n".join(pad + line if (n or first) and (line or blank) else line for n, line in enumerate(lines))


def _check_indent(width: object) -> None:
    if not isinstance(width, int) or not 0 <= width <= _MAX_INDENT:
        raise SecurityError(f"an indentation of {width!r:.20}")


_METHODS_IN_WORDS: dict[str, Callable[..., Any]] = {
    "replace": _replace,
    "join": lambda separator, values: _join(values, separator),
    "split": _split,
}
