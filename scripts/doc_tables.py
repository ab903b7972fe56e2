"""Write the tables of the documentation that are made from the code: metrics, and what may change on a resume.

python scripts/doc_tables.py
"""

from pathlib import Path

from glmforge.checkpoint.compatible import rules_markdown
from glmforge.observe.metrics import metrics_markdown

DOCS = Path(__file__).parents[1] / "docs"
TABLES = {"metrics.md": metrics_markdown, "checkpoints.md": rules_markdown}


def replaced(page: str, table: str) -> str:
    """`page` with `table` in the place of the one that has the same header."""
    header = table.splitlines()[0]
    before, _, rest = page.partition(header + "\n")
    rows = rest.splitlines(keepends=True)
    after = next((i for i, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return before + table + "".join(rows[after:])


if __name__ == "__main__":
    for name, make in TABLES.items():
        page = DOCS / name
        page.write_text(replaced(page.read_text(encoding="utf-8"), make()), encoding="utf-8")
