"""What a job finds on a node: its Python with glmforge, and the variables that a login sets."""

from glmforge_ops.environment.lint import Finding, lint_environment
from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_PROBE = "environment"


def imports(facts: Facts, context: Context) -> Outcome:
    """glmforge can be imported by `python` of cluster.yaml. Whether it is installed, and in which version, is
    another check's matter.
    """
    reason = facts.text("reason")
    if reason is None:
        return passed(f"{facts.text('file')}", "imports glmforge")
    if "No module named 'glmforge'" in reason or facts.number("status") in (126, 127):
        return skipped(f"{context.cluster.python}: {reason}", "see versions.installed and versions.python-runs")
    mend = f"try it there: {context.cluster.python} -c 'import glmforge'; install it anew"
    return failed(f"{context.cluster.python}: {reason}", "imports glmforge", mend)


def variables(facts: Facts, context: Context) -> Outcome:
    """The linter's verdict on what a login shell exports."""
    given = facts.inner("variables")
    if given is None:
        return skipped("its login shell does not answer")
    findings = lint_environment({name: given.text(name) or "" for name in given.names()})
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        return failed(_say(errors), "nothing that harms a job", errors[0].instead)
    if findings:
        return warning(_say(findings), "nothing that harms a job", findings[0].instead)
    return passed(f"{len(given.names())} variables", "nothing that harms a job")


def _say(findings: list[Finding]) -> str:
    first = findings[0]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"{first.name}={first.value}: {first.problem}{more}"


CHECKS = (
    Check("environment.import", "glmforge can be imported by jobs' Python", Level.STANDARD, _PROBE, judge=imports),
    Check("environment.variables", "no harmful variables in a login", Level.STANDARD, _PROBE, judge=variables),
)
