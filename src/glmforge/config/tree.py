"""YAML as a tree that remembers where every value was written.

A run's configuration is assembled from several files, a preset and the command line. Merging PyYAML's
nodes instead of plain dictionaries keeps each value's file and line, so that an error found at the very end,
after all merging, still points at the line to fix. Trees are never changed in place: every function returns
a new one.

Scalars follow YAML 1.2's core schema, not PyYAML's 1.1: `1e-3` is a number, `no` is a string, `012` is
twelve. Two departures help with large counts: digits may be grouped (`15_000`), and an integral number in
exponent notation is an integer (`15e12` tokens). Duplicate keys, which YAML forbids and PyYAML lets pass, are
errors.

A file may come from a stranger, so what it can ask for is bounded while it is being composed, before anything of it
is used: levels, values (an alias counts as all that it stands for, so ten lines cannot mean a billion values), digits.
"""

import math
import re
import reprlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import yaml

from glmforge.errors import ConfigError
from glmforge.files import MAX_DEPTH, shown

MAX_VALUES = 20_000
"""Most values of one document, keys included, aliases counted as what they stand for."""

Node: TypeAlias = yaml.Node
KeyPath: TypeAlias = Sequence[str | int]

_TAG = "tag:yaml.org,2002:"
_COLLECTIONS = {_TAG + "map", _TAG + "seq"}
_SCALARS = {
    _TAG + "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    _TAG + "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    _TAG + "int": re.compile(r"^[-+]?[0-9][0-9_]*$"),
    _TAG + "float": re.compile(r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
}

_SURROGATE = re.compile("[\ud800-\udfff]")

_NO_LINE = -1
_MAX_QUICK = 1 << 18  # characters
_MAX_QUICK_BRACKETS = 1000
_DEEP = re.compile(r"(?:[-?:][ \t]+){50}")
"""Lists in lists on one line; libyaml composes by recursion, and has no bound."""
_MAX_INTEGER = 2**63 - 1
_MAX_DIGITS = len(str(_MAX_INTEGER))


class _Loader(yaml.SafeLoader):
    """Composes bounded trees: `MAX_DEPTH` levels of `MAX_VALUES` values, aliases counted as what they stand for."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML reads them from the class

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_values = 0
        self._depth = 0  # of the value that is being composed
        self._deepest = 0  # level that was reached below it
        self._measures: dict[int, tuple[int, int]] = {}  # of finished values: how many values, how many levels

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """One value with all below it; raises `ConfigError` as soon as a bound is passed."""
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        outer, self._deepest = self._deepest, self._depth
        before = self._num_values
        self._grow(1, 0, mark)
        node = super().compose_node(parent, index)
        if is_alias:
            if id(node) not in self._measures:
                raise _refused(mark, "an alias refers to a value that contains it")
            self._grow(*self._measures[id(node)], mark)
        else:
            self._measures[id(node)] = self._num_values - before, self._deepest - self._depth + 1
        self._deepest = max(outer, self._deepest)
        self._depth -= 1
        return node

    def _grow(self, values: int, levels: int, mark: yaml.Mark) -> None:
        """Count `values` more, which reach `levels` below the present one."""
        self._num_values += values
        self._deepest = max(self._deepest, self._depth + levels)
        if self._num_values > MAX_VALUES:
            raise _refused(mark, f"more than {MAX_VALUES:,} values up to here, aliases expanded")
        if self._deepest > MAX_DEPTH:
            raise _refused(mark, f"nested more than {MAX_DEPTH} levels deep")


def _refused(mark: yaml.Mark, problem: str) -> ConfigError:
    return ConfigError(f"{mark.name}:{mark.line + 1}: {problem}")


# Where yaml was built without libyaml, it is slower.
class _QuickLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    """Quotes a string exactly if `_Loader` would read it as something else."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = node.value.replace("_", "")
    if len(digits.lstrip("+-0")) > _MAX_DIGITS or abs(number := int(digits)) > _MAX_INTEGER:
        raise ConfigError(f"{where(node)}: {reprlib.repr(digits)} does not fit into a 64-bit integer")
    return number


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    number = float(node.value.replace("_", ""))
    if not math.isfinite(number):
        raise ConfigError(f"{where(node)}: {reprlib.repr(node.value)} is too large for a float")
    is_count = "e" in node.value.lower() and number.is_integer() and abs(number) < _MAX_INTEGER
    return int(number) if is_count else number


for _tag, _pattern in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, None)
    _Dumper.add_implicit_resolver(_tag, _pattern, None)
    _QuickLoader.add_implicit_resolver(_tag, _pattern, None)
