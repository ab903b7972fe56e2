"""No text says twice what a merge has put side by side."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
MARK = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)


def test_no_marks_of_a_merge():
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.yaml")]
    assert [file.name for file in files if MARK.search(file.read_text())] == []
    assert MARK.search("ours\n=======\ntheirs\n>>>>>>> main\n")
