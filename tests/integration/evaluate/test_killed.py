"""`glmforge evaluate` is killed at some reply, again and again: no request is answered twice, and the result is that of
an evaluation that nobody killed."""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from glmforge.evaluate.result import read_items
from helpers.distributed import fork_server
from helpers.evaluation import write_benchmarks, write_export
from helpers.tiny_data import TinyData

pytest.importorskip("lm_eval")


def evaluate(arguments: list[str], num_requests: int | None) -> None:
    """The command; when so many requests are answered it kills itself in the middle of the next one's replies."""
    from glmforge.cli.app import main
    from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore

    add_all, left = ReplyStore.add_all, -1 if num_requests is None else num_requests

    def add_or_die(self: ReplyStore, replies: Mapping[str, Reply]) -> None:
        nonlocal left
        if left == 0:
            add_all(self, dict(list(replies.items())[: len(replies) // 2]))
            assert self._file is not None
            self._file.write(b"0123456789abcdef {")
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        add_all(self, replies)
        left -= 1

    ReplyStore.add_all = add_or_die  # type: ignore[method-assign]
    sys.argv = ["glmforge", "evaluate", *arguments]
    main()


def run(arguments: list[str], num_requests: int | None = None) -> int:
    process = fork_server().Process(target=evaluate, args=(arguments, num_requests))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.chaos)])
def test_nothing_is_answered_twice(tiny_data: TinyData, tmp_path: Path, num_kills: int) -> None:
    export = write_export(tiny_data, tmp_path / "export")
    data = write_benchmarks(tmp_path / "data", num_items=8)
    common = [str(export), "--benchmark", "mmlu,gsm8k", "--data", str(data), "--num-samples", "4", "--max-sequences"]
    common += ["5", "--temperature", "1", "--max-new-tokens", "6", "--out"]
    assert run([*common, str(tmp_path / "whole")]) == 0
    num_replies = len((tmp_path / "whole/replies-0000.jsonl").read_bytes().splitlines())
    assert num_replies == 2 * 8 * 4 + 8 * 4  # of 24 requests, as the choices differ in their last token only
    draw, out = random.Random(num_kills), tmp_path / "killed"
    for _ in range(num_kills):
        assert run([*common, str(out)], draw.randint(0, 24 // num_kills)) == -signal.SIGKILL
        assert not (out / "result.json").exists()
    assert run([*common, str(out)]) == 0
    lines = [line.split(b" ", 1)[1] for line in (out / "replies-0000.jsonl").read_bytes().splitlines()]
    whole = [json.loads(line) for line in lines if len(line) > 1]
    assert len(lines) == num_replies + num_kills  # the half lines
    assert Counter(one["request"] for one in whole).most_common(1)[0][1] == 1
    assert len(whole) == num_replies
    results = [json.loads((directory / "result.json").read_text()) for directory in (tmp_path / "whole", out)]
    for result in results:
        del result["created"]
    assert results[0] == results[1]
    for item, other in zip(read_items(tmp_path / "whole"), read_items(out), strict=True):
        assert item.digest == other.digest
        assert [one.text for one in item.written] == [one.text for one in other.written]
        # Log-probabilities in fp32 depend a little on which requests share a step.
        assert [one.logprob for one in item.choices] == pytest.approx([one.logprob for one in other.choices], abs=1e-4)
