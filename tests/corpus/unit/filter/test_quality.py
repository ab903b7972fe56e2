"""Quality: the heuristic against plain Python, thresholds, buckets and rates of use."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.filter.linear.classifier import Features, LinearClassifier
from glmforge_corpus.filter.quality import HIGH, LOW, MEDIUM, Buckets, Quality, Upsample
from glmforge_corpus.filter.quality_heuristic import heuristic_quality, text_statistics

PROSE = (
    "The harbour lay quiet when the first boats came home. Nobody spoke of the storm, although everybody had seen it "
    "from the cliffs. In the evening the old men mended their nets and told the children about other winters. "
    "One of them, who had been a cook on a whaler, claimed that fish can hear the bells. "
) * 3
NUMBERED_PROSE = " ".join(f"{sentence} (part {n})." for n, sentence in enumerate(PROSE.split(". ")))


def batch_of(texts: list[str], languages: list[str | None] | None = None) -> DocumentBatch:
    return DocumentBatch.from_columns([f"d{n}" for n in range(len(texts))], texts, "test", languages=languages)


def score(text: str) -> float:
    batch = batch_of([text])
    return float(heuristic_quality(batch.text_bytes, batch.text_offsets)[0])


def test_prose_is_good_and_each_defect_lowers_it() -> None:
    assert score(PROSE) == 1
    assert score("ein Satz. " * 20) < score("Ein längerer Satz steht hier. " * 20) == 1
    assert score("word " * 200) == 0  # no sentence
    assert score("\n".join(f"Menu item {n}." for n in range(80))) == 0  # short lines only
    assert score((PROSE[:120] + "\n") * 8) == 0  # one line again and again
    assert score(PROSE + "{}<>|" * 30) < 0.5
    assert score("1029 3847 5610. " * 60) == 0
    assert score("Too short.") < 0.05
    assert score("") == 0


@pytest.mark.parametrize(
    "text",
    [
        "北京的秋天是一年中最美的季节，天空湛蓝，树叶渐渐变黄。人们喜欢去公园散步，享受温暖的阳光。" * 5,
        "東京は日本の首都であり、世界最大の都市の一つです。多くの人々が毎日電車で通勤しています。" * 5,
        "दिल्ली भारत की राजधानी है और यहाँ बहुत सारे लोग रहते हैं। सर्दियों में यहाँ का मौसम बहुत ठंडा होता है। " * 8,
        "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย มีประชากรมากกว่าสิบล้านคน และเป็นศูนย์กลางของเศรษฐกิจ " * 6,
        "Москва является столицей России и крупнейшим городом страны. Здесь живут миллионы людей. " * 10,
        "서울은 대한민국의 수도이며 한강을 끼고 있다. 많은 사람들이 지하철로 출퇴근한다. " * 12,
    ],
)
def test_prose_is_good_in_other_scripts(text: str) -> None:
    assert score(text) > 0.9


def reference_statistics(text: str) -> dict[str, float]:
    """Columns, repeated bytes, symbols, sentences of texts of ASCII and Han, in plain Python."""
    lines = [line for line in text.split("\n") if line]
    columns = [sum(2 if ord(character) > 0xFF else 1 for character in line) for line in lines]
    seen: set[str] = set()
    repeated = 0
    for line in lines:
        repeated += len(line.encode()) if line in seen else 0
        seen.add(line)
    return {
        "columns": sum(columns),
        "short": sum(width for width in columns if width < 30),
        "bytes": sum(len(line.encode()) for line in lines),
        "repeated": repeated,
        "characters": sum(not character.isspace() for character in text),
        "letters": sum(character.isalpha() for character in text),
        "symbols": sum(character in "#{}<>|\\=~^*_" for character in text),
        "sentences": len(re.findall(r'[.!?](?=[\s"!)]|$)', text)),
    }


@settings(deadline=None)  # the first call compiles
@given(
    st.lists(st.sampled_from(["a b", "Some words. ", "漢字", "#{x}", "12", "\n", "!", '"', " ", "..."]), max_size=60)
)
def test_statistics_are_those_of_the_definition(parts: list[str]) -> None:
    text = "".join(parts)
    batch = batch_of(["padding. ", text, "?"])
    row = text_statistics(batch.text_bytes, batch.text_offsets)[1]
    expected = reference_statistics(text)
    names = {
        2: "characters", 3: "letters", 4: "symbols", 5: "sentences", 6: "columns", 7: "short", 8: "bytes",
        9: "repeated",
    }  # fmt: skip
    assert {name: row[column] for column, name in names.items()} == expected


def test_a_long_document_is_scored_like_its_copies_elsewhere() -> None:
    texts = [NUMBERED_PROSE, PROSE * 400, "x", PROSE]
    batch = batch_of(texts)
    whole = heuristic_quality(batch.text_bytes, batch.text_offsets)
    assert whole.tolist() == [score(text) for text in texts]


def test_a_threshold_removes_what_scores_less_and_leaves_programs_alone() -> None:
    batch = batch_of([PROSE, "word " * 99, "x = {}\n" * 50], ["en", "en", "code"])
    outcome = Quality(threshold=0.5).process(batch)
    assert outcome.failed["quality: below threshold"].tolist() == [False, True, False]
    assert np.isnan(outcome.batch.score("quality")).tolist() == [False, False, True]
    assert outcome.counts["quality: judged by heuristic"] == 2
    assert {name: outcome.counts[f"quality: {name}"] for name in ("high", "medium", "low")} == {
        "high": 1,
        "medium": 0,
        "low": 1,
    }


def test_languages_restrict_what_is_judged() -> None:
    outcome = Quality(threshold=0.5, languages=("de",)).process(batch_of(["x", "x", "x"], ["de", "en", None]))
    assert outcome.failed["quality: below threshold"].tolist() == [True, False, False]


def test_rates_are_kept_on_average_and_depend_on_the_id_alone() -> None:
    texts = [PROSE] * 400 + ["word " * 99] * 400
    block = Quality(upsample=Upsample(high=2.3, low=0.25))
    batch = batch_of(texts)
    outcome = block.process(batch)
    repeat = outcome.batch.score("repeat")
    assert set(repeat[:400]) == {2, 3}
    assert set(repeat[400:]) == {0, 1}
    assert repeat[:400].mean() == pytest.approx(2.3, abs=0.1)  # four standard errors: 0.09
    assert repeat[400:].mean() == pytest.approx(0.25, abs=0.1)
    assert outcome.failed["quality: not drawn"].tolist() == (repeat == 0).tolist()
    part = block.process(batch.slice(300, 500)).batch.score("repeat")
    assert np.array_equal(part, repeat[300:500])
    other = Quality(upsample=Upsample(high=2.3, low=0.25), seed=1).process(batch).batch.score("repeat")
    assert not np.array_equal(other, repeat)


def model_file(tmp_path, buckets: bool) -> "tuple[object, object]":
    stored = {"low": {"threshold": 0.3}, "high": {"threshold": 0.6}}
    model = LinearClassifier(
        Features(bits=10), np.zeros(1024, np.float32), 0.0, meta={"buckets": stored} if buckets else {}
    )
    model.save(tmp_path / "model.npz")
    return tmp_path / "model.npz", model


def test_a_model_brings_its_own_bounds(tmp_path) -> None:
    path, _ = model_file(tmp_path, True)
    outcome = Quality(model=path).process(batch_of(["text"]))
    assert outcome.batch.score("quality").tolist() == [0.5]
    assert outcome.batch.score("quality_bucket").tolist() == [MEDIUM]
    assert outcome.counts["quality: judged by model"] == 1
    own = Quality(model=path, buckets=Buckets(high=0.5, low=0.2)).process(batch_of(["text"]))
    assert own.batch.score("quality_bucket").tolist() == [HIGH]
    low = Quality(model=path, buckets=Buckets(high=0.9, low=0.7)).process(batch_of(["text"]))
    assert low.batch.score("quality_bucket").tolist() == [LOW]


def test_a_model_without_bounds_is_refused(tmp_path) -> None:
    path, _ = model_file(tmp_path, False)
    with pytest.raises(DataError, match="has no buckets"):
        Quality(model=path).process(batch_of(["text"]))


def test_options_are_checked() -> None:
    with pytest.raises(ValidationError, match="is more than high"):
        Buckets(high=0.2, low=0.5)
    with pytest.raises(ValidationError, match="threshold"):
        Quality(threshold=1.5)


def test_an_empty_batch_passes() -> None:
    outcome = Quality(threshold=0.5, upsample=Upsample(low=0.5)).process(batch_of([]))
    assert len(outcome.batch) == 0