for _kind in (_Loader, _QuickLoader):
    _kind.add_constructor(_TAG + "int", _construct_int)
    _kind.add_constructor(_TAG + "float", _construct_float)


def quick_value(text: str) -> Any:
    """The value of a document, read by libyaml: several times as fast as `parse`, but without lines and bounds.

    For small files that programs of glmforge have written, of which many are read at once. None for anything that is
    not as `dump` writes it: `parse` it then, which says what is wrong.
    """
    if "&" in text or "*" in text or len(text) > _MAX_QUICK:
        return None
    if text.count("[") + text.count("{") > _MAX_QUICK_BRACKETS or _DEEP.search(text):
        return None
    try:
        return _QuickLoader(text).get_single_data()
    except (yaml.YAMLError, ConfigError, RecursionError):
        return None


def parse(text: str, source: str) -> Node:
    """Parse one YAML document; `source` is the name that errors call it by. Raises `ConfigError`."""
    source = shown(source)
    try:
        loader = _Loader(text)
        loader.name = source
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {shown(error.problem or error.context)}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{source}: not valid YAML: {error.reason} at position {error.position}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{source}: not valid YAML: {shown(error)}") from None  # `"\U00110000"`, no character
    if node is None:
        raise ConfigError(f"{source}: is empty")
    _check(node)
    return node


def _check(node: Node) -> None:
    """Refuse what YAML allows but has no meaning in a configuration: foreign types, half characters."""
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node)
    elif node.tag not in _COLLECTIONS:
        raise ConfigError(f"{where(node)}: {shown(node.tag)} is not an allowed YAML tag; remove it")
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node)
    for item in _children(node):
        _check(item)


def _check_scalar(node: yaml.ScalarNode) -> None:
    pattern = _SCALARS.get(node.tag)
    if node.tag != _TAG + "str" and not (pattern and pattern.match(node.value)):
        value, tag = reprlib.repr(node.value), shown(node.tag)
        raise ConfigError(f"{where(node)}: {value} cannot be read as {tag}; remove the tag")
    if _SURROGATE.search(node.value):
        raise ConfigError(
            f"{where(node)}: {reprlib.repr(node.value)} contains a lone surrogate, which is not a character"
        )


def _children(node: Node) -> list[Node]:
    if isinstance(node, yaml.ScalarNode):
        return []
    return [item[1] if isinstance(item, tuple) else item for item in node.value]


def _check_keys(mapping: yaml.MappingNode) -> None:
    """Refuse keys that are no names, and duplicate ones."""
    seen = set[str]()
    for key, _ in mapping.value:
        if key.tag != _TAG + "str":
            written = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a collection"
            raise ConfigError(f"{where(key)}: a key must be a name, not {written}: quote it")
        _check_scalar(key)
        if key.value in seen:
            raise ConfigError(f"{where(key)}: the key '{shown(key.value)}' appears twice")
        seen.add(key.value)


def from_value(value: object, source: str) -> Node:
    """Plain values as a tree; errors call their place `source`, without a line."""
    node: Node = _Dumper("").represent_data(value)  # type: ignore[arg-type]
    _mark(node, yaml.Mark(source, 0, _NO_LINE, 0, None, 0))
    return node


def _mark(node: Node, mark: yaml.Mark) -> None:
    node.start_mark = node.end_mark = mark
    for item in node.value if not isinstance(node, yaml.ScalarNode) else ():
        for part in item if isinstance(item, tuple) else (item,):
            _mark(part, mark)


