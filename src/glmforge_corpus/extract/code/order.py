"""Files of a repository in order of dependency: what a file imports comes before it.

Imports are found with a pattern per language and resolved against the files that are there; what is resolved to
nothing is another package's. Depth first from the files in order of their names, each after its imports; where
imports run in a circle, the one that would close it is passed over. So the order depends on names and texts alone.
(DeepSeek-Coder, Guo et al. 2024, orders by in-degree instead; for graphs without circles both are topological.)
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

_PYTHON = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+([^\n#]+))", re.M
)
_SCRIPT = re.compile(r"""(?:\bfrom|\bimport|\brequire\s*\(|\bimport\s*\()\s*["'](\.{1,2}/[^"'\n]+|\.{1,2})["']""")
_GO_BLOCK = re.compile(r'^import[ \t]*(?:\w+[ \t]+|[._][ \t]+)?("[^"\n]+"|\([^)]*\))', re.M)
_QUOTED = re.compile(r'"([^"\n]+)"')
_C = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.M)
_JAVA = re.compile(r"^[ \t]*import[ \t]+(?:static[ \t]+)?([\w.]+?)(\.\*)?[ \t]*;", re.M)
_GO_MODULE = re.compile(r"^module[ \t]+(\S+)", re.M)

_SCRIPT_SUFFIXES = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".vue", ".svelte")
_C_SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".cu", ".cuh", ".m", ".mm")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def order_by_dependency(files: Mapping[str, str]) -> list[str]:
    """The paths of `files` (path -> text): prose first, as it stands at the entrance; then programs, imports first."""
    imports = {path: sorted(set(found) - {path}) for path, found in _imports(files).items()}
    order: list[str] = []
    state: dict[str, bool] = {}  # False: begun, True: done
    for top in sorted(files, key=lambda path: (path.endswith(_SUFFIXES), path.count("/") and 1, path)):
        stack = [(top, iter(imports[top]))] if top not in state else []
        state.setdefault(top, False)
        while stack:
            path, rest = stack[-1]
            following = next((other for other in rest if other not in state), None)
            if following is None:
                state[path] = True
                order.append(path)
                stack.pop()
            else:
                state[following] = False
                stack.append((following, iter(imports[following])))
    return order


class _Tree:
    """The files of a repository, looked up in the ways in which languages name them."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    @cached_property
    def by_name(self) -> Mapping[str, list[str]]:
        names = defaultdict(list)
        for path in sorted(self.files):
            names[posixpath.basename(path)].append(path)
        return names

    @cached_property
    def by_directory(self) -> Mapping[str, list[str]]:
        directories = defaultdict(list)
        for path in sorted(self.files):
            directories[posixpath.dirname(path)].append(path)
        return directories

    @cached_property
    def go_modules(self) -> list[tuple[str, str]]:
        """(module, its directory)."""
        found = ((path, _GO_MODULE.search(self.files[path])) for path in self.by_name.get("go.mod", ()))
        return [(match.group(1), posixpath.dirname(path)) for path, match in found if match]

    def ending(self, tail: str, near: str) -> Iterator[str]:
        """The file whose path ends so; of several the one that shares most directories with `near`, then the first."""
        candidates = [
            path for path in self.by_name.get(posixpath.basename(tail), ()) if path == tail or path.endswith("/" + tail)
        ]
        if candidates:
            yield max(candidates, key=lambda path: (_common(path, near), [-ord(c) for c in path]))


def _common(a: str, b: str) -> int:
    parts = zip(a.split("/")[:-1], b.split("/")[:-1], strict=False)
    count = 0
    for x, y in parts:
        if x != y:
            break
        count += 1
    return count


def _imports(files: Mapping[str, str]) -> dict[str, list[str]]:
    tree = _Tree(files)
    found = {}
    for path, text in files.items():
        suffix = posixpath.splitext(path)[1].lower()
        finder = _FINDERS.get(suffix)
        found[path] = list(finder(path, text, tree)) if finder else []
    return found


def _python(path: str, text: str, tree: _Tree) -> Iterator[str]:
    for match in _PYTHON.finditer(text):
        module, names, plain = match.groups()
        if plain is not None:
            for part in plain.split(","):
                if name := part.split(" as ")[0].strip():
                    yield from _python_module(name.split("."), path, tree)
            continue
        imported = [name.split(" as ")[0].strip() for name in names.strip("()").split(",")]
        stripped = module.lstrip(".")
        level = len(module) - len(stripped)
        parts = stripped.split(".") if stripped else []
        if level:
            base = posixpath.dirname(path)
            for _ in range(level - 1):
                base = posixpath.dirname(base)
            parts = [*(base.split("/") if base else []), *parts]
        for name in imported:
            if _IDENTIFIER.fullmatch(name):
                yield from _python_module([*parts, name], path, tree)
        yield from _python_module(parts, path, tree)


def _python_module(parts: list[str], near: str, tree: _Tree) -> Iterator[str]:
    if not parts:
        return
    stem = "/".join(parts)
    for tail in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}.pyi"):
        found = list(tree.ending(tail, near))
        # A name of one part is looked for beside the file and at the top only: "utils" is in every directory.
        if found and (len(parts) > 1 or posixpath.dirname(found[0]) in ("", "src", posixpath.dirname(near), stem)):
            yield found[0]
            return


def _script(path: str, text: str, tree: _Tree) -> Iterator[str]:
    for match in _SCRIPT.finditer(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match.group(1)))
        stem = posixpath.splitext(target)[0] if target.endswith((".js", ".mjs")) else target
        bases = dict.fromkeys((target, stem))
        tries = [target, *(f"{base}{suffix}" for base in bases for suffix in _SCRIPT_SUFFIXES)]
        tries += [f"{target}/index{suffix}" for suffix in _SCRIPT_SUFFIXES]
        yield from [name for name in tries if name in tree.files][:1]


def _go(path: str, text: str, tree: _Tree) -> Iterator[str]:
    for block in _GO_BLOCK.finditer(text):
        for quoted in _QUOTED.finditer(block.group(1)):
            for module, directory in tree.go_modules:
                if quoted.group(1) == module or quoted.group(1).startswith(module + "/"):
                    target = posixpath.normpath(posixpath.join(directory, quoted.group(1)[len(module) + 1 :]))
                    inside = tree.by_directory.get("" if target == "." else target, ())
                    yield from (name for name in inside if name.endswith(".go") and not name.endswith("_test.go"))


def _c(path: str, text: str, tree: _Tree) -> Iterator[str]:
    for match in _C.finditer(text):
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), match.group(1)))
        if beside in tree.files:
            yield beside
        elif not match.group(1).startswith("."):
            yield from tree.ending(match.group(1), path)


def _java(path: str, text: str, tree: _Tree) -> Iterator[str]:
    for match in _JAVA.finditer(text):
        name, star = match.groups()
        tail = name.replace(".", "/")
        found = list(tree.ending(tail + ".java", path)) or list(tree.ending(posixpath.dirname(tail) + ".java", path))
        yield from found
        if star and not found:
            for directory, paths in tree.by_directory.items():
                if directory == tail or directory.endswith("/" + tail):
                    yield from (other for other in paths if other.endswith(".java"))


_Finder = Callable[[str, str, _Tree], Iterable[str]]
_FINDERS: dict[str, _Finder] = {
    ".py": _python,
    ".pyi": _python,
    ".go": _go,
    ".java": _java,
    **dict.fromkeys(_SCRIPT_SUFFIXES, _script),
    **dict.fromkeys(_C_SUFFIXES, _c),
}
_SUFFIXES = tuple(_FINDERS)
