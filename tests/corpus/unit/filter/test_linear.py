"""The trainable classifier: features against plain Python, learning, calibration, figures, the model file."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.errors import DataError
from glmforge_corpus.filter.linear.classifier import (
    Features,
    LinearClassifier,
    Training,
    fit_platt,
    load_classifier,
    sigmoid,
    train_classifier,
)
from glmforge_corpus.filter.linear.hashed_features import count_tokens, hash_features, num_places
from glmforge_corpus.filter.linear.training import (
    area_under_curve,
    choose_thresholds,
    figures_at,
    split_seeds,
    train_on_seeds,
)
from helpers.corpus import batch_of

TEXTS = st.text(
    st.one_of(st.sampled_from("aBc Z19..--\n\n é漢字かな한국ไทยມ’«©😀ÿŒ"), st.characters(codec="utf-8")), max_size=60
)
MASK = 2**64 - 1


def is_single(character: str) -> bool:
    """Characters that are tokens by themselves, by code point."""
    point = ord(character)
    spaceless = 0x0E00 <= point <= 0x0EFF or 0x1000 <= point <= 0x10BF or 0x1780 <= point <= 0x17FF
    return 0x80 <= point < 0xC0 or spaceless or 0x2000 <= point <= 0x9FFF or point >= 0xF000


def tokens_of(text: str) -> list[bytes]:
    """The tokens by their definition: words, single characters, runs of one sign (marked when longer than one)."""
    tokens: list[bytes] = []
    for match in re.finditer(r"(?P<sign>[!-/:-@\[-`{-~\n])(?P<more>(?P=sign)*)|(?P<rest>[^\x00-\x20\x7f])", text):
        if match["sign"]:
            tokens.append(match["sign"].encode() + (b" " if match["more"] else b""))
        elif is_single(match["rest"]):
            tokens.append(match["rest"].encode())
        else:
            word = re.sub(
                rb"[0-9]", b"0", match["rest"].encode().lower() if match["rest"].isascii() else match[0].encode()
            )
            joins = tokens and match.start() and _is_word_part(text[match.start() - 1])
            if joins:
                tokens[-1] += word
            else:
                tokens.append(word)
    return tokens


def _is_word_part(character: str) -> bool:
    return (character.isascii() and character.isalnum()) or (ord(character) >= 0x80 and not is_single(character))


def mix(value: int) -> int:
    value = ((value ^ (value >> 32)) * 0x9E3779B97F4A7C15) & MASK
    return value ^ (value >> 32)


def places_of(text: str, seed: int, bits: int, max_ngram: int) -> list[int]:
    start = 0xCBF29CE484222325 ^ ((seed * 0x9E3779B97F4A7C15) & MASK)
    hashes = []
    for token in tokens_of(text):
        value = start
        for byte in token:
            value = ((value ^ byte) * 0x100000001B3) & MASK
        hashes.append(mix(value) | 1)
    places = []
    for index, value in enumerate(hashes):
        places.append(value)
        if max_ngram > 1 and index > 0:
            places.append(mix((hashes[index - 1] * 0xC2B2AE3D27D4EB4F + value) & MASK))
        if max_ngram > 2 and index > 1:
            before = (hashes[index - 2] * 0x165667B19E3779F9 + hashes[index - 1]) & MASK
            places.append(mix((before * 0xC2B2AE3D27D4EB4F + value) & MASK))
    return [place >> (64 - bits) for place in places]


def kernel_places(text: str, seed: int, bits: int, max_ngram: int, char_ngram: int = 0) -> list[int]:
    data = np.frombuffer(b"xx" + text.encode() + b"yy", np.uint8)  # neighbours that must not be looked at
    out = np.empty(num_places(len(data), max_ngram, char_ngram), np.uint32)
    count = hash_features(data, 2, len(data) - 2, seed, bits, max_ngram, char_ngram, out)
    return out[:count].tolist()


@settings(deadline=None)  # the first call compiles
@given(TEXTS, st.integers(0, 2**40), st.integers(1, 3))
def test_features_are_those_of_the_definition(text: str, seed: int, max_ngram: int) -> None:
    assert kernel_places(text, seed, 20, max_ngram) == places_of(text, seed, 20, max_ngram)


def test_character_ngrams_are_windows_of_characters_whatever_the_white_space() -> None:
    words = len(kernel_places("größe ab", 0, 20, 1))
    places = kernel_places("größe ab", 0, 20, 1, 4)[words:]
    assert len(places) == len("größe ab") - 4 + 1
    assert places == kernel_places("größe \n ab", 0, 20, 1, 4)[-5:]
    assert len(set(places)) == 5
    assert kernel_places("xgröß", 0, 20, 1, 4)[-1] == places[0]


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("two words", 2), ("don't", 2), ("漢字かな", 4), ("ไทย x", 4), ("– « §", 0), ("é-à", 2)],
)
def test_tokens_counted(text: str, count: int) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    assert count_tokens(data, 0, len(data)) == count


def make_documents(num: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Two kinds of documents that share most of their words."""
    random = np.random.default_rng(seed)
    labels = random.random(num) < 0.3
    good, bad = [f"good{n}" for n in range(30)], [f"bad{n}" for n in range(30)]
    common = [f"word{n}" for n in range(300)]
    texts = []
    for label in labels:
        own = random.choice(good if label else bad, random.integers(0, 5))
        texts.append(" ".join(random.permutation([*own, *random.choice(common, random.integers(5, 40))])))
    return texts, labels


