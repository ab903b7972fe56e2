"""Untrusted text (from a model or a file) for the terminal."""

import sys

from glmforge.files import IN_TEXT, escaped


def as_shown(text: str) -> str:
    """What stdout is to get: a terminal nothing that steers it, a file or a pipe the text as it is."""
    return escaped(text, keep=IN_TEXT) if sys.stdout.isatty() else text
