"""A trainable text classifier with two labels: hashed n-grams, a linear model, calibrated probabilities.

With two labels fastText's supervised model (Joulin et al., 2016) is no more than this: its average of feature vectors
goes through a linear map to two logits, so each feature contributes one number to their difference. Learning that
number directly omits the embedding, and scoring is one table look-up per feature. The loss is logistic, the
optimiser Adagrad (Duchi et al., 2011), whose steps per feature suit words of very different frequency.

A document's logit is bias + sum(weights of its features) / sqrt(number of features): each document's feature vector
has about unit length, so that long documents do not drown short ones in training. (fastText divides by the number
itself; then a weight's gradient shrinks with the document's length, and long documents hardly teach anything.)

Both labels count equally in training and calibration, however many documents each has: a probability of 0.5 means
"as likely here as there", and does not move when more negatives are added. Raw logits of a model that has seen its
training documents several times are too sure of themselves; Platt's method ("Probabilistic Outputs for Support Vector
Machines", 1999) maps them to probabilities on documents kept from training.

A model file is one `.npz`: `weights` (float32 [2^bits]) and `meta` (JSON), readable without pickle.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

import hashlib
import io
import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.data.files import write_whole
from glmforge.errors import DataError
from glmforge_corpus.filter.linear.hashed_features import hash_features, num_places


@compiled
def document_logits(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    max_bytes: int,
    features: tuple[int, int, int, int],
    weights: NDArray[np.float32],
    bias: float,
    places: NDArray[np.uint32],
) -> NDArray[np.float64]:
    """`[n]` logits of the documents in `text`; `features` are seed, bits, max_ngram, char_ngram; `places` scratch."""
    seed, bits, max_ngram, char_ngram = features
    logits = np.empty(len(offsets) - 1)
    for row in range(len(logits)):
        start = offsets[row]
        stop = min(offsets[row + 1], start + max_bytes)
        n = hash_features(text, start, stop, seed, bits, max_ngram, char_ngram, places)
        total = 0.0
        for k in range(n):
            total += weights[places[k]]
        logits[row] = bias + total / math.sqrt(n + 1e-9)
    return logits


@compiled
def train_pass(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    max_bytes: int,
    features: tuple[int, int, int, int],
    labels: NDArray[np.bool_],
    importance: NDArray[np.float64],
    order: NDArray[np.int64],
    learning_rate: float,
    damping: float,
    table: NDArray[np.float32],
    bias: NDArray[np.float64],
    places: NDArray[np.uint32],
) -> float:
    """One pass over the documents in `order`; returns the mean logistic loss met on the way.

    Args:
        importance: `[2]` weight of a negative and of a positive document.
        damping: sum of squared gradients at which every weight starts: what is seen once moves little.
        table: `[places, 2]`, weight and sum of squared gradients side by side; updated.
        bias: `[2]`, the same for the bias; updated.
    """
    seed, bits, max_ngram, char_ngram = features
    loss = 0.0
    for row in order:
        start = offsets[row]
        stop = min(offsets[row + 1], start + max_bytes)
        n = hash_features(text, start, stop, seed, bits, max_ngram, char_ngram, places)
        scale = 1.0 / math.sqrt(n + 1e-9)
        total = 0.0
        for k in range(n):
            total += table[places[k], 0]
        target = 1.0 if labels[row] else 0.0
        logit = bias[0] + total * scale
        probability = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, logit))))
        weight = importance[1] if labels[row] else importance[0]
        loss -= weight * math.log(max(probability if labels[row] else 1.0 - probability, 1e-12))
        error = weight * (probability - target)
        gradient = np.float32(error * scale)
        square = gradient * gradient
        for k in range(n):
            place = places[k]
            summed = table[place, 1] + square
            table[place, 1] = summed
            table[place, 0] -= np.float32(learning_rate) * gradient / math.sqrt(summed + np.float32(damping))
        bias[1] += error * error
        bias[0] -= learning_rate * error / math.sqrt(bias[1] + damping)
    return loss / max(len(order), 1)


FORMAT = "glmforge linear text classifier, version 1"


@dataclass(frozen=True, slots=True)
class Features:
    """What of a text a classifier looks at.

    Attributes:
        bits: the table of weights has 2^bits places.
        max_ngram: words in a row, at most (1 to 3).
        char_ngram: also this many characters in a row; 0 for none. Sees through altered spelling; costs speed.
        max_bytes: of a longer document, only the beginning; bounds memory.
        seed: of the hash.
    """

    bits: int = 20
    max_ngram: int = 2
    char_ngram: int = 0
    max_bytes: int = 1 << 20
    seed: int = 0

    def kernel(self) -> tuple[int, int, int, int]:
        return self.seed, self.bits, self.max_ngram, self.char_ngram

    def scratch(self, offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
        longest = min(int(np.diff(offsets).max(initial=0)), self.max_bytes)
        return np.empty(num_places(longest, self.max_ngram, self.char_ngram), np.uint32)


@dataclass(frozen=True)
class LinearClassifier:
    """A trained classifier.

    Attributes:
        features: what it looks at.
        weights: float32 [2^bits].
        bias: of the logit.
        slope, intercept: probability = sigmoid(slope * logit + intercept).
        meta: what else is stored with it: labels, held-out figures, thresholds; JSON types.
    """

    features: Features
    weights: NDArray[np.float32]
    bias: float
    slope: float = 1.0
    intercept: float = 0.0
    meta: dict[str, Any] = field(default_factory=dict)

    def logits(self, text_bytes: NDArray[np.uint8], text_offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """`[n]` before calibration. `text_bytes` and `text_offsets` as a `DocumentBatch` has them."""
        scratch = self.features.scratch(text_offsets)
        kernel, limit = self.features.kernel(), self.features.max_bytes
        return document_logits(text_bytes, text_offsets, limit, kernel, self.weights, self.bias, scratch)

    def probabilities(self, text_bytes: NDArray[np.uint8], text_offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """`[n]` probability of the positive label, were both labels equally frequent."""
        return sigmoid(self.slope * self.logits(text_bytes, text_offsets) + self.intercept)

    @property
    def fingerprint(self) -> str:
        """Of all that its probabilities depend on."""
        digest = hashlib.blake2b(self.weights.tobytes(), digest_size=8)
        digest.update(repr((self.features, self.bias, self.slope, self.intercept)).encode())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the model file, whole or not at all; its bytes depend on the model alone."""
        settings = {name: getattr(self.features, name) for name in Features.__slots__}
        numbers = {"bias": self.bias, "slope": self.slope, "intercept": self.intercept}
        meta = {"format": FORMAT, "features": settings, **numbers, "fingerprint": self.fingerprint, "meta": self.meta}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, weights=self.weights, meta=np.array(json.dumps(meta, sort_keys=True)))
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model file.

        Raises:
            DataError: missing, damaged or of another kind.
        """
        hint = "train one with 'glmforge data train-quality'"
        try:
            with np.load(path, allow_pickle=False) as archive:
                weights, meta = archive["weights"], json.loads(str(archive["meta"]))
            model = cls(
                Features(**meta["features"]), weights, meta["bias"], meta["slope"], meta["intercept"], meta["meta"]
            )
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such model: {hint}") from error
        except (OSError, ValueError, KeyError, TypeError, BadZipFile, EOFError) as error:
            raise DataError(f"{path}: not a glmforge classifier ({error}): {hint}") from error
        if meta.get("format") != FORMAT or model.fingerprint != meta["fingerprint"]:
            raise DataError(f"{path}: damaged or from another version: {hint}")
        return model


@lru_cache(maxsize=8)
def _load_once(path: Path, modified: int) -> LinearClassifier:
    return LinearClassifier.load(path)


def load_classifier(path: Path) -> LinearClassifier:
    """The model in a file, read once per process. Raises `DataError`."""
    try:
        return _load_once(path, path.stat().st_mtime_ns)
    except OSError:
        return LinearClassifier.load(path)


@dataclass(frozen=True, slots=True)
class Training:
    """How a classifier is trained.

    Attributes:
        passes: over the documents, each in an order of its own.
        learning_rate, damping: of Adagrad; see `train_pass`.
        seed: of the orders.
    """

    passes: int = 5
    learning_rate: float = 0.5
    damping: float = 1.0
    seed: int = 0


def train_classifier(
    text_bytes: NDArray[np.uint8],
    text_offsets: NDArray[np.int64],
    labels: NDArray[np.bool_],
    features: Features | None = None,
    training: Training | None = None,
) -> LinearClassifier:
    """Learn the weights; not calibrated yet.

    Args:
        labels: `[n]`, true for the positive label.

    Raises:
        DataError: a label has no documents.
    """
    features, training = features or Features(), training or Training()
    importance = class_importance(labels)
    table = np.zeros((1 << features.bits, 2), np.float32)
    bias = np.zeros(2)
    random = np.random.default_rng(training.seed)
    scratch, kernel = features.scratch(text_offsets), features.kernel()
    for number in range(training.passes):
        rate = training.learning_rate * (1 - number / training.passes)
        order = random.permutation(len(labels))
        data = (text_bytes, text_offsets, features.max_bytes, kernel, labels, importance, order)
        train_pass(*data, rate, training.damping, table, bias, scratch)
    return LinearClassifier(features, np.ascontiguousarray(table[:, 0]), float(bias[0]))


def class_importance(labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """`[2]`: weights of a negative and of a positive document that make both labels count alike."""
    counts = np.array([np.sum(~labels), np.sum(labels)], np.float64)
    if not counts.all():
        raise DataError(f"training needs documents of both labels: {counts[1]:.0f} positive, {counts[0]:.0f} negative")
    return np.asarray(counts.sum() / (2 * counts))


def fit_platt(logits: NDArray[np.float64], labels: NDArray[np.bool_], iterations: int = 50) -> tuple[float, float]:
    """(slope, intercept) of the calibrated probability, by Newton's method on documents kept from training.

    Targets are Platt's, a little inside of 0 and 1, so that separable documents do not make the slope infinite.
    """
    importance = class_importance(labels)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    target = np.where(labels, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    weight = np.where(labels, importance[1], importance[0])
    design = np.stack([logits, np.ones(len(logits))], axis=1)
    ridge = 1e-6 * np.eye(2)
    best = np.array([1.0, 0.0])
    loss = _logistic_loss(design @ best, target, weight)
    for _ in range(iterations):
        probability = sigmoid(design @ best)
        gradient = design.T @ (weight * (probability - target)) + ridge @ best
        curvature = weight * probability * (1 - probability)
        step = np.linalg.solve((design * curvature[:, None]).T @ design + ridge, gradient)
        while (next_loss := _logistic_loss(design @ (best - step), target, weight)) > loss and np.abs(
            step
        ).max() > 1e-9:
            step = step / 2
        best, loss = best - step, min(loss, next_loss)
        if np.abs(step).max() < 1e-9:
            break
    return float(best[0]), float(best[1])


def _logistic_loss(logits: NDArray[np.float64], target: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    return float(np.sum(weight * (np.logaddexp(0, logits) - target * logits)))


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1 + np.tanh(0.5 * logits))
