"""Fill-in-the-middle: some documents of a row are rearranged so that their middle comes last.

A document's tokens, without its final `<|endoftext|>`, are cut at two random places into prefix, middle and suffix,
and become

    <|code_prefix|> prefix <|code_suffix|> suffix <|code_middle|> middle <|endoftext|>

(PSM order; Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022, arXiv:2207.14255).
Departures from the paper: cuts fall between tokens rather than characters, as rows are made of tokens; and a row
and its documents keep their lengths, so a document's last three tokens make room for the three special ones.

Padding is recognised by its lack of labels, and labels are rebuilt; so a shard with loss weights is never
rearranged (`glmforge.data.stream.sources` refuses it).

A document that the row cuts off is rearranged like any other; what follows it in the shard is no longer what
follows in the row, so its last token has no label.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.windows import Window
from glmforge.data.tokens.tokenizer import Tokenizer

MIN_TOKENS = 16
"""Shorter documents stay as they are."""

_NUM_DRAWS = 3  # per document: whether, and two cuts


class FimTokens(NamedTuple):
    """Ids of the tokens that begin prefix, suffix and middle."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        return cls(*(tokenizer.special_id(f"<|code_{part}|>") for part in cls._fields))


def rearrange(window: Window, *, rate: float, key: int, special: FimTokens, end_of_text: int) -> Window:
    """Rearrange each document of a row with probability `rate`.

    Args:
        window: a row of either packing, with or without a document mask: documents are distinguished by its lengths
            and by `end_of_text`, filling also by having no labels.
        rate: 0 changes nothing, 1 every document of `MIN_TOKENS` tokens or more.
        key: 64 bits, one per sample. Document d of the row is decided by (key, d) alone.
        special: ids of the special tokens.
        end_of_text: id of the token that ends a document; it stays where it is.

    Returns:
        a row of the same length and document lengths; `window` is not changed.
    """
    if rate == 0:
        return window
    borders = _borders(window, end_of_text)
    draws = _uniform(key, (len(borders) - 1, _NUM_DRAWS))
    chosen = np.flatnonzero((draws[:, 0] < rate) & (np.diff(borders) >= MIN_TOKENS))
    if len(chosen) == 0:
        return window
    ids = window.ids_S.copy()
    for document in chosen.tolist():
        part = slice(borders[document], borders[document + 1])
        _rearrange_document(window.ids_S[part], ids[part], draws[document, 1:], special, end_of_text)
    labels = window.labels_S.copy()
    labels[:-1] = np.where(labels[:-1] == IGNORED_LABEL, IGNORED_LABEL, ids[1:])
    if chosen[-1] == len(borders) - 2 and ids[-1] != end_of_text:
        labels[-1] = IGNORED_LABEL
    return Window(ids, labels, window.lengths)


def _borders(window: Window, end_of_text: int) -> NDArray[np.int64]:
    """Where documents begin in the row, also the filling at its end, and its length."""
    by_mask = np.cumsum((0, *window.lengths))
    by_token = np.flatnonzero(window.ids_S == end_of_text) + 1
    by_label = np.flatnonzero(window.labels_S != IGNORED_LABEL)[-1:] + 2  # what follows the last predicted token
    borders = np.unique(np.concatenate([by_mask, by_token, by_label]))
    return borders[borders <= len(window.ids_S)]


def _uniform(key: int, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Numbers in [0, 1) from Philox's raw output, which numpy keeps the same between versions."""
    raw = np.random.Philox(key=key).random_raw(shape[0] * shape[1]).reshape(shape)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _rearrange_document(
    tokens: NDArray[np.int64],
    out: NDArray[np.int64],
    draws: NDArray[np.float64],
    special: FimTokens,
    end_of_text: int,
) -> None:
    """Fill `out`, which holds the document's own tokens and so its end."""
    length = len(tokens) - (tokens[-1] == end_of_text)
    kept = length - len(special)
    first, second = sorted((draws * (kept + 1)).astype(np.int64).tolist())
    parts = (
        [special.prefix],
        tokens[:first],
        [special.suffix],
        tokens[second:kept],
        [special.middle],
        tokens[first:second],
    )
    np.concatenate(parts, out=out[:length])
