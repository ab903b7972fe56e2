"""Lab notes stay short: entries of at most ten lines of normal width, and an index that names every file."""

import re
from pathlib import Path

import pytest

NOTES = Path(__file__).parents[3] / "docs/lab-notes"
ENTRIES = [
    (page.name, entry) for page in sorted(NOTES.glob("*.md")) for entry in page.read_text("utf-8").split("\n## ")[1:]
]


def test_the_index_names_every_file() -> None:
    index = re.findall(r"^- \[[^]]+\]\(([^)]+)\): ", (NOTES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(index) == sorted({page for page, _ in ENTRIES})


@pytest.mark.parametrize("page", sorted({page for page, _ in ENTRIES}))
def test_entries_are_short_and_say_what_was_measured(page: str) -> None:
    for title, *lines in (entry.splitlines() for name, entry in ENTRIES if name == page):
        assert sum(bool(line) for line in lines) <= 10, title
        assert max(map(len, lines)) <= 140, title
        assert "*Measured*" in " ".join(lines), title
