"""Answers that follow a JSON schema or a grammar, by the library llguidance (the extra `grammar`).

A matcher reads the answer's tokens and says which ones may come next. It never leads into a dead end: a byte-level
vocabulary can spell whatever the grammar asks for next.
"""

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.extras import needed_for
from glmforge.generate.params import RequestError, SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_JSON: "JsonCompileOptions" = {"whitespace_pattern": "\\n?[ ]{0,32}"}
"""Spaces and line breaks as people write them: a model that is unsure would go on with them for ever."""


class Grammars:
    """Matchers over the vocabulary of a tokenizer, which is read when the first one is asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def matcher(self, params: SamplingParams) -> "GrammarMatcher":
        """Of the grammar or schema in `params`. Raises `RequestError` for one that cannot be read."""
        with needed_for("a grammar"):
            from llguidance import LLMatcher
        name, source = self._source(params)
        matcher = LLMatcher(self._vocabulary, source, log_level=0)
        if matcher.is_error():
            raise RequestError(f"{name}: {_one_line(matcher.get_error())}")
        return GrammarMatcher(matcher, params.stop_ids)

    @functools.cached_property
    def _vocabulary(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        return LLTokenizer(self._tokenizer.to_json(), eos_token=self._tokenizer.end_of_text_id)

    def _source(self, params: SamplingParams) -> tuple[str, str]:
        from llguidance import LLMatcher

        if params.grammar is not None:
            return "grammar", LLMatcher.grammar_from_lark(params.grammar)
        schema = params.json_schema
        try:
            return "json_schema", LLMatcher.grammar_from_json_schema(
                schema if isinstance(schema, str) else json.dumps(schema), defaults=_JSON
            )
        except (TypeError, ValueError) as error:
            raise RequestError(f"json_schema: {_one_line(str(error))}") from error


class GrammarMatcher:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: "LLMatcher", stop_ids: Sequence[int]) -> None:
        self._matcher, self._stop_ids = matcher, list(stop_ids)

    def copy(self) -> "GrammarMatcher":
        """For another answer that begins where this one is."""
        return GrammarMatcher(self._matcher.deep_copy(), self._stop_ids)

    def read(self, token: int) -> None:
        """Read the next token, which was allowed and does not end the answer."""
        accepted = self._matcher.consume_token(token)
        assert accepted, f"token {token} is not of the grammar: {self._matcher.get_error()}"

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow what was read."""
        return bool(self._matcher.is_stopped())

    def allowed(self, vocab_size: int, drafted: Sequence[int] = ()) -> Tensor:
        """bool [vocab_size]: what may follow what was read and the drafted tokens.

        All tokens may, if the drafted ones may not: then nobody comes there.
        """
        num_read = self._matcher.try_consume_tokens(list(drafted)) if drafted else 0
        try:
            if num_read < len(drafted):
                return torch.ones(vocab_size, dtype=torch.bool)
            return self._mask(vocab_size)
        finally:
            if num_read:
                self._matcher.rollback(num_read)

    def _mask(self, vocab_size: int) -> Tensor:
        allowed = torch.zeros(vocab_size, dtype=torch.bool)
        # One byte for each token of the tokenizer, 0 for those that may not come.
        known = torch.from_numpy(np.frombuffer(self._matcher.compute_logit_bias(), np.bool_).copy())[:vocab_size]
        allowed[: len(known)] = known
        allowed[self._stop_ids] = bool(self._matcher.is_accepting())
        return allowed


def _one_line(message: str) -> str:
    return " ".join(message.split())
