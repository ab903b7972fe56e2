"""Small Python programs, drawn statement by statement and carried out as they are drawn up.

A program is a tree of tuples; `_run` evaluates the tree, `_write` prints it. The checker reads the printed text with
Python's own parser and evaluates that with other code.
"""

from collections.abc import Iterator
from typing import Any

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.problem import Unlucky

Tree = tuple[Any, ...]
MAX_PASSES = 24


def draw_program(draw: Draw, level: int) -> tuple[str, list[str], str]:
    """(source, one line of trace per pass of a loop, output)."""
    shape = draw.pick(_SHAPES[level - 1])
    body, watched = shape(draw, level)
    lines: list[str] = []
    state: dict[str, Any] = {}
    trace: list[str] = []
    for statement in body:
        _write(statement, 0, lines)
        _run(statement, state, watched, trace)
    if not trace or len(trace) > MAX_PASSES or any(isinstance(v, int) and abs(v) > 10**7 for v in state.values()):
        raise Unlucky
    return "\n".join(lines), trace, str(state["<printed>"])


def _run(statement: Tree, state: dict[str, Any], watched: tuple[str, ...], trace: list[str]) -> None:
    match statement:
        case ("set", name, value):
            state[name] = _value(value, state)
        case ("append", name, value):
            state[name] = [*state[name], _value(value, state)]
        case ("if", condition, then, otherwise):
            for inner in then if _value(condition, state) else otherwise:
                _run(inner, state, watched, trace)
        case ("for", name, values, body):
            for item in _value(values, state):
                state[name] = item
                _pass(body, state, watched, trace)
        case ("while", condition, body):
            while _value(condition, state):
                if len(trace) > MAX_PASSES:
                    raise Unlucky
                _pass(body, state, watched, trace)
        case ("def", name, parameter, value):
            state[name] = (parameter, value)
        case ("print", value):
            state["<printed>"] = _value(value, state)
        case _:
            raise AssertionError(statement)


def _pass(body: list[Tree], state: dict[str, Any], watched: tuple[str, ...], trace: list[str]) -> None:
    inner = any(s[0] in ("for", "while") for s in body)
    for statement in body:
        _run(statement, state, watched, trace)
    if len(trace) > MAX_PASSES:
        raise Unlucky
    if not inner:
        trace.append(", ".join(f"{name} = {state[name]}" for name in watched))


def _value(tree: Any, state: dict[str, Any]) -> Any:
    if not isinstance(tree, tuple):
        return tree
    match tree:
        case ("name", name):
            return state[name]
        case ("range", *bounds):
            return range(*(_value(bound, state) for bound in bounds))
        case ("call", function, argument):
            if function in ("len", "sum"):
                values = _value(argument, state)
                return len(values) if function == "len" else sum(values)
            parameter, body = state[function]
            return _value(body, {parameter: _value(argument, state)})
        case ("slice", value):
            return _value(value, state)[::-1]
        case (left, sign, right):
            return _binary(_value(left, state), sign, _value(right, state))
    raise AssertionError(tree)


def _binary(a: Any, sign: str, b: Any) -> Any:
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "==":
            return a == b
        case "<":
            return a < b
        case ">":
            return a > b
        case _:
            return a != b


def _write(statement: Tree, depth: int, lines: list[str]) -> None:
    pad = "    " * depth
    match statement:
        case ("set", name, value):
            lines.append(f"{pad}{name} = {_show(value)}")
        case ("append", name, value):
            lines.append(f"{pad}{name}.append({_show(value)})")
        case ("if", condition, then, otherwise):
            lines.append(f"{pad}if {_show(condition)}:")
            _block(then, depth, lines)
            if otherwise:
                lines.append(f"{pad}else:")
                _block(otherwise, depth, lines)
        case ("for", name, values, body):
            lines.append(f"{pad}for {name} in {_show(values)}:")
            _block(body, depth, lines)
        case ("while", condition, body):
            lines.append(f"{pad}while {_show(condition)}:")
            _block(body, depth, lines)
        case ("def", name, parameter, value):
            lines += [f"{pad}def {name}({parameter}):", f"{pad}    return {_show(value)}", ""]
        case ("print", value):
            lines.append(f"{pad}print({_show(value)})")


