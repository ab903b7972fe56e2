"""The text that hides the needles, as tokens: of a shard, or made-up sentences.

A needle goes between two sentences. Where those are is read off the tokens: one ends in a line break or a full-width
stop, question or exclamation mark, or in one of the usual marks with a space behind it. So a text of any language and
length is cut and filled exactly, and is never encoded again.
"""

import string
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glmforge.data.tokens.shards import TokenShard, check_ids
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

_MARKS, _SPACES = (b".", b"!", b"?"), (b" ", b"\t", b"\n", b"\r")
_BREAKS = tuple(mark.encode() for mark in ("\n", "。", "！", "？"))

_MAX_SENTENCE = 4096
"""Tokens in which a sentence has to end."""

_NUM_SENTENCES = 1024
_SENTENCES = (
    "The baker|A sailor|My aunt|The old clock|Our neighbour|The gardener|A small dog|The teacher",
    "watched|painted|carried|forgot|cleaned|liked|repaired|passed|counted|described|bought|moved",
    "the fence|two chairs|a letter|the kitchen|some bread|the stairs|a blue coat|the boats",
    "in the morning|before lunch|without a word|on the way home|last winter|again|for a while|at noon",
)


class Haystack(Protocol):
    """Where text comes from."""

    name: str

    def draw(self, num_tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
        """Tokens of a text, at least this many; no special token is among them."""
        ...


class SentenceEnds:
    """Tells where the sentences of tokens end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
        self._is_break_V = np.array([text.endswith(_BREAKS) for text in texts])
        self._is_mark_V = np.array([text.endswith(_MARKS) for text in texts])
        self._is_space_V = np.array([text.startswith(_SPACES) for text in texts])

    def cut(
        self, haystack: Haystack, num_tokens: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Whole sentences of `haystack`, as many as `num_tokens` have room for, and the places between them.

        The places are numbers of tokens before; the first is 0, the last is the length of the text. Raises `DataError`
        if a sentence is too long.
        """
        ids = haystack.draw(num_tokens + _MAX_SENTENCE, rng)
        before, after = ids[:-1], ids[1:]
        (ends,) = np.nonzero(self._is_break_V[before] | self._is_mark_V[before] & self._is_space_V[after])
        places = ends + 1
        begin = int(places[0]) if len(places) else len(ids)
        places = places[places <= begin + num_tokens] - begin
        if begin > _MAX_SENTENCE or num_tokens - places[-1] > _MAX_SENTENCE:
            raise DataError(
                f"{haystack.name}: no sentence ends in {_MAX_SENTENCE:,} tokens, so needles cannot be placed; use a "
                "text with full stops or line breaks"
            )
        return ids[begin : begin + int(places[-1])], places


_CHARACTERS = f"{string.digits} {string.ascii_letters}.\n"


def make_haystack(shard: TokenShard | None, tokenizer: Tokenizer) -> Haystack:
    """Text of `shard`, or made-up sentences.

    Raises:
        DataError: the tokenizer loses characters, so that no answer would stand in the text.
    """
    if tokenizer.decode(tokenizer.encode(_CHARACTERS)) != _CHARACTERS:
        raise DataError(
            "the tokenizer does not decode digits, letters and line breaks to what it encoded; use one that does, "
            "such as from 'glmforge data tokenizer'"
        )
    return PlainHaystack(tokenizer) if shard is None else ShardHaystack(shard, tokenizer)


class ShardHaystack:
    """Any stretch of a shard, from its beginning again where it ends; line breaks stand where documents meet."""

    def __init__(self, shard: TokenShard, tokenizer: Tokenizer) -> None:
        shard.check_tokenizer(tokenizer)
        self.name = str(shard.prefix)
        self._shard, self._vocab_size = shard, tokenizer.vocab_size
        self._special = np.array([tokenizer.special_id(token) for token in SPECIAL_TOKENS])
        (self._line_break,) = tokenizer.encode("\n")

    def draw(self, num_tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
        start, total = int(rng.integers(self._shard.num_tokens)), self._shard.num_tokens
        parts: list[NDArray[Any]] = []
        while num_tokens > 0:
            parts.append(self._shard.tokens(start, min(start + num_tokens, total)))
            check_ids(parts[-1], self._vocab_size, self._shard.prefix, start)
            num_tokens, start = num_tokens - len(parts[-1]), 0
        ids = np.concatenate(parts).astype(np.int32)
        ids[np.isin(ids, self._special)] = self._line_break
        return ids


class PlainHaystack:
    """Sentences that say nothing, in any order."""

    name = "made-up sentences"

    def __init__(self, tokenizer: Tokenizer) -> None:
        rng = np.random.default_rng(0)
        words = [[str(rng.choice(part.split("|"))) for part in _SENTENCES] for _ in range(_NUM_SENTENCES)]
        self._sentences = [
            np.array(ids, np.int32) for ids in tokenizer.encode_batch([f" {' '.join(each)}." for each in words])
        ]
        self._shortest = min(map(len, self._sentences))

    def draw(self, num_tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
        chosen = rng.integers(0, len(self._sentences), -(-num_tokens // self._shortest))
        return np.concatenate([self._sentences[index] for index in chosen])
