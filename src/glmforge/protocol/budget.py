"""How many tokens of reasoning an effort stands for. GLM has no such setting: a thought that is longer is closed."""

BUDGETS = {"minimal": 512, "low": 2048, "medium": 8192}
"""More effort has no limit."""


def effort_budget(effort: str | None) -> int | None:
    """Tokens at most; None for no limit."""
    return None if effort is None else BUDGETS.get(effort)
