"""What one rule of the linter finds at one assignment."""

from dataclasses import dataclass

from glmforge_ops.environment.lint.assignment import Assignment
from glmforge_ops.environment.lint.facts import Severity


@dataclass(frozen=True)
class Problem:
    """`says` what is wrong, `instead` what should stand there."""

    assignment: Assignment
    severity: Severity
    rule: str
    says: str
    instead: str
