"""YAML as a tree that remembers where every value was written.

A run's configuration is put together from several files, a preset and the command line. Merging PyYAML's
nodes instead of plain dictionaries keeps each value's file and line, so that an error found at the very end,
after all merging, still points at the line to mend. Trees are never changed in place: every function returns
a new one.

Scalars follow YAML 1.2's core schema, not PyYAML's 1.1: `1e-3` is a number, `no` is a string, `012` is
twelve. Two departures help with large counts: digits may be grouped (`15_000`), and an integral number in
exponent notation is an integer (`15e12` tokens). Duplicate keys, which YAML forbids and PyYAML lets pass, are
errors.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import yaml

from glmforge.errors import ConfigError

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

_NO_LINE = -1


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML reads them from the class


class _Dumper(yaml.SafeDumper):
    """Quotes a string exactly if `_Loader` would read it as something else."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value.replace("_", ""))


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    number = float(node.value.replace("_", ""))
    return int(number) if "e" in node.value.lower() and number.is_integer() else number


for _tag, _pattern in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, None)
    _Dumper.add_implicit_resolver(_tag, _pattern, None)
_Loader.add_constructor(_TAG + "int", _construct_int)
_Loader.add_constructor(_TAG + "float", _construct_float)


def parse(text: str, source: str) -> Node:
    """Parse one YAML document; `source` is the name that errors call it by. Raises `ConfigError`."""
    try:
        loader = _Loader(text)
        loader.name = source
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{source}: not valid YAML: {error.reason} at position {error.position}") from None
    if node is None:
        raise ConfigError(f"{source}: is empty")
    _check(node, ())
    return node


def _check(node: Node, ancestors: tuple[int, ...]) -> None:
    """Refuse what YAML allows but has no meaning in a configuration: foreign types and alias loops."""
    if id(node) in ancestors:
        raise ConfigError(f"{where(node)}: an alias refers to a value that contains it")
    ancestors = (*ancestors, id(node))
    if isinstance(node, yaml.ScalarNode):
        pattern = _SCALARS.get(node.tag)
        if node.tag != _TAG + "str" and not (pattern and pattern.match(node.value)):
            raise ConfigError(f"{where(node)}: {node.value!r} cannot be read as {node.tag}; leave the tag out")
    elif node.tag not in _COLLECTIONS:
        raise ConfigError(f"{where(node)}: {node.tag} is no type of a configuration; leave the tag out")
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node)
    for item in _children(node):
        _check(item, ancestors)


def _children(node: Node) -> list[Node]:
    if isinstance(node, yaml.ScalarNode):
        return []
    return [item[1] if isinstance(item, tuple) else item for item in node.value]


def _check_keys(mapping: yaml.MappingNode) -> None:
    """Refuse keys that are no names, and duplicate ones."""
    seen = set[str]()
    for key, _ in mapping.value:
        if key.tag != _TAG + "str":
            written = key.value if isinstance(key, yaml.ScalarNode) else "a collection"
            raise ConfigError(f"{where(key)}: a key must be a name, not {written}: quote it")
        if key.value in seen:
            raise ConfigError(f"{where(key)}: the key '{key.value}' is given twice")
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
        raise ConfigError(f"{where(node)}: a configuration is a mapping of keys to values")
    return node


def child(node: Node | None, part: str | int) -> Node | None:
    """The value under a key or index, None where there is none."""
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
    merged = yaml.MappingNode(top.tag, base.value, top.start_mark, top.end_mark)
    for key, value in top.value:
        below = child(base, key.value)
        merged = with_child(merged, key, value if below is None else merge(below, value))
    return merged


def assign(node: Node, path: Sequence[str], value: Node, source: str) -> Node:
    """`node` with `value` at the dotted `path`, making mappings on the way. Raises `ConfigError`."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(node, yaml.SequenceNode):
        index = int(part) if part.isdecimal() else -1
        if not 0 <= index < len(node.value):
            raise ConfigError(f"{source}: '{part}' is no item of a list of {len(node.value)}: they count from 0")
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
    source = f"override '{text}'"
    if not (equals and all(key.split("."))):
        raise ConfigError(f"{source}: must have the form dotted.key=value, such as {example}")
    if not value.strip():
        raise ConfigError(f"{source}: has no value; write {key}=null to unset it")
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