def _block(body: list[Tree], depth: int, lines: list[str]) -> None:
    for statement in body:
        _write(statement, depth + 1, lines)


def _show(tree: Any, inside: bool = False) -> str:
    if not isinstance(tree, tuple):
        return f'"{tree}"' if isinstance(tree, str) else repr(tree)
    match tree:
        case ("name", name):
            return str(name)
        case ("range", *bounds):
            return f"range({', '.join(_show(b) for b in bounds)})"
        case ("call", function, argument):
            return f"{function}({_show(argument)})"
        case ("slice", value):
            return f"{_show(value, True)}[::-1]"
        case _:
            left, sign, right = tree
            text = f"{_show(left, True)} {sign} {_show(right, True)}"
            return f"({text})" if inside else text


def _variables(draw: Draw) -> Iterator[str]:
    return iter(draw.shuffled(("total", "result", "count", "acc", "score", "value")))


def _update(draw: Draw, name: str, item: Tree, small: bool = False) -> Tree:
    """name = something of name and item."""
    own: Tree = ("name", name)
    k = draw.integer(2, 7)
    choices: list[Tree] = [
        (own, "+", item), (own, "-", item), (own, "+", (item, "*", k)), (own, "+", (item, "%", k)), (own, "+", k),
        (own, "-", k), (own, "+", (item, "*", item)), (own, "+", (item, "//", k)),
    ]  # fmt: skip
    if small:
        choices.append(((own, "*", draw.integer(2, 3)), "+", item))
    return ("set", name, draw.pick(choices))


def _condition(draw: Draw, item: Tree) -> Tree:
    k = draw.integer(2, 5)
    return draw.pick(
        (
            ((item, "%", k), "==", draw.below(k)),
            (item, ">", draw.integer(2, 9)),
            (item, "<", draw.integer(3, 12)),
            ((item, "%", 2), "!=", 0),
        )
    )


def _items(draw: Draw, level: int) -> Any:
    if draw.chance(0.5):
        return [draw.integer(1, 10 + 4 * level) for _ in range(draw.integer(3, 4 + level))]
    start = draw.integer(1, 5)
    stride = draw.integer(1, 3)
    stop = start + stride * draw.integer(3, 4 + level)
    return ("range", start, stop, stride) if stride > 1 else ("range", start, stop)


def _accumulate(draw: Draw, level: int) -> tuple[list[Tree], tuple[str, ...]]:
    names = _variables(draw)
    a, item = next(names), draw.pick("nxik")
    here: Tree = ("name", item)
    body = [_update(draw, a, here, small=True)]
    if level >= 2:
        body = [("if", _condition(draw, here), body, [_update(draw, a, here)] if draw.chance(0.5) else [])]
    if level >= 3:
        b = next(names)
        body.append(_update(draw, b, ("name", a) if draw.chance(0.3) else here))
        return [
            ("set", a, draw.below(10)),
            ("set", b, draw.below(10)),
            ("for", item, _items(draw, level), body),
            ("print", (("name", a), draw.pick("+-*"), ("name", b))),
        ], (item, a, b)
    return [("set", a, draw.below(10)), ("for", item, _items(draw, level), body), ("print", ("name", a))], (item, a)


def _build_list(draw: Draw, level: int) -> tuple[list[Tree], tuple[str, ...]]:
    item, out = draw.pick("nxi"), draw.pick(("out", "kept", "items"))
    here: Tree = ("name", item)
    grown: Tree = draw.pick(
        (
            (here, "*", draw.integer(2, 5)),
            (here, "+", draw.integer(1, 9)),
            here,
            (here, "*", here),
            (here, "%", draw.integer(2, 6)),
        )
    )
    body: list[Tree] = [("append", out, grown)]
    if level >= 2:
        body = [("if", _condition(draw, here), body, [("append", out, draw.integer(0, 9))] if draw.chance(0.4) else [])]
    own: Tree = ("name", out)
    printed: Tree = draw.pick((own, ("call", "sum", own), ("call", "len", own), ("slice", own)))
    return [("set", out, []), ("for", item, _items(draw, level), body), ("print", printed)], (item, out)


