"""Setup's templates: scripts and configurations of a cluster."""

from functools import cache
from typing import Any

import jinja2

from glmforge_ops.render import safe_environment


def render(template: str, **values: Any) -> str:
    """The text of `template`, a file name without .jinja."""
    return _environment().get_template(f"{template}.jinja").render(values)


@cache
def _environment() -> jinja2.Environment:
    return safe_environment(jinja2.PackageLoader("glmforge_ops", "setup/templates"))
