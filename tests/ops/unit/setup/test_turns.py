"""Requests of a setup that is gone: none changes anything after another one has looked."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glmforge_ops.hosts.fanout import GO
from glmforge_ops.hosts.on_node.wire import MARK
from glmforge_ops.setup.ask import PROGRAM, READY
from glmforge_ops.setup.on_node import turns


@contextmanager
def asked(request: dict[str, Any], go_limit_s: str = "45.0") -> Iterator[subprocess.Popen[bytes]]:
    """A machine's Python with the request, not yet told to go on."""
    sent = PROGRAM.sent(request).replace(b"GO_LIMIT_S = 45.0", b"GO_LIMIT_S = " + go_limit_s.encode())
    assert sent.startswith(PROGRAM.sent()) is (go_limit_s == "45.0")
    with subprocess.Popen(PROGRAM.words("node"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(sent)
        child.stdin.flush()
        try:
            yield child
        finally:
            child.kill()


def wait_until_ready(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(3)] == [b"\n", MARK, READY]


def answer_of(child: subprocess.Popen[bytes], told: bytes) -> dict[str, Any]:
    out, _ = child.communicate(told)
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def making(path: Path) -> list[list[Any]]:
    return [[{"kind": "directory", "path": str(path), "mode": 0o750, "text": ""}, {"kind": "absent"}]]


@pytest.mark.parametrize("told", [b"", GO[:1]])
def test_nothing_is_changed_for_who_is_gone(tmp_path: Path, told: bytes) -> None:
    with asked({"apply": making(tmp_path / "new")}) as child:
        wait_until_ready(child)
        assert "changed nothing" in answer_of(child, told)["refused"]
    assert not (tmp_path / "new").exists()


def test_who_looks_or_changes_waits_for_who_may_still_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = making(tmp_path / "new")
    monkeypatch.setattr(turns, "TURN_LIMIT_S", 0.0)
    with asked({"apply": entries}) as first:
        wait_until_ready(first)
        for request in ({"look": [entries[0][0]]}, {"undo": entries}, {"apply": entries}):
            assert "another setup" in turns.answer(request)["refused"]
        assert turns.answer({"bind": 0}) == {"bind": True}  # what neither looks nor changes does not wait
        with asked({"undo": entries}) as second:
            assert answer_of(first, GO) == {"apply": [""]}
            assert (tmp_path / "new").is_dir()
            wait_until_ready(second)
            assert answer_of(second, GO) == {"undo": [""]}
    assert not (tmp_path / "new").exists()
    assert turns.answer({"look": [entries[0][0]]}) == {"look": [{"kind": "absent"}]}


def test_a_turn_ends_with_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_LIMIT_S", 0.0)
    with asked({"apply": making(tmp_path / "new")}) as child:
        wait_until_ready(child)
    assert turns.answer({"look": []}) == {"look": []}


def test_who_is_not_told_in_time_changes_nothing(tmp_path: Path) -> None:
    with asked({"apply": making(tmp_path / "new")}, go_limit_s="0000") as child:
        assert child.wait(60) == 0
    assert not (tmp_path / "new").exists()
