"""`glmforge evaluate URL`: a result from a server, refusals in one line, and a kill that repeats no request."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from glmforge.cli.app import main
from glmforge.evaluate.result import read_items, read_result
from helpers.benchmark_tasks import CHOSEN, WRITTEN, task_file
from helpers.completion_server import CompletionServer, completion_server, echoed, written

LIMIT_S = 240  # generous: nothing is to fail because the machine is busy


@pytest.fixture
def server() -> Iterator[CompletionServer]:
    with completion_server() as running:
        yield running


def arguments(server: CompletionServer, task: Path, out: Path, *more: str) -> list[str]:
    return ["evaluate", server.url, "--model-name", "tiny", "--benchmark", str(task), "--out", str(out), *more]


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["glmforge", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_score_of_answers(server: CompletionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TINY_KEY", "s3cret-key")
    server.key = "s3cret-key"
    words = arguments(server, task_file(tmp_path, WRITTEN), tmp_path / "out", "--api-key-env", "TINY_KEY")
    assert run(words, monkeypatch) == 0
    result = read_result(tmp_path / "out")
    (score,) = result.scores
    assert result.model == f"tiny at {server.url}"
    assert (score.score, score.num_items, score.cut_share) == (pytest.approx(1 / 6), 6, 1.0)
    answers = [item.written[0] for item in read_items(tmp_path / "out")]
    assert {(one.text, one.answer) for one in answers} == {(" 4\n\nQuestion: more", " 4")}
    assert "s3cret-key" not in "".join(path.read_text() for path in (tmp_path / "out").iterdir())


def test_choices_that_are_equally_likely_have_no_score(
    server: CompletionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def flat(payload: dict[str, Any]) -> dict[str, Any]:
        reply = echoed(payload)
        told = reply["choices"][0]["logprobs"]
        told["token_logprobs"] = [None, *(0.0 for _ in told["token_logprobs"][1:])]
        return reply

    task = task_file(tmp_path, CHOSEN)
    assert run(arguments(server, task, tmp_path / "scored"), monkeypatch) == 0
    (score,) = read_result(tmp_path / "scored").scores
    assert score.score is not None
    server.answer = flat
    assert run(arguments(server, task, tmp_path / "flat"), monkeypatch) == 1
    assert "glmforge: sums: no score: all choices of every item are equally likely" in capfd.readouterr().err
    assert read_result(tmp_path / "flat").scores[0].score is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["http://localhost:1/v1"], "a server needs --model-name"),
        (["http://localhost:1/v1", "--model-name", "m", "--api-key-env", "NO_SUCH"], "NO_SUCH is not set"),
        (["http://localhost:1/v1", "--model-name", "m", "--watch"], "--watch: needs the directory of a run"),
        (["runs/glm", "--model-name", "m"], "--model-name: needs the URL of a server"),
        (["runs/none", "--watch", "--benchmark", "TASK"], "runs/none: not a run"),
    ],
)
def test_refused_in_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    task = str(task_file(tmp_path, WRITTEN))
    words = ["evaluate", *(task if word == "TASK" else word for word in words), "--out", str(tmp_path / "out")]
    assert run([*words, *([] if "--benchmark" in words else ["--benchmark", "gsm8k"])], monkeypatch) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("glmforge: ")]
    assert len(lines) == 1
    assert told in lines[0]


def test_a_kill_repeats_no_request(server: CompletionServer, tmp_path: Path) -> None:
    task, hold = task_file(tmp_path, WRITTEN), Event()

    def answer(payload: dict[str, Any]) -> dict[str, Any]:
        if len(server.asked) == 4 and not hold.is_set():
            process.send_signal(signal.SIGKILL)
            hold.set()
        return written(payload)

    server.answer = answer
    words = [sys.executable, "-m", "glmforge", *arguments(server, task, tmp_path / "out", "--connections", "1")]
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert not (tmp_path / "out" / "result.json").exists()
    subprocess.run(words, env=environment, check=True, timeout=LIMIT_S, capture_output=True)
    prompts = [payload["prompt"] for _, payload, _ in server.asked]
    assert len(prompts) == 7  # the fourth, whose answer nobody took, twice
    assert len(set(prompts)) == 6
    assert prompts.count(prompts[3]) == 2
    assert read_result(tmp_path / "out").scores[0].num_items == 6
