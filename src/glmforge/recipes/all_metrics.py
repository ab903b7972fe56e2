"""All metrics that some run of the package may record, for documentation and dashboards."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import glmforge.objectives
import glmforge.recipes
import glmforge.training.hooks
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import METRICS

_PACKAGES = (glmforge.objectives, glmforge.training.hooks, glmforge.recipes)


@cache
def all_metrics() -> MetricTable:
    """The rows of every run, and the `metric_rows` of all classes of objectives, hooks and recipes. Imports them.

    Raises:
        ValueError: two of them contradict each other.
    """
    table = MetricTable(METRICS.values())
    for package in _PACKAGES:
        for found in iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(import_module(found.name)).values():
                if isinstance(value, type):
                    table.declare(getattr(value, "metric_rows", ()))
    return table
