"""Models that know the answers, and those that know the wrong ones, score as they must; what is cut is told apart."""

import math
import shutil
from pathlib import Path

import pytest

from helpers.benchmark_tasks import task_file
from helpers.evaluation import SUBJECTS, FakeModel, write_benchmarks

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance

from glmforge.evaluate.benchmarks.catalog import open_benchmark
from glmforge.evaluate.benchmarks.harness import Asking, run_benchmark
from glmforge.evaluate.result import Score
from glmforge.evaluate.statistics import pass_at_k


def knows(request: Instance, sample: int = 0) -> str:
    """What the data have as the answer: the number, the solution."""
    return str(request.doc.get("answer") or request.doc.get("solution"))


def is_right(request: Instance) -> bool:
    return bool(request.idx == request.doc["answer"])


ORACLE = FakeModel(says=knows, prefers=lambda request: -1.0 if is_right(request) else -2.0)
ANTI_ORACLE = FakeModel(prefers=lambda request: -2.0 if is_right(request) else -1.0)
UNDECIDED = FakeModel(prefers=lambda request: -1.0 - request.idx)  # always takes the first


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"), num_items=8)


ALL = Asking()


def score_of(model: FakeModel, data: Path, name: str, asking: Asking = ALL) -> Score:
    return run_benchmark(open_benchmark(name, data), asking, model)[0]


@pytest.mark.parametrize("name", ["mmlu", "gsm8k", "math"])
def test_who_knows_the_answers_scores_100_and_who_knows_the_wrong_ones_0(data: Path, name: str) -> None:
    for asking in (Asking(), Asking(num_fewshot=0, chat=True, system="Be brief.", limit=5)):
        right, wrong = (score_of(model, data, name, asking) for model in (ORACLE, ANTI_ORACLE))
        assert (right.score, wrong.score) == (1.0, 0.0)
        assert right.fingerprint == wrong.fingerprint
        assert right.num_items == (asking.limit or (16 if name == "mmlu" else 8))


def test_who_always_takes_the_first_choice_scores_its_share(data: Path) -> None:
    score, items = run_benchmark(open_benchmark("mmlu", data), ALL, UNDECIDED)
    assert score.score == sum(item.target.strip() in ("A", "0") for item in items) / 16
    assert score.chance == 0.25
    assert {item.subject for item in items} == set(SUBJECTS)
    assert sorted(item.number for item in items) == list(range(16))


def test_no_score_where_all_choices_are_equally_likely(data: Path) -> None:
    score = score_of(FakeModel(), data, "mmlu")
    assert score.score is None
    assert score.interval is None
    assert "equally likely" in score.refused
    some_are = FakeModel(prefers=lambda request: -1.0 if request.doc["subject"] == SUBJECTS[0] else -1.0 - request.idx)
    assert score_of(some_are, data, "mmlu").score is not None


def test_cut_replies_are_told_apart(data: Path) -> None:
    """Every second sample is cut in the middle and has no answer; those that were finished are all right."""

    def cuts(request: Instance, sample: int) -> bool:
        return sample % 2 == 1

    model = FakeModel(
        says=lambda request, sample: "So we" if cuts(request, sample) else knows(request), num_samples=4, cuts=cuts
    )
    score, items = run_benchmark(open_benchmark("gsm8k", data), ALL, model)
    assert (score.score, score.finished_score, score.cut_share, score.num_finished) == (0.5, 1.0, 0.5, 16)
    assert all(item.is_cut for item in items)
    assert [one.is_cut for one in items[0].written] == [False, True, False, True]
    all_cut = score_of(FakeModel(cuts=lambda request, sample: True), data, "gsm8k")
    assert (all_cut.finished_score, all_cut.num_finished, all_cut.cut_share) == (None, 0, 1.0)


def test_pass_at_k_and_majority_of_several_samples(data: Path) -> None:
    """Item i has i % 5 right ones of four samples; wrong answers of a kind are fewer than two right ones."""
    benchmark = open_benchmark("gsm8k", data)
    numbers = {doc["question"]: number for number, doc in enumerate(benchmark.tasks[0].eval_docs)}

    def num_right(request: Instance) -> int:
        return numbers[request.doc["question"]] % 5

    def says(request: Instance, sample: int) -> str:
        return knows(request) if sample < num_right(request) else f"#### {5000 + sample}"

    score, items = run_benchmark(benchmark, ALL, FakeModel(says=says, num_samples=4))
    right = [item.number % 5 for item in items]
    assert score.score == pytest.approx(sum(right) / 4 / 8)
    assert score.extra["pass@2"] == pytest.approx(sum(pass_at_k(4, number, 2) for number in right) / 8)
    assert score.extra["pass@4"] == pytest.approx(sum(number > 0 for number in right) / 8)
    # One right answer among four different ones comes first, and the first of equal votes is taken.
    assert score.extra["majority@4"] == pytest.approx(sum(number > 0 for number in right) / 8)
    assert score.num_samples == 4


ROLLING = """
task: sums
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{a}} + {{b}} is {{c}}"
metric_list: [{metric: bits_per_byte}]
"""


def test_whole_texts_are_measured_in_bits_per_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all texts together, so long ones weigh more; the score is negative, for higher is better."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    ten_bits = FakeModel(prefers=lambda request: -10 * math.log(2))
    benchmark = open_benchmark(str(task_file(tmp_path, ROLLING, 9)))
    score, items = run_benchmark(benchmark, ALL, ten_bits)
    sizes = [len(item.prompt.encode()) for item in items]
    assert len(set(sizes)) > 1
    assert [item.score for item in items] == pytest.approx([-10 / size for size in sizes])
    assert score.score == pytest.approx(sum(item.score for item in items) / 9)
    assert score.extra == {"bits_per_byte": pytest.approx(10 * 9 / sum(sizes))}
    assert score.metric == "negative bits per byte"


def test_digests_and_fingerprints_are_of_prompts_and_data(data: Path, tmp_path: Path) -> None:
    def facts(data: Path, asking: Asking = ALL) -> tuple[str, list[str]]:
        score, items = run_benchmark(open_benchmark("gsm8k", data), asking, ORACLE)
        return score.fingerprint, [item.digest for item in items]

    fingerprint, digests = facts(data)
    assert facts(data) == (fingerprint, digests)
    assert len(set(digests)) == 8
    changed = shutil.copytree(data, tmp_path / "changed")
    path = changed / "gsm8k-test.jsonl"
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f"{first.replace('?', '!')}\n{rest}")
    other, other_digests = facts(changed)
    assert other != fingerprint
    assert [a == b for a, b in zip(digests, other_digests, strict=True)] == [False] + [True] * 7
    path.write_text(f"{first.replace('#### ', '#### 9')}\n{rest}")  # another answer to the same question
    assert (facts(changed)[0] != fingerprint, facts(changed)[1]) == (True, digests)
    for asking in (Asking(num_fewshot=0), Asking(num_fewshot=2), Asking(chat=True), Asking(chat=True, system="Hm.")):
        some, of_items = facts(data, asking)
        assert some != fingerprint
        assert not set(of_items) & set(digests)
    limited, of_items = facts(data, Asking(limit=4))
    assert limited != fingerprint
    assert set(of_items) < set(digests)  # few-shot examples are drawn, but do not depend on the limit
