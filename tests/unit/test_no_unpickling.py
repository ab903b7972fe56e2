"""Nothing that comes from outside is unpickled: no module calls what would, so no file can run code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
"""Modules that read pickles or code. What our own processes send each other (multiprocessing, the ranks' object
collectives, numba's cache of compiled loops in a directory of its own) is written by them, and named nowhere."""

CALLS = {
    *(("torch", name) for name in ("load", "package")),
    *(("yaml", name) for name in ("load", "load_all", "unsafe_load", "full_load")),  # yaml.safe_load makes no objects
    *((module, "read_pickle") for module in ("pd", "pandas")),
}
NAMES = {"eval", "exec", "compile", "__import__"}


def offences(tree: ast.AST) -> Iterator[str]:
    """What in a module's source could run what a file holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in MODULES:
                yield f"from {node.module}"
            yield from (f"from {node.module} import {a.name}" for a in node.names if (node.module, a.name) in CALLS)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in CALLS:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in NAMES:
                yield f"{node.func.id}()"
            yield from (
                f"{k.arg}="
                for k in node.keywords
                if k.arg in {"allow_pickle", "trust_remote_code", "weights_only"} and not _is(k.value, k.arg)
            )
            if _is_from_pretrained(node) and "trust_remote_code" not in {k.arg for k in node.keywords}:
                yield "from_pretrained without trust_remote_code=False"


def _is_from_pretrained(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained"


def _is(value: ast.expr, name: str) -> bool:
    """Whether an argument has the value that runs nothing."""
    return isinstance(value, ast.Constant) and value.value is (name == "weights_only")


SENT = {"glmforge_ops/health/checks/node.py"}
"""Runs on a node what our own process has sent there: modules of this package."""


def test_no_module_unpickles() -> None:
    found = {
        str(path.relative_to(SOURCE)): list(offences(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert {path for path in SENT if set(found[path]) == {"exec()", "compile()"}} == SENT
    assert {path: what for path, what in found.items() if what and path not in SENT} == {}


@pytest.mark.parametrize(
    "planted",
    [
        *("import pickle", "from pickle import loads", "torch.load(path, weights_only=True)", "from torch import load"),
        *("yaml.load(text)", "np.load(path, allow_pickle=True)", "eval(text)"),
        *("AutoModel.from_pretrained(d, trust_remote_code=True)", "AutoModel.from_pretrained(d)"),
    ],
)
def test_a_planted_one_would_be_found(planted: str) -> None:
    assert list(offences(ast.parse(planted)))


@pytest.mark.parametrize("sound", ["np.load(path, allow_pickle=False)", "json.loads(text)", "re.compile(pattern)"])
def test_harmless_ones_are_not(sound: str) -> None:
    assert not list(offences(ast.parse(sound)))


def test_dcps_reader_has_one_subclass_which_reads_by_itself() -> None:
    """`FileSystemReader` unpickles in `read_metadata` and `read_data`; both are replaced, in one file."""
    users = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bFileSystemReader\b|dcp_to_torch|torch_save_to_dcp", path.read_text(encoding="utf-8"))
    ]
    assert users == ["glmforge/checkpoint/format/read.py"]
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    from glmforge.checkpoint.format.read import CachingReader

    for name in ("read_metadata", "read_data"):
        assert getattr(CachingReader, name) is not getattr(FileSystemReader, name)
