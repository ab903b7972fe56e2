"""The same requests, item by item, as lm-evaluation-harness's own `hf` model answers them; `benchmarks/evaluation.py`
does it with a trained model and hundreds of items."""

from pathlib import Path

import pytest

from helpers.evaluation import write_benchmarks, write_export
from helpers.tiny_data import TinyData

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
from evaluation import CHOICES, WRITTEN, Ours, compare_answers, compare_choices, hf_model, requests

TOLERANCE = 1e-4  # in fp32


@pytest.fixture(scope="module")
def export(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Few positions: most prompts with examples lose their beginning.
    return write_export(tiny_data, tmp_path_factory.mktemp("evaluated") / "export", max_position_embeddings=320)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"), num_items=10)


def test_choices_and_answers_are_those_of_the_hf_model(export: Path, data: Path) -> None:
    ours, theirs = Ours(export), hf_model(export, 4)
    for name in CHOICES:
        lm = ours()
        found = compare_choices(lm, theirs, requests(name, data, lm, 20, 0))
        assert found["largest_difference"] < TOLERANCE
        assert (found["items"], found["other_choice"], found["other_greedy"]) == (20, 0, 0)
        assert (found["truncated"] > 0) == (name == "mmlu")
        assert found["longest_continuation"] > 1
    for name in WRITTEN:
        lm = ours()
        found = compare_answers(lm, theirs, requests(name, data, lm, 10, 12))
        assert (found["items"], found["other_answers"], found["other_tokens"]) == (10, 0, 0)
        assert found["tokens"] > 10
