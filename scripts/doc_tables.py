"""Write the tables of the documentation that are made from the code: metrics, what may change on a resume, performance,
plans, stages, keys of DeepSpeed, claims, costs, the planner's accuracy, the speed of generation, recovery, environment
variables.

python scripts/doc_tables.py
"""

import sys
from pathlib import Path

from glmforge.checkpoint.compatible import rules_markdown
from glmforge.config.deepspeed import flags_markdown
from glmforge.config.stage import stages_markdown
from glmforge.observe.metrics import metrics_markdown
from glmforge.plan.cost.prices import prices_markdown
from glmforge.plan.cost.settings import settings_markdown
from glmforge.recipes.all_metrics import all_metrics
from glmforge_ops.environment.lint import known_bad_markdown
from glmforge_ops.environment.table import variables_markdown
from glmforge_ops.monitor.rule_files import alerts_markdown

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import claims  # noqa: E402
import performance  # noqa: E402
import plan_published  # noqa: E402
import plan_stages  # noqa: E402
import plan_tables  # noqa: E402
import result_tables  # noqa: E402

DOCS = ROOT / "docs"
TABLES = {
    "metrics.md": [lambda: metrics_markdown(all_metrics())],
    "checkpoints.md": [rules_markdown],
    "performance.md": performance.TABLES,
    "claims.md": claims.TABLES,
    "plan.md": plan_tables.TABLES,
    "plan-accuracy.md": [*plan_published.TABLES],
    "runbook.md": [alerts_markdown],
    "stages.md": [stages_markdown, *plan_stages.TABLES],
    "cost.md": [settings_markdown, prices_markdown],
    "guides/deepspeed-and-megatron.md": [flags_markdown],
    "cluster-env.md": [variables_markdown, known_bad_markdown],
}


def replaced(page: str, table: str) -> str:
    """`page` with `table` in the place of the one that has the same header, or with a command's output in the place of
    what follows the same command in a code block."""
    header = table.splitlines()[0]
    before, found, rest = page.partition(header + "\n")
    if not found:
        raise SystemExit(f"no table of the page begins with {header}")
    rows = rest.splitlines(keepends=True)
    is_table = header.startswith("|")
    ends = (i for i, line in enumerate(rows) if (not line.startswith("|") if is_table else line == "```\n"))
    after = next(ends, len(rows))
    return before + table + "".join(rows[after:])


if __name__ == "__main__":
    for name in {**TABLES, **result_tables.TABLES}:
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        for make in [*TABLES.get(name, ()), *result_tables.TABLES.get(name, ())]:
            text = replaced(text, make())
        page.write_text(text, encoding="utf-8")
