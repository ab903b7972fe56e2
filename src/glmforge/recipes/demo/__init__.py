"""The whole life of a small model on one machine, from a corpus to an exported model."""

from glmforge.recipes.demo.options import DemoOptions
from glmforge.recipes.demo.stages import Demo, DemoResult

__all__ = ["Demo", "DemoOptions", "DemoResult"]
