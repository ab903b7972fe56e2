"""The whole life of a small model on one machine, told as it goes."""

from glmforge.recipes.demo.story import Demo, DemoOptions, DemoResult

__all__ = ["Demo", "DemoOptions", "DemoResult"]
