"""Logs on storage that is full or hangs."""

import os
import threading
from pathlib import Path

import pytest

from glmforge_ops.jobs.ranks import writer as writer_module
from glmforge_ops.jobs.ranks.writer import MAX_WAITING, RankLog, Writer


def test_what_could_not_be_written_is_told_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes half a line, then nothing, then everything: no line is ever half."""
    write, room = os.write, [b"%"]

    def full(file: int, data: bytes) -> int:
        if room == [b"none"]:
            raise OSError(28, "No space left on device")
        if room == [b"half"]:
            room[0] = b"none"
            return write(file, data[: len(data) // 2])
        return write(file, data)

    monkeypatch.setattr(writer_module.os, "write", full)
    writer = Writer()
    log = RankLog(tmp_path / "log", 3, None, writer)
    for text, state in (("one", b"all"), ("two", b"half"), ("three", b"none"), ("four", b"all"), ("five", b"all")):
        writer.do(lambda state=state: room.__setitem__(0, state))
        log.add("now", 7, [text])
    writer.start()
    assert writer.close(60.0)
    told = "now 3 7 [glmforge] 2 lines were dropped: No space left on device\n"
    assert (tmp_path / "log").read_text() == f"now 3 7 one\n{told}now 3 7 four\nnow 3 7 five\n"
    assert log.dropped == 2


def test_storage_that_hangs_does_not_hold_up_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "HANGS_AFTER_S", 0.01)
    writer, released = Writer(), threading.Event()
    writer.do(released.wait)
    writer.start()
    log = RankLog(tmp_path / "log", 0, None, writer)
    line = "x" * (MAX_WAITING // 4)
    for _ in range(10):
        log.add("now", None, [line])
    assert log.dropped == 7
    released.set()
    log.close("end")
    assert writer.close(60.0)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [text.endswith(line) for text in lines if "[glmforge]" not in text] == [True] * 3
    (told,) = [text for text in lines if "[glmforge]" in text]
    assert "7 lines were dropped: storage was too slow" in told
