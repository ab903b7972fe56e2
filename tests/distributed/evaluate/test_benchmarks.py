"""Benchmarks on several ranks have the replies of one process, each once; a directory serves any number of ranks."""

from pathlib import Path

import pytest
import torch.distributed as dist

from glmforge.generate.config import EngineConfig
from helpers.distributed import run_ranks
from helpers.evaluation import write_benchmarks, write_export
from helpers.tiny_data import TinyData

pytest.importorskip("lm_eval")

TOLERANCE = 1e-4  # of sums of log-probabilities in fp32: ranks add in another order


Found = tuple[str, list[object], list[int]]
"""Digest of the weights, what came of each item, and how many requests this rank computed for each directory."""


def evaluate(export: Path, data: Path, parallel: list[str], *directories: Path) -> Found:
    from glmforge.evaluate.benchmarks.catalog import open_benchmark
    from glmforge.evaluate.benchmarks.estimate import estimate
    from glmforge.evaluate.benchmarks.harness import Asked, Asking
    from glmforge.evaluate.benchmarks.language_model import EngineLM
    from glmforge.evaluate.benchmarks.model import Generation
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.open_model import open_model
    from glmforge.evaluate.run import ask, score_all

    rank = dist.get_rank() if dist.is_initialized() else 0
    benchmarks = [open_benchmark(name, data) for name in ("mmlu", "gsm8k")]
    computed: list[int] = []
    with open_model(str(export), EngineConfig(cache_bytes=1 << 24), parallel=parallel) as opened:
        metrics = opened.engine.metrics
        for out in directories:
            with ReplyStore(out, rank) as replies:
                lm = EngineLM(opened.engine, replies, Generation(max_new_tokens=6, num_samples=2, temperature=1.0))
                probed: list[int] = []

                def before(asked: list[list[Asked]], lm: EngineLM = lm, probed: list[int] = probed) -> bool:
                    estimate(lm, asked)
                    probed.append(metrics.num_requests)
                    return True

                answered = ask(benchmarks, Asking(), lm, before)
            computed.append(metrics.num_requests - probed[0])
    _, items = score_all(answered)
    found = [(item.prompt, [one.text for one in item.written], [one.logprob for one in item.choices]) for item in items]
    return opened.identity["weights"], found, computed


def lines(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("replies-*.jsonl"))


@pytest.fixture(scope="module")
def export(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tiny_data, tmp_path_factory.mktemp("evaluated") / "export")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"), num_items=4)


@pytest.mark.parametrize(
    ("num_ranks", "parallel"),
    [(2, ["tp=2"]), (2, ["ep=2"]), (4, ["tp=2,ep=2"])],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_replies_are_those_of_one_process(
    export: Path, data: Path, tmp_path: Path, num_ranks: int, parallel: list[str]
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    digest, expected, _ = evaluate(export, data, [], alone)
    num_lines = lines(alone)
    assert num_lines == 2 * 4 * 4 + 4 * 2  # four choices of each question, and two samples
    for weights, found, computed in run_ranks(evaluate, num_ranks, export, data, parallel, alone, shared):
        assert weights == digest
        for (prompt, texts, logprobs), (its_prompt, its_texts, its_logprobs) in zip(found, expected, strict=True):
            assert (prompt, texts) == (its_prompt, its_texts)
            assert logprobs == pytest.approx(its_logprobs, abs=TOLERANCE)
        assert computed[0] == 0  # what one process has said
        assert computed[1] > 0
    assert lines(shared) == num_lines  # no rank repeats what another one has
    assert evaluate(export, data, [], shared)[2] == [0]
