"""YAML that is read by libyaml: what would overflow its stack is left to the reader with bounds."""

import pytest

from glmforge.config.tree import quick_value


@pytest.mark.parametrize("text", ["[" * 50_000, "{" * 50_000, "- " * 50_000, "-  ? " * 20_000, "? " * 50_000])
def test_deep_nesting_is_refused(text: str) -> None:
    assert quick_value(text) is None


def test_what_programs_write_is_read() -> None:
    assert quick_value("a:\n- b: [1, 2]\n  c: '- - - -'\n") == {"a": [{"b": [1, 2], "c": "- - - -"}]}
