"""Scores over steps, and the section of a model card."""

from pathlib import Path

import pytest
import yaml

from glmforge.errors import DataError
from glmforge.evaluate.card import card_section
from glmforge.evaluate.history import read_history
from glmforge.evaluate.official import official_of, official_scores
from helpers.results import chosen, made_result, row, written


def test_steps_are_in_order_and_the_best_is_marked(tmp_path: Path) -> None:
    """Named so that neither the order given nor that of names is the steps'."""
    made = [
        made_result(tmp_path / f"{step}", [written(n, float(n < right), is_cut=n == 3) for n in range(4)], step=step)
        for step, right in ((1000, 1), (200, 3), (90, 2))
    ]
    names, rows = read_history(made)
    assert names == ["gsm8k"]
    assert [(one["step"], one["gsm8k"], one["gsm8k, best"]) for one in rows] == [
        (90, 0.5, False),
        (200, 0.75, True),
        (1000, 0.25, False),
    ]
    assert (rows[1]["gsm8k, finished"], rows[1]["gsm8k, cut"]) == (1.0, 0.25)


def test_results_with_other_questions_do_not_rank(tmp_path: Path) -> None:
    items = [written(0, 1.0), written(1, 0.0)]
    one = made_result(tmp_path / "1", items, step=1)
    two = made_result(tmp_path / "2", items, step=2, scores=[row(items, fingerprint="others", score=1.0)])
    three = made_result(tmp_path / "3", [chosen(0, 0, 0)], step=3)
    _, rows = read_history([one, two, three])
    assert not any(each["gsm8k, best"] for each in rows)
    assert rows[2]["gsm8k"] is None
    assert rows[0]["mmlu"] is None
    assert rows[2]["mmlu, cut"] is None  # choices are not cut


def test_hugging_face_reads_the_card(tmp_path: Path) -> None:
    """As `huggingface_hub` parses it where that is installed; pipes and markup in names stay in their cell."""
    items = [written(n, float(n < 2), is_cut=n == 3) for n in range(4)]
    settings = {"asking": {"chat": True, "limit": None}, "generation": {"temperature": 0.6, "top_p": None, "seed": 0}}
    result = made_result(
        tmp_path,
        items,
        model="exports/glm-small",
        settings=settings,
        versions={"glmforge": "0.1.0"},
        scores=[row(items, metric="exact|match <b>"), row(items, benchmark="none", score=None)],
    )
    text = card_section([result])
    _, metadata, body = text.split("---\n", 2)
    (index,) = yaml.safe_load(metadata)["model-index"]
    assert index["name"] == "glm-small"
    assert [one["dataset"]["name"] for one in index["results"]] == ["gsm8k"]
    assert "| gsm8k | exact\\|match &lt;b> | 4 | 50.0% | 40.0% to 60.0% | 66.7% | 25.0% | chat True, temper" in body
    assert "Measured with glmforge 0.1.0." in body
    hub = pytest.importorskip("huggingface_hub")
    (read,) = hub.ModelCard(text).data.eval_results
    assert (read.metric_value, read.dataset_type, read.metric_type) == (50.0, "gsm8k", "exact|match <b>")


def test_a_card_is_of_one_model(tmp_path: Path) -> None:
    """A server's model is called by its name, not by its URL; a measure that is no share stays as it is."""
    bits = [written(0, -1.25)]
    one = made_result(tmp_path / "1", bits, model="glm at http://localhost:8000/v1", versions={"torch": "1"})
    two = made_result(tmp_path / "2", [written(0, 1.0)], weights="aa", versions={"torch": "2"})
    text = card_section([one, two])
    (index,) = yaml.safe_load(text.split("---\n")[1])["model-index"]
    assert (index["name"], [each["metrics"][0]["value"] for each in index["results"]]) == ("glm", [-1.25, 100.0])
    assert "Measured with torch 1, torch 2." in text
    with pytest.raises(DataError, match="different weights: write a card for each"):
        card_section([two, made_result(tmp_path / "3", bits, weights="bb")])


def test_a_card_without_scores_is_one_line(tmp_path: Path) -> None:
    items = [written(0, 0.0)]
    with pytest.raises(DataError, match="no result has a score"):
        card_section([made_result(tmp_path, items, scores=[row(items, score=None)])])


def test_published_figures_are_shares_with_settings_and_source() -> None:
    assert [(one.model, one.score) for one in official_of("aime24")] == [("GLM-4.5", 0.91), ("GLM-4.5-Air", 0.894)]
    assert "avg@32" in official_of("aime24")[0].settings
    assert official_of("no such benchmark") == []
    for one in official_scores():
        assert 0 < one.score < 1
        assert one.settings
        assert one.source


def test_a_benchmark_may_be_called_as_a_column(tmp_path: Path) -> None:
    names, (one,) = read_history(
        [made_result(tmp_path, [written(0, 1.0).model_copy(update={"benchmark": "step"})], step=7)]
    )
    assert (names, one["step"], one["benchmark step"]) == (["benchmark step"], 7, 1.0)
