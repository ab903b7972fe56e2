"""Messages of the program on stderr."""

import logging

import pytest

from glmforge.cli.app import _show_log_messages


def test_a_message_is_one_line_however_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is broken at the terminal's width cannot be copied."""
    logger = logging.getLogger("glmforge")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setenv("COLUMNS", "80")
    _show_log_messages()
    path = "/shared/" + "a long name/" * 20
    logging.getLogger("glmforge.any").info("resuming from %s", path)
    logging.getLogger("glmforge.any").warning("no [bold]markup[/bold]")
    logging.getLogger("glmforge.any").debug("kernels")
    assert capsys.readouterr().err == f"INFO     resuming from {path}\nWARNING  no [bold]markup[/bold]\n"
