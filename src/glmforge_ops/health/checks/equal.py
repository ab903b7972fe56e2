"""What must be the same on all nodes: those that differ from most are the ones to mend."""

from collections import Counter
from collections.abc import Callable, Mapping

from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped


def compare_facts(
    nodes: Mapping[str, Facts],
    read: Callable[[Facts], str | None],
    what: str,
    mend: str,
    expected: str | None = None,
    absent: str = "not there",
) -> dict[str, Outcome]:
    """`compare_values` of what `read` finds in each node's facts; a node that has none is skipped.

    A node that says nonsense fails alone: it neither hides the others nor counts among them.

    Args:
        absent: why a node is skipped.
    """
    outcomes: dict[str, Outcome] = {}
    values: dict[str, str] = {}
    for host, facts in nodes.items():
        try:
            value = read(facts)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
            continue
        if value is None:
            outcomes[host] = skipped(absent)
        else:
            values[host] = value
    if len(values) == 1 and expected is None:
        return outcomes | dict.fromkeys(
            values, skipped(f"{next(iter(values.values()))}, with nothing to compare it with")
        )
    return outcomes | compare_values(values, what, mend, expected)


def compare_values(values: Mapping[str, str], what: str, mend: str, expected: str | None = None) -> dict[str, Outcome]:
    """Outcomes by host of values that should be equal: to `expected`, or to what most hosts have.

    Without a majority (two values, equally often) every host fails, since nobody knows which is right.

    Args:
        what: is compared, as in "torch".
        mend: for a host that differs; {expected} stands for what it should have.
    """
    if not values:
        return {}
    counts = Counter(values.values()).most_common()
    if expected is None and len(counts) > 1 and counts[0][1] == counts[1][1]:
        found = ", ".join(f"{value} on {count}" for value, count in counts)
        return {
            host: failed(value, f"{what} equal on all nodes ({found})", mend.format(expected="the same everywhere"))
            for host, value in values.items()
        }
    right = counts[0][0] if expected is None else expected
    return {
        host: passed(value, f"{what} equal on all nodes")
        if value == right
        else failed(value, f"{what} {right}, as on the others", mend.format(expected=right))
        for host, value in values.items()
    }