def to_value(node: Node) -> Any:
    """The tree as plain dictionaries, lists and scalars."""
    return _Loader("").construct_document(node)


def dump(value: object) -> str:
    """Plain values as YAML that `parse` and `to_value` read back equal, keys in the given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110)


def as_mapping(node: Node) -> yaml.MappingNode:
    """`node` if it is a mapping, else `ConfigError`."""
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{where(node)}: expected a mapping of keys to values")
    return node


def child(node: Node | None, part: str | int) -> Node | None:
    """The value under a key or index, or None."""
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        return node.value[part]  # type: ignore[no-any-return]
    return None


def with_child(mapping: yaml.MappingNode, key: yaml.ScalarNode, value: Node) -> yaml.MappingNode:
    """`mapping` with `key` set to `value`, in its old place if it had the key."""
    pairs = [(key, value) if old.value == key.value else (old, kept) for old, kept in mapping.value]
    if child(mapping, key.value) is None:
        pairs.append((key, value))
    return yaml.MappingNode(mapping.tag, pairs, mapping.start_mark, mapping.end_mark)


def without_child(mapping: yaml.MappingNode, name: str) -> yaml.MappingNode:
    """`mapping` without the key `name`."""
    pairs = [(key, value) for key, value in mapping.value if key.value != name]
    return yaml.MappingNode(mapping.tag, pairs, mapping.start_mark, mapping.end_mark)


def merge(base: Node, top: Node) -> Node:
    """`top` laid over `base`: mappings merge key by key, lists and scalars of `top` replace."""
    if not (isinstance(base, yaml.MappingNode) and isinstance(top, yaml.MappingNode)):
        return top
    pairs = {key.value: (key, value) for key, value in base.value}
    for key, value in top.value:
        below = pairs.get(key.value)
        pairs[key.value] = (key, value if below is None else merge(below[1], value))
    return yaml.MappingNode(top.tag, list(pairs.values()), top.start_mark, top.end_mark)


def assign(node: Node, path: Sequence[str], value: Node, source: str) -> Node:
    """`node` with `value` at the dotted `path`, making mappings on the way. Raises `ConfigError`."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(node, yaml.SequenceNode):
        index = int(part) if part.isdecimal() else -1
        if not 0 <= index < len(node.value):
            raise ConfigError(
                f"{source}: '{part}' is not an index of this list of {len(node.value)} items; indices start at 0"
            )
        items = [assign(item, rest, value, source) if i == index else item for i, item in enumerate(node.value)]
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    empty = yaml.MappingNode(_TAG + "map", [], value.start_mark, value.end_mark)
    if not isinstance(node, yaml.MappingNode):
        node = empty
    key = yaml.ScalarNode(_TAG + "str", part, value.start_mark, value.end_mark)
    return with_child(node, key, assign(child(node, part) or empty, rest, value, source))


def override(tree: Node, text: str, example: str) -> Node:
    """`tree` with one `dotted.key=value` of a command line laid over it, the value in YAML.

    Raises `ConfigError`, which shows the form by `example` if that is what is wrong.
    """
    key, equals, value = text.partition("=")
    source = f"override '{shown(text)}'"
    if not (equals and all(key.split("."))):
        raise ConfigError(f"{source}: must have the form dotted.key=value, such as {example}")
    if not value.strip():
        raise ConfigError(f"{source}: value is missing; write {key}=null to unset the key")
    return assign(tree, key.split("."), from_value(to_value(parse(value, source)), source), source)


def where(node: Node) -> str:
    """Where a node was written, as `file:line` or a source without lines."""
    mark = node.start_mark
    return str(mark.name) if mark.line == _NO_LINE else f"{mark.name}:{mark.line + 1}"


def locate(tree: Node, path: KeyPath) -> str:
    """Where the key at `path` was written, or the innermost section on the way to it if it was not."""
    place = where(tree)
    for part in path:
        below = child(tree, part)
        if below is None:
            break
        keys = tree.value if isinstance(tree, yaml.MappingNode) else []
        place = next((where(key) for key, _ in keys if key.value == part), where(below))
        tree = below
    return place
