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
from helpers.distributed import run_ranks
from helpers.evaluation import write_benchmarks, write_export
from helpers.tiny_data import TinyData

pytest.importorskip("lm_eval")

NUM_REQUESTS = 2 * 8 + 8  # the choices of a question differ in their last token alone: they are one


def evaluations(commands: list[tuple[list[str], int | None]]) -> list[int]:
    """How the commands end, which run one after another, each in a process of its own.

    When as many requests as stand beside it are answered, a command kills itself in the middle of the next one's
    replies. The processes are forked here, behind the imports, which take seconds.
    """
    import datasets  # noqa: F401

    import glmforge.evaluate.benchmarks.estimate
    import glmforge.evaluate.open_model  # noqa: F401

    statuses = []
    for arguments, num_requests in commands:
        if (child := os.fork()) == 0:
            try:
                _evaluate(arguments, num_requests)
            except BaseException as ended:  # noqa: BLE001 - whatever it is, this is another process
                os._exit(ended.code if isinstance(ended, SystemExit) and isinstance(ended.code, int) else 99)
            os._exit(0)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return statuses


def _evaluate(arguments: list[str], num_requests: int | None) -> None:
    from glmforge.cli.app import main
    from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore

    add, left = ReplyStore.add, -1 if num_requests is None else num_requests

    def add_or_die(self: ReplyStore, replies: Mapping[str, Reply]) -> None:
        nonlocal left
        assert not replies.keys() <= self.known.keys(), "asked again, though all of its replies are there"
        if left == 0:
            add(self, dict(list(replies.items())[: len(replies) // 2]))
            assert self._file is not None
            self._file.write(b"0123456789abcdef {")
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, replies)
        left -= 1

    ReplyStore.add = add_or_die  # type: ignore[method-assign]
    sys.argv = ["glmforge", "evaluate", *arguments]
    main()


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.chaos)])
def test_nothing_is_answered_twice(tiny_data: TinyData, tmp_path: Path, num_kills: int) -> None:
    export = write_export(tiny_data, tmp_path / "export")
    data = write_benchmarks(tmp_path / "data", num_items=8)
    common = [str(export), "--benchmark", "mmlu,gsm8k", "--data", str(data), "--num-samples", "4", "--max-sequences"]
    common += ["5", "--temperature", "1", "--max-new-tokens", "6", "--out"]
    draw, whole, killed = random.Random(num_kills), tmp_path / "whole", tmp_path / "killed"
    commands = [([*common, str(killed)], draw.randint(0, NUM_REQUESTS // num_kills)) for _ in range(num_kills)]
    commands += [([*common, str(killed)], None), ([*common, str(whole)], None)]
    (statuses,) = run_ranks(evaluations, 1, commands, init_group=False, timeout_s=600)
    assert statuses == [-signal.SIGKILL] * num_kills + [0, 0]
    num_replies = len((whole / "replies-0000.jsonl").read_bytes().splitlines())
    assert num_replies == 2 * 8 * 4 + 8 * 4
    lines = [line.split(b" ", 1)[1] for line in (killed / "replies-0000.jsonl").read_bytes().splitlines()]
    kept = [json.loads(line) for line in lines if len(line) > 1]
    assert len(lines) == num_replies + num_kills  # the half lines
    assert Counter(one["request"] for one in kept).most_common(1)[0][1] == 1
    assert len(kept) == num_replies
    results = [json.loads((directory / "result.json").read_text()) for directory in (whole, killed)]
    for result in results:
        del result["created"]
    assert results[0] == results[1]
    for item, other in zip(read_items(whole), read_items(killed), strict=True):
        assert item.digest == other.digest
        assert [one.text for one in item.written] == [one.text for one in other.written]
        # Log-probabilities in fp32 depend a little on which requests share a step.
        assert [one.logprob for one in item.choices] == pytest.approx([one.logprob for one in other.choices], abs=1e-4)
