"""What the glossary says of the code is so: each place exists, and what should mean one thing is defined once."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
GLOSSARY = (ROOT / "docs/glossary.md").read_text()

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.splitlines()
    if line.startswith("| ") and not line.startswith("| term ")
]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Everything that a file names itself: classes, functions, variables, attributes, with their class before them."""
    found = set[str]()

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            names = []
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                names = [child.name]
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                names = [
                    t.id if isinstance(t, ast.Name) else t.attr
                    for t in targets
                    if isinstance(t, ast.Name | ast.Attribute)
                ]
            found.update(names)
            found.update(f"{owner}.{name}" for name in names if owner)
            visit(child, child.name if isinstance(child, ast.ClassDef) else owner)

    visit(ast.parse(path.read_text()), "")
    return frozenset(found)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_place_exists(row: list[str]) -> None:
    assert len(row) == 4, "a term, its meaning, its place, words not used for it"
    path, *names = re.findall(r"`([^`]+)`", row[2])
    file = SOURCE / (path if path.startswith(("glmforge_ops/", "glmforge_corpus/")) else f"glmforge/{path}")
    assert file.is_file()
    assert set(names) <= names_in(file)


def test_terms_are_listed_once_and_in_order() -> None:
    terms = [row[0] for row in ROWS]
    assert max(Counter(terms).values()) == 1
    for section in GLOSSARY.split("\n## ")[1:]:
        listed = [row[0].lower() for row in ROWS if f"\n| {row[0]} | " in section]
        assert listed == sorted(listed), section.splitlines()[0]


@pytest.mark.parametrize("name", ["Block", "Stage", "Batch", "Table", "Sink", "Progress", "Run", "Engine"])
def test_a_word_that_means_one_thing_is_defined_once(name: str) -> None:
    defined = [path for path in SOURCE.rglob("*.py") if f"class {name}" in path.read_text() and name in names_in(path)]
    assert len(defined) <= 1
