"""The embedder without a model: its cosines are those of exact counts, within the projection's noise."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.embedder import EmbedderOptions
from glmforge_corpus.deduplicate.semantic import make_embedder


def embed(texts: list[str]) -> np.ndarray:
    return make_embedder(EmbedderOptions()).embed(DocumentBatch.from_columns([""] * len(texts), texts, ""))


def exact_cosine(a: str, b: str) -> float:
    def features(text: str) -> dict[object, float]:
        words = text.split()
        counts = Counter[object](words) + Counter[object](itertools.pairwise(words))
        return {feature: 1 + math.log(count) for feature, count in counts.items()}

    x, y = features(a), features(b)
    dot = sum(weight * y.get(feature, 0) for feature, weight in x.items())
    return dot / math.sqrt(sum(w * w for w in x.values()) * sum(w * w for w in y.values()))


def sentences(seed: int, count: int, words: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(f"w{generator.randrange(60)}" for _ in range(words)) for _ in range(count)]


def test_cosines_are_those_of_exact_counts_within_the_noise_of_the_projection() -> None:
    passages = sentences(0, 12, 20)
    generator = random.Random(1)
    texts = [" ".join(generator.sample(passages, 4)) for _ in range(30)]  # they share words, and pairs of words
    cosines = embed(texts) @ embed(texts).T
    errors = [cosines[i, j] - exact_cosine(texts[i], texts[j]) for i in range(30) for j in range(i)]
    # A projection to d numbers has a standard error of 1 / sqrt(d) = 0.05 at most; five of it, and no bias.
    assert max(map(abs, errors)) < 0.25
    assert abs(np.mean(errors)) < 0.02


def test_a_document_of_more_features_than_the_table_has_slots() -> None:
    long = " ".join(f"word{i}" for i in range(20_000))
    vectors = embed(["a b c", long, long.replace("word19999", "other"), "a b c"])
    assert vectors[1] @ vectors[2] > 0.99
    assert np.array_equal(vectors[0], vectors[3])  # the larger table leaves nothing behind


def test_a_vector_depends_on_its_text_alone() -> None:
    texts = sentences(1, 8, 50)
    together = embed(texts)
    assert all(np.array_equal(together[i], embed([text])[0]) for i, text in enumerate(texts))
    assert np.array_equal(embed(["The cat’s mat!"]), embed(["the  CATS mat"]))
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_texts_without_words_are_zero() -> None:
    assert not embed(["", "?! ...", "🙂"]).any()


def test_order_matters_a_little_and_words_a_lot() -> None:
    a = " ".join(f"w{i}" for i in range(40))
    reordered = " ".join(f"w{i}" for i in [*range(20, 40), *range(20)])
    other = " ".join(f"v{i}" for i in range(40))
    vectors = embed([a, reordered, other])
    assert 0.9 < vectors[0] @ vectors[1] < 1
    assert abs(vectors[0] @ vectors[2]) < 0.25


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"embedder": "lexica"}, "embedder lexica: no such model"),
        ({"embedder": "http://localhost/v1/embeddings"}, "set 'model'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(DataError, match=says):
        EmbedderOptions(**options).check_settings()