def _build_string(draw: Draw, level: int) -> tuple[list[Tree], tuple[str, ...]]:
    word = "".join(draw.pick("abcdegiklmnoprst") for _ in range(3 + level))
    own: Tree = ("name", "s")
    here: Tree = ("name", "c")
    letter = draw.pick(word)
    front: Tree = ("set", "s", (here, "+", own))
    behind: Tree = ("set", "s", (own, "+", here if draw.chance(0.5) else (here, "+", draw.pick("-_."))))
    body: list[Tree] = [("if", (here, draw.pick(("==", "!=", "<", ">")), letter), [front], [behind])]
    return [("set", "s", draw.pick(("", "", "z", "q"))), ("for", "c", word, body), ("print", own)], ("c", "s")


def _while_loop(draw: Draw, level: int) -> tuple[list[Tree], tuple[str, ...]]:
    own: Tree = ("name", "n")
    counter = draw.pick(("steps", "count", "rounds"))
    k = draw.integer(2, 4)
    small: Tree = ("set", "n", (own, "//", k))
    other: Tree = ("set", "n", (own, "-", draw.integer(1, 7)))
    body: list[Tree] = [
        ("if", ((own, "%", k), "==", 0), [small], [other]),
        ("set", counter, (("name", counter), "+", own if draw.chance(0.4) else 1)),
    ]
    return [
        ("set", "n", draw.integer(10, 60 * level)),
        ("set", counter, draw.below(5)),
        ("while", (own, ">", draw.integer(1, 9)), body),
        ("print", draw.pick((("name", counter), (own, "+", ("name", counter))))),
    ], ("n", counter)


def _nested(draw: Draw, level: int) -> tuple[list[Tree], tuple[str, ...]]:
    i: Tree = ("name", "i")
    j: Tree = ("name", "j")
    total = next(_variables(draw))
    own: Tree = ("name", total)
    term: Tree = draw.pick(
        ((i, "*", j), (i, "+", j), ((i, "*", draw.integer(2, 4)), "-", j), ((i, "+", j), "%", draw.integer(2, 4)))
    )
    inner: list[Tree] = [("set", total, (own, draw.pick("++-"), term))]
    if draw.chance(0.6):
        inner = [
            (
                "if",
                (((i, "+", j), "%", draw.integer(2, 3)), "==", 0),
                inner,
                [("set", total, (own, "+", 1))] if draw.chance(0.5) else [],
            )
        ]
    stop: Any = (i, "+", 1) if draw.chance(0.4) else draw.integer(3, 5)
    loop: Tree = (
        "for",
        "i",
        ("range", draw.integer(1, 2), draw.integer(4, 5)),
        [("for", "j", ("range", draw.below(2), stop), inner)],
    )
    return [("set", total, draw.below(10)), loop, ("print", own)], ("i", "j", total)


def _helper(draw: Draw, level: int) -> tuple[list[Tree], tuple[str, ...]]:
    x: Tree = ("name", "x")
    own: Tree = ("name", "n")
    formula: Tree = draw.pick(
        (
            ((x, "*", draw.integer(2, 4)), "-", draw.integer(1, 9)),
            ((x, "*", x), "%", draw.integer(7, 19)),
            ((x, "//", 2), "+", draw.integer(1, 9)),
        )
    )
    total = next(_variables(draw))
    body: list[Tree] = [("set", total, (("name", total), "+", ("call", "f", own)))]
    if draw.chance(0.6):
        body = [("if", _condition(draw, own), body, [_update(draw, total, own)])]
    return [
        ("def", "f", "x", formula),
        ("set", total, draw.below(10)),
        ("for", "n", _items(draw, level), body),
        ("print", ("name", total)),
    ], ("n", total)


_SHAPES = (
    (_accumulate, _build_list, _build_string),
    (_accumulate, _build_list, _build_string),
    (_accumulate, _build_list, _build_string),
    (_accumulate, _while_loop, _nested, _build_string),
    (_accumulate, _while_loop, _nested, _helper),
)
