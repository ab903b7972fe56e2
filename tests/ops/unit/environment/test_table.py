"""The table of environment variables: complete, agreeing with itself, the linter, the code and its page."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from glmforge.config import cluster as cluster_config
from glmforge_ops.environment.lint import known_bad, known_bad_markdown, lint_environment
from glmforge_ops.environment.table import FOUND, NETWORKS, VARIABLES, Variable, variables_markdown

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "cluster-env.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", VARIABLES, ids=lambda row: row.name)
def test_a_row_is_complete(row: Variable) -> None:
    assert row.source.startswith("https://")
    assert row.meaning.endswith(".")
    assert row.change.endswith(".")
    assert row.default
    assert "|" not in row.meaning + row.change + row.default  # the page's columns
    assert row.set is None or row.find is None
    assert row.find is None or row.find in FOUND
    assert row.name not in {bad.name for bad in known_bad() if bad.values is None}


@pytest.mark.parametrize("row", [row for row in VARIABLES if row.set], ids=lambda row: row.name)
def test_the_linter_has_nothing_to_say_of_what_is_set(row: Variable) -> None:
    assert row.set is not None
    assert lint_environment({row.name: row.set}) == []


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_has_one_row_of_a_variable(network: cluster_config.Network) -> None:
    names = Counter(row.name for row in VARIABLES if row.is_for(network))
    assert max(names.values()) == 1


def test_every_finder_is_used() -> None:
    assert {row.find for row in VARIABLES if row.find} == set(FOUND)


def test_networks_are_those_of_cluster_yaml() -> None:
    assert get_args(cluster_config.Network) == NETWORKS


def test_the_page_shows_both_tables() -> None:
    assert variables_markdown() in PAGE, "run scripts/doc_tables.py"
    assert known_bad_markdown() in PAGE, "run scripts/doc_tables.py"


@cache
def settings_in_code() -> dict[str, set[str | None]]:
    """Variables that glmforge's code sets in a training process, with the values that stand there (None: computed)."""
    found: dict[str, set[str | None]] = {}
    for path in sorted((ROOT / "src" / "glmforge").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if "environ" in text else "")):
            name, value = _setting(node)
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isupper():
                literal = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
                found.setdefault(name.value, set()).add(literal)
    return found


def _setting(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    match node:
        case ast.Call(func=ast.Attribute(attr="setdefault", value=ast.Attribute(attr="environ")), args=[name, value]):
            return name, value
        case ast.Assign(targets=[ast.Subscript(value=place, slice=name)], value=value):
            words = ast.unparse(place)
            if words in ("os.environ", "environ", "environment"):
                return name, value
    return None, None


def test_what_the_code_sets_is_in_the_table_with_the_same_value() -> None:
    settings = settings_in_code()
    assert {"TORCH_FR_BUFFER_SIZE", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "TOKENIZERS_PARALLELISM"} <= settings.keys()
    for name, values in settings.items():
        rows = [row for row in VARIABLES if row.name == name]
        assert rows, f"the code sets {name}, of which the table says nothing"
        assert values - {None} <= {row.set for row in rows}, name


def test_what_glmforge_is_said_to_set_it_sets() -> None:
    assert {row.name for row in VARIABLES if row.by_glmforge} <= settings_in_code().keys()
