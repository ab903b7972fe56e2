"""Damage to the meaning of JSON and YAML: other types, huge numbers, deep nesting, lost, doubled and foreign keys.

What no writer of JSON would write (`NaN`, 5,000 digits, a key twice) is put into the tree as a marked string and
takes its place in the text afterwards.
"""

import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import yaml

from fuzz.format import Mutator
from fuzz.mutate import NUMBERS, byte_mutator, one_of

_MARK = "\ue000"
_MARKED = re.compile(f"[\"']?{_MARK}([^{_MARK}]*){_MARK}[\"']?")

RAW = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "1e400",
        "-1e-400",
        "9" * 5000,
        "-" + "9" * 4300,
        "0" * 200,
        "1" + "_0" * 9,
    ),
    *("[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100, "[" * 5000, "[" * 20_000 + "]" * 20_000),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', "1.0", "1e3", "-0", "0.1e1", "tru", "undefined"),
)
TEXTS = (
    *("", " ", "null", "true", "0", "nan", "None", "a\nb", "\0", "\x1b[2J", "\u2028", "\u202e", "é" * 3, "x" * 10_000),
    *(
        *("../..", "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "~root", "default", "yarn"),
        *("bfloat16", "float8_e4m3fn"),
    ),
    *("model", "self", "__class__", "{0.__class__}", "%s", "\U0001f600", "\ufeff", "." * 300),
)


def json_mutator(*, with_bytes: bool = True) -> Mutator:
    """Damage to a JSON file: mostly to its tree, now and then to its bytes."""
    on_tree = _tree_mutator(lambda content: json.loads(content), lambda tree: json.dumps(tree, ensure_ascii=False))
    return one_of(on_tree, on_tree, on_tree, byte_mutator()) if with_bytes else on_tree


def yaml_mutator() -> Mutator:
    """Damage to a YAML file: to its tree, to its bytes, and by what only YAML has (anchors, tags, documents)."""
    on_tree = _tree_mutator(lambda content: yaml.safe_load(content), _dump_yaml)
    return one_of(on_tree, on_tree, on_tree, byte_mutator(_YAML_TOKENS), byte_mutator())


_YAML_TOKENS = (
    *(
        *(b"&a ", b"*a", b"&a [*a]", b"&a {<<: *a}", b"<<: {a: 1}\n", b"? ", b"- ", b": ", b"| \n"),
        *(b">-\n", b"!!binary aaaa"),
    ),
    *(b"!!int ", b"!!float ", b"!!set {a}", b"!!omap [a: 1]", b"!!timestamp 2001-01-01", b"!!str ", b"!!null x", b"! "),
    *(
        b"!!python/object/apply:os.system ['true']",
        b"!!python/name:os.system",
        b"%YAML 9.9\n---\n",
        b"\n...\n",
        b"\n---\n",
    ),
    *(
        *(b"@", b"`", b"\t", b"\n\t", b"''", b'"\\x"', b"0o777", b"1:30", b"12e400", b".inf", b".nan", b"1_000"),
        *(b"=", b"\n  "),
    ),
)


def _dump_yaml(tree: object) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_style=None, width=1_000_000)


def _tree_mutator(load: Callable[[bytes], Any], dump: Callable[[Any], str]) -> Mutator:
    def damage(content: bytes, rng: Random) -> bytes:
        tree = [load(content)]  # in a list, so that the top is an item like any other
        for _ in range(1 + int(rng.expovariate(1.2))):
            holder, key = rng.choice(list(_places(tree)))
            rng.choice(_CHANGES)(holder, key, rng)
            if not tree:
                tree.append(None)
        text = dump(tree[0])
        return _unmark(text).encode("utf-8", errors="surrogatepass")

    return damage


def _unmark(text: str) -> str:
    """Put raw text where a marked string stands, quotes and all, and a key as it is written."""
    return _MARKED.sub(lambda found: found[1].replace("\\\\", "\\").replace('\\"', '"'), text)


def _marked(text: str) -> str:
    return f"{_MARK}{text}{_MARK}"


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """All items of all collections below `holder`, as (collection, key or index)."""
    waiting = [holder]
    while waiting:
        node = waiting.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            if isinstance(node[key], dict | list):
                waiting.append(node[key])


def _leaf(rng: Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))
    if kind == 1:
        return _marked(rng.choice(RAW))
    if kind == 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return rng.choice((None, True, False))
    if kind == 4:
        return rng.choice((0.5, -1.5, 1e300, 1e-300, 3.0))
    return rng.choice(([], {}, [[]], [None], {"": None}, [0] * 1000, {"a": {"a": {}}}))


def _change_value(holder: Any, key: Any, rng: Random) -> None:
    holder[key] = _leaf(rng)


def _change_number(holder: Any, key: Any, rng: Random) -> None:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _change_value(holder, key, rng)
    holder[key] = rng.choice((-value, value * 2, value + 1, value - 1, value // 2, float(value), str(value), 1 << 40))
    return None


def _wrap(holder: Any, key: Any, rng: Random) -> None:
    holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 3))


def _delete(holder: Any, key: Any, rng: Random) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, rng: Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice((str(key) + "s", str(key).upper(), str(key)[:-1], *TEXTS))] = holder.pop(key)
    else:
        holder.insert(key, _leaf(rng))


def _add(holder: Any, key: Any, rng: Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = _leaf(rng)
    else:
        holder.append(_leaf(rng))


def _double(holder: Any, key: Any, rng: Random) -> None:
    """The same key twice, or the same item."""
    if isinstance(holder, dict):
        holder[_marked(json.dumps(str(key)))] = _leaf(rng)
    else:
        holder.extend([holder[key]] * rng.choice((1, 50)))


def _swap(holder: Any, key: Any, rng: Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


_CHANGES = (_change_value, _change_value, _change_value, _change_number, _wrap, _delete, _rename, _add, _double, _swap)
