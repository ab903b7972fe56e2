"""The variables of a training job, in one table: scripts, documentation, checks and the linter read it.

Code of glmforge that sets a variable itself has a row here too, with the same value (a test compares).
"""

from itertools import groupby

from glmforge_ops.environment import table_network, table_process
from glmforge_ops.environment.variable import FOUND, NETWORKS, Variable

VARIABLES: tuple[Variable, ...] = (*table_network.ROWS, *table_process.ROWS)


def rows_of(name: str) -> tuple[Variable, ...]:
    """The rows of a variable: none if the table does not have it, several if it differs between networks."""
    return tuple(row for row in VARIABLES if row.name == name)


def variables_markdown() -> str:
    """The table of `docs/cluster-env.md`."""
    lines = [
        "| variable | the script sets | on | without it | meaning | when to change it |",
        "|---|---|---|---|---|---|",
    ]
    for group, rows in groupby(VARIABLES, key=lambda row: row.group):
        lines.append(f"| **{group}** | | | | | |")
        lines += [_markdown(row) for row in rows]
    return "\n".join(lines) + "\n"


def what_is_set(row: Variable) -> str:
    """In words: the value, what is looked for, or that the variable is left alone."""
    if row.by_glmforge:
        return f"glmforge sets it: `{row.value}`" if row.value else "glmforge sets it"
    if row.found:
        return FOUND[row.found]
    return f"`{row.value}`" if row.value is not None else "nothing"


def where_it_holds(row: Variable) -> str:
    """Networks, and versions of NCCL, in words; empty: everywhere."""
    words = ", ".join(row.networks) if row.networks and row.networks != NETWORKS else ""
    first, end = row.nccl
    version = f"NCCL {first} and later" if first else f"NCCL before {end}" if end else ""
    return "; ".join(filter(None, (words, version)))


def _markdown(row: Variable) -> str:
    name = f"[{row.name}]({row.source})"
    cells = (name, what_is_set(row), where_it_holds(row), row.default, row.meaning, row.change)
    return "| " + " | ".join(cells) + " |"
