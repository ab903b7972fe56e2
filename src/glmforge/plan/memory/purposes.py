"""What the memory of a rank is for: the categories of a dry run and of the closed forms."""

from collections import Counter
from enum import StrEnum


class Purpose(StrEnum):
    """What memory is for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    GATHERED = "gathered weights"
    UNREDUCED = "unreduced gradients"
    ACTIVATIONS = "activations"
    BUFFERS = "pipeline buffers"
    WORKING = "working memory"


Memory = Counter[Purpose]
"""Bytes by purpose; differences may be negative."""
