"""Every `make` target that the documentation names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]

NAMED = re.compile(r"`make ([a-z][a-z-]*)")


def test_every_named_target_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, target) for page in pages for target in NAMED.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert {(page, target) for page, target in named if target not in targets} == set()