def test_it_learns_and_does_so_reproducibly() -> None:
    texts, labels = make_documents(1500, 0)
    batch = batch_of(texts)
    features = Features(bits=16)
    first, second = (train_classifier(batch.text_bytes, batch.text_offsets, labels, features) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    other = train_classifier(batch.text_bytes, batch.text_offsets, labels, features, Training(seed=1))
    assert other.fingerprint != first.fingerprint
    unseen, truth = make_documents(800, 1)
    batch = batch_of(unseen)
    # A fifth of the documents have no word of their own kind, so that 0.9 is the most one can expect.
    assert area_under_curve(truth, first.logits(batch.text_bytes, batch.text_offsets)) > 0.88


def test_scores_do_not_depend_on_the_batch() -> None:
    texts, labels = make_documents(300, 2)
    batch = batch_of(texts)
    model = train_classifier(batch.text_bytes, batch.text_offsets, labels, Features(bits=14, char_ngram=3))
    whole = model.probabilities(batch.text_bytes, batch.text_offsets)
    part = batch.slice(100, 200)
    assert np.array_equal(model.probabilities(part.text_bytes, part.text_offsets), whole[100:200])


def test_only_the_beginning_of_a_long_document_is_looked_at() -> None:
    texts, labels = make_documents(300, 3)
    batch = batch_of(texts)
    model = train_classifier(batch.text_bytes, batch.text_offsets, labels, Features(bits=14, max_bytes=100))
    long, cut = batch_of(["good1 " * 40]), batch_of([("good1 " * 40)[:100]])
    assert model.logits(long.text_bytes, long.text_offsets) == model.logits(cut.text_bytes, cut.text_offsets)


def test_a_text_without_features_gets_the_bias() -> None:
    model = LinearClassifier(Features(bits=10), np.ones(1024, np.float32), 0.25)
    empty = batch_of([" \t ", "a"])
    assert model.logits(empty.text_bytes, empty.text_offsets).tolist() == pytest.approx([0.25, 1.25])


def test_platt_finds_the_true_line_whatever_the_share_of_labels() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(0, 2, 60_000)
    labels = random.random(len(truth)) < sigmoid(truth)
    slope, intercept = fit_platt((truth - 1) * 3, labels)  # raw logits that are too sure and shifted
    # Standard error of both about 0.01 at this size.
    assert slope == pytest.approx(1 / 3, abs=0.02)
    assert intercept == pytest.approx(1, abs=0.06)
    fewer = np.flatnonzero(labels | (random.random(len(labels)) < 0.1))  # a tenth of the negatives
    assert fit_platt((truth[fewer] - 1) * 3, labels[fewer]) == pytest.approx((1 / 3, 1), abs=0.06)


def test_platt_stays_finite_on_separable_documents() -> None:
    slope, intercept = fit_platt(np.array([-2.0, -1, 1, 2] * 10), np.array([False, False, True, True] * 10))
    assert 0 < slope < 20
    assert abs(intercept) < 1


def test_training_needs_both_labels() -> None:
    batch = batch_of(["a", "b"])
    with pytest.raises(DataError, match="2 positive, 0 negative"):
        train_classifier(batch.text_bytes, batch.text_offsets, np.ones(2, bool))


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9])), min_size=2, max_size=40))
def test_area_is_the_share_of_pairs_in_order(pairs: list[tuple[bool, float]]) -> None:
    labels, scores = np.array([label for label, _ in pairs]), np.array([score for _, score in pairs])
    wins = [(p > n) + (p == n) / 2 for p in scores[labels] for n in scores[~labels]]
    area = area_under_curve(labels, scores)
    assert area == pytest.approx(np.mean(wins)) if wins else np.isnan(area)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=4, max_size=60), st.floats(0.3, 1))
