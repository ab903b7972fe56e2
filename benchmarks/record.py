"""What every benchmark writes beside its figures: when, on what, by which command and from which code they came.

    write_result("train_step", content, code=["src/glmforge/model", "src/glmforge/kernels"])

writes `benchmarks/results/train_step.json` with a last entry `measured`. Its `code` names the files and folders that
the figures depend on and `code_digest` what was in them, so that `benchmarks/figures.py` can tell which figures are
older than the code that they measured. Comments, docstrings and blank lines are not in the digest: they change none.
"""

import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glmforge.observe.environment import LIBRARIES, describe_machine, git_revision, library_versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def write_result(
    name: str,
    content: dict[str, Any],
    *,
    code: Iterable[str],
    libraries: Iterable[str] = (),
    out: Path | None = None,
) -> Path:
    """Write `content` and where it came from to `results/<name>.json`, or to `out`; returns the file.

    `code` are paths below the repository's root, files or folders; the running script is always one of them.
    `libraries` are packages whose versions matter besides the usual ones. The file is complete or absent.
    """
    script = _relative(Path(sys.argv[0]))
    paths = sorted({*code, script} if (ROOT / script).is_file() else set(code))
    measured = {
        "revision": git_revision(ROOT),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", script, *map(_relative, sys.argv[1:])]),
        "machine": describe_machine(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": library_versions((*LIBRARIES, *libraries)),
        "code": paths,
        "code_digest": code_digest(paths),
    }
    file = out or RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".json.part")
    beside.write_text(json.dumps(content | {"measured": measured}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    beside.replace(file)
    return file


def code_digest(paths: Iterable[str]) -> str:
    """SHA-256 of the files that git knows, or would add, below `paths`, without what changes no figure.

    Raises ValueError for a path with no file: what was measured is not there any more.
    """
    digest = hashlib.sha256()
    for path in paths:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", path]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        files = sorted(file for file in set(listed) if file and (ROOT / file).is_file())
        if not files:
            raise ValueError(f"{path}: no such file in the repository; name what the figures depend on")
        for file in files:
            digest.update(f"{file}\0".encode() + _what_counts(ROOT / file) + b"\0")
    return digest.hexdigest()


def _what_counts(file: Path) -> bytes:
    content = file.read_bytes()
    if file.suffix != ".py":
        return content
    lines = content.splitlines()
    docstrings = _docstring_lines(ast.parse(content))
    kept = [line.rstrip() for number, line in enumerate(lines, 1) if number not in docstrings]
    return b"\n".join(line for line in kept if line and not line.lstrip().startswith(b"#"))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Line numbers of strings that stand alone as statements."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _relative(argument: str | Path) -> str:
    """A path inside the repository as seen from its root; one outside by its last part; other words as they are."""
    path = Path(argument)
    if not path.is_absolute() and not path.exists():
        return str(argument)
    try:
        return str(path.resolve().relative_to(ROOT))
    except ValueError:
        return path.name
