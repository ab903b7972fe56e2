"""The examples of docs/architecture.md run as they stand, and the files that it names exist."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from glmforge.config.optimizers import OPTIMIZERS
from glmforge.config.schedules import SCHEDULES
from glmforge.config.stage import STAGES
from glmforge_corpus.pipeline.registry import BLOCKS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/architecture.md").read_text()
HEADING_OR_CODE = re.compile(r"^### (?P<heading>[^\n]+)$|^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def examples() -> Iterator[tuple[str, str]]:
    """The heading above each block of Python, and the block."""
    heading = ""
    for found in HEADING_OR_CODE.finditer(PAGE):
        heading = found["heading"] or heading
        if found["code"]:
            yield heading, found["code"]


(_, SETUP), *EXAMPLES = examples()
REGISTRIES: tuple[dict[str, Any], ...] = (OPTIMIZERS, SCHEDULES, STAGES, BLOCKS)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What an example registers is forgotten after it."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, rows in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(rows)


@pytest.mark.parametrize(("heading", "example"), EXAMPLES, ids=[heading for heading, _ in EXAMPLES])
def test_every_example_runs(heading: str, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # registries find classes by the names of their modules
    torch.manual_seed(0)
    exec(compile(SETUP + example, "docs/architecture.md", "exec"), vars(module))


def test_every_file_named_exists() -> None:
    sources = [ROOT, ROOT / "src", ROOT / "src/glmforge"]
    named = set(re.findall(r"`([\w/]+\.(?:py|md|svg|toml))`", PAGE))
    assert len(named) > 30
    assert [path for path in sorted(named) if not any((source / path).is_file() for source in sources)] == []