def test_thresholds_keep_their_promises(pairs: list[tuple[bool, int]], low_recall: float) -> None:
    labels, scores = np.array([label for label, _ in pairs]), np.array([score / 20 for _, score in pairs])
    if not labels.any():
        return
    precisions = [figures_at(labels, scores, threshold).precision for threshold in np.unique(scores)]
    if max(precisions) < 0.8:
        with pytest.raises(DataError, match="no threshold reaches it"):
            choose_thresholds(labels, scores, 0.8, low_recall)
        return
    low, high = choose_thresholds(labels, scores, 0.8, low_recall)
    assert low <= high
    assert figures_at(labels, scores, low).recall >= low_recall
    recalls = [t for t in np.unique(scores) if figures_at(labels, scores, t).recall >= low_recall]
    precise = [t for t in np.unique(scores) if figures_at(labels, scores, t).precision >= 0.8]
    assert {low, high} == {max(recalls), min(precise)}


def test_figures() -> None:
    labels, scores = np.array([True, True, False, True]), np.array([0.9, 0.4, 0.6, 0.6])
    figures = figures_at(labels, scores, 0.6)
    assert (figures.precision, figures.recall, figures.f1, figures.kept) == pytest.approx((2 / 3, 2 / 3, 2 / 3, 0.75))
    assert figures_at(labels, scores, 0.95).to_json()["precision"] is None


def test_seeds_are_split_by_their_text_and_conflicts_left_out() -> None:
    positive, negative = [f"good text {n}" for n in range(400)], [f"bad text {n}" for n in range(400)]
    seeds = split_seeds([*positive, positive[0], "both"], ["both", *negative], 0.2, 0)
    assert (seeds.conflicting, seeds.repeated, len(seeds.labels)) == (1, 1, 800)
    assert np.bincount(seeds.parts).tolist() == pytest.approx([480, 160, 160], abs=45)  # four standard deviations
    again = split_seeds(positive[::-1], negative, 0.2, 0)
    assert again.texts == seeds.texts
    assert np.array_equal(again.parts, seeds.parts)
    assert not np.array_equal(split_seeds(positive, negative, 0.2, 1).texts, seeds.texts)


def test_too_few_seeds_are_refused() -> None:
    with pytest.raises(DataError, match="negative seeds: 30 different documents leave"):
        split_seeds((f"good {n}" for n in range(2000)), (f"bad {n}" for n in range(30)), 0.1, 0)


def test_useless_seeds_are_refused() -> None:
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice([f"word{n}" for n in range(50)], 30)) for _ in range(600)]
    seeds = split_seeds(texts[:300], texts[300:], 0.3, 0)
    with pytest.raises(DataError, match=r"no better than chance|no threshold reaches"):
        train_on_seeds(seeds, Features(bits=12), Training(), 0.95, 0.95, "quality")


def test_a_report_of_training(tmp_path) -> None:
    texts, labels = make_documents(3000, 4)
    positive = [text for text, label in zip(texts, labels, strict=True) if label]
    negative = [text for text, label in zip(texts, labels, strict=True) if not label]
    seeds = split_seeds(positive, negative, 0.2, 0)
    report = train_on_seeds(seeds, Features(bits=14), Training(), 0.9, 0.9, "quality")
    assert report.high.precision >= 0.9
    assert report.low.recall >= 0.9
    unseen, truth = make_documents(3000, 5)
    batch = batch_of(unseen)
    probabilities = report.classifier.probabilities(batch.text_bytes, batch.text_offsets)
    # Calibration with both labels weighted alike; three standard errors of the smaller bins are about 0.08.
    weights = np.where(truth, 0.5 / truth.mean(), 0.5 / (1 - truth.mean()))
    for low, high in ((0, 0.3), (0.3, 0.7), (0.7, 1)):
        chosen = (probabilities >= low) & (probabilities < high)
        share = np.sum(weights * truth * chosen) / np.sum(weights * chosen)
        assert share == pytest.approx(np.average(probabilities[chosen], weights=weights[chosen]), abs=0.1)


def test_a_model_file_is_read_back_and_its_bytes_are_reproducible(tmp_path) -> None:
    texts, labels = make_documents(300, 6)
    batch = batch_of(texts)
    model = train_classifier(batch.text_bytes, batch.text_offsets, labels, Features(bits=12, seed=3))
    model.save(tmp_path / "a.npz")
    model.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    loaded = load_classifier(tmp_path / "a.npz")
    assert (loaded.features, loaded.fingerprint) == (model.features, model.fingerprint)
    scores = [one.probabilities(batch.text_bytes, batch.text_offsets) for one in (model, loaded)]
    assert np.array_equal(*scores)


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign", "changed"])
def test_a_bad_model_file_is_named(tmp_path, damage: str) -> None:
    path = tmp_path / "model.npz"
    LinearClassifier(Features(bits=10), np.ones(1024, np.float32), 0.0).save(path)
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "foreign":
        np.savez(path, weights=np.ones(4))
    else:
        with np.load(path) as archive:
            meta = archive["meta"]
        np.savez(path, weights=np.zeros(1024, np.float32), meta=meta)
    with pytest.raises(DataError, match=r"model\.npz: .*train-quality"):
        load_classifier(path)
