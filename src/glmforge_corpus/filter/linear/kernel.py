"""The compiled loops of the linear text classifier: logits of documents, and one pass of Adagrad over them.

A document's logit is bias + sum(weights of its features) / sqrt(number of features): each document's feature vector
has about unit length, so that long documents do not drown short ones in training. (fastText divides by the number
itself; then a weight's gradient shrinks with the document's length, and long documents hardly teach anything.)
"""

import math

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.filter.linear.hashed_features import hash_features


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
