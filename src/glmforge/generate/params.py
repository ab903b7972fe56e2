"""How a request's tokens are chosen, what is reported about them, and when an answer ends."""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glmforge.errors import GlmforgeError
from glmforge.files import shown, why_no_text

MAX_TOP_LOGPROBS = 100
MAX_SAMPLES = 4096
MAX_NUMBER = 1e9
"""No setting is larger: fp32 logits to which all of them are added stay finite."""
MAX_TOKENS = 4096
"""Tokens that a setting may name."""
MAX_STOPS, MAX_STOP_LENGTH = 64, 1024
MAX_GRAMMAR = 2**22
"""Characters of a grammar or a schema."""
_MIN_TEMPERATURE = 1e-5  # below it, fp32 logits divided by it overflow


class RequestError(GlmforgeError):
    """A request that cannot be served; others go on."""


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one request; ones that cannot be raise `RequestError`.

    A token's logits are changed in this order: repetition, frequency and presence penalty, logit bias, what is ruled
    out, temperature, min-p, top-k, top-p. Each of the last three looks at what the ones before it have left.

    Attributes:
        max_new_tokens: at most this many are generated, for each sample; 0 computes the prompt alone, for its
            log-probabilities.
        min_new_tokens: no stop token is chosen and no stop string ends an answer before it has this many.
        temperature: logits are divided by it; 0 takes the likeliest token. Numbers are at most 1e9.
        top_p: the smallest set of tokens whose probability reaches it is kept.
        top_k: this many of the likeliest tokens are kept; 0 keeps all.
        min_p: tokens less likely than this share of the likeliest one's probability are dropped.
        repetition_penalty: logits of tokens that the prompt or the answer has are divided by it, negative ones
            multiplied (Keskar et al., 2019).
        frequency_penalty: taken off a token's logit for each time that the answer has it.
        presence_penalty: taken off once for a token that the answer has.
        logit_bias: added to the logits of single tokens. Lists of tokens have at most 4,096.
        banned_tokens: are never chosen.
        first_tokens: the first token is one of these, if any are given.
        vocab_size: ids from there on are never chosen (an embedding padded past its tokenizer).
        json_schema: the answer is JSON of this schema (as an object or as text); `{}` allows any JSON. Needs a
            tokenizer and the extra `grammar`.
        grammar: the answer is a text of this grammar, in Lark's notation as llguidance takes it:
            `start: "yes" | "no"`, `start: /[0-9]+/`. Needs the same.
        seed: tokens are a function of it, the number of the sample and the prompt, independent of the rest of the
        batch.
            None takes a seed from that of the engine and the number of the request.
        num_samples: answers to the same prompt, which is computed once; at most 4,096.
        stop_ids: a token that ends an answer, and is its last; without any, those of the engine's tokenizer.
        stop: a string that ends an answer; the text ends before it, the tokens with the one that completed it. At most
            64, of up to 1,024 characters. Needs a tokenizer.
        logprobs: log-probabilities of each chosen token and of this many of the likeliest, under the temperature (under
            1 for temperature 0) and before anything else changes them; None for none.
        logprob_tokens: the log-probabilities of these tokens, too, at each place of the answer. Needs `logprobs`.
        prompt_logprobs: those of the prompt's tokens but the first. All of the prompt is computed for it, even where
            its beginning is in the cache.
        prompt_logprobs_from: only of the prompt's tokens from this one on; what precedes them is taken from the cache.
        experts: the experts that every token of the prompt and the answer chose in every layer, but the answer's last
            token, which nothing is computed from. All of the prompt is computed for it.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: Sequence[int] = ()
    first_tokens: Sequence[int] = ()
    vocab_size: int | None = None
    json_schema: str | Mapping[str, Any] | None = None
    grammar: str | None = None
    seed: int | None = None
    num_samples: int = 1
    stop_ids: Sequence[int] = ()
    stop: Sequence[str] = ()
    logprobs: int | None = None
    logprob_tokens: Sequence[int] = ()
    prompt_logprobs: bool = False
    prompt_logprobs_from: int = 0
    experts: bool = False

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            limit.check(name, getattr(self, name))
        for name in ("banned_tokens", "first_tokens", "stop_ids", "logprob_tokens"):
            _check_list(name, getattr(self, name), int, "token ids, such as [17, 4]")
        _check_list("stop", self.stop, str, 'strings, such as ["\\n\\n"]')
        if not all(self.stop):
            raise RequestError("stop: contains an empty string; remove it")
        if len(self.stop) > MAX_STOPS or any(len(string) > MAX_STOP_LENGTH for string in self.stop):
            raise RequestError(f"stop: give at most {MAX_STOPS} strings of at most {MAX_STOP_LENGTH:,} characters")
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias: {_shown(self.logit_bias)} does not map token ids to numbers")
        _check_number_of_tokens("logit_bias", self.logit_bias)
        for token, bias in self.logit_bias.items():
            _TOKEN.check("logit_bias", token)
            _NUMBER.check(f"logit_bias of token {token}", bias)
        if self.logprob_tokens and self.logprobs is None:
            raise RequestError("logprob_tokens: goes with logprobs; set logprobs to 0 or more")
        if self.min_new_tokens > self.max_new_tokens:
            raise RequestError(
                f"min_new_tokens: {self.min_new_tokens:,} is more than max_new_tokens, {self.max_new_tokens:,}"
            )
        if self.max_new_tokens == 0 and (self.num_samples > 1 or self.has_grammar):
            raise RequestError("max_new_tokens: 0 scores the prompt alone, without samples or a grammar; raise it")
        self._check_grammar()
        texts = [("grammar", self.grammar), ("json_schema", self.json_schema), *(("stop", text) for text in self.stop)]
        for name, text in texts:
            if isinstance(text, str) and (reason := why_no_text(text)) is not None:
                raise RequestError(f"{name}: {reason}")

    @property
    def has_grammar(self) -> bool:
        return self.grammar is not None or self.json_schema is not None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `RequestError` for a token outside a vocabulary of this size, and if no token is left to choose."""
        named = [*self.logit_bias, *self.banned_tokens, *self.first_tokens, *self.stop_ids, *self.logprob_tokens]
        for token in named:
            if token >= vocab_size:
                raise RequestError(f"params: token {token} is outside the vocabulary of {vocab_size:,}")
        if self.vocab_size is not None and self.vocab_size > vocab_size:
            raise RequestError(f"vocab_size: {self.vocab_size:,} is more than the model's {vocab_size:,}")
        limit = vocab_size if self.vocab_size is None else self.vocab_size
        ruled_out = {*self.banned_tokens, *(self.stop_ids if self.min_new_tokens > 1 else ())}
        if self.first_tokens and all(token in ruled_out or token >= limit for token in self.first_tokens):
            raise RequestError("first_tokens: all are banned, beyond vocab_size, or end the answer too early")
        if sum(token < limit for token in ruled_out) == limit:
            raise RequestError(f"banned_tokens: all {limit:,} tokens are banned")

    def _check_grammar(self) -> None:
        for name, kinds in (("json_schema", str | Mapping), ("grammar", str)):
            value = getattr(self, name)
            if not isinstance(value, kinds | None):
                raise RequestError(f"{name}: {_shown(value)} is not a {name.replace('_', ' ')}")
            if isinstance(value, str) and len(value) > MAX_GRAMMAR:
                raise RequestError(f"{name}: {len(value):,} characters are more than {MAX_GRAMMAR:,}; shorten it")
        if self.grammar is not None and self.json_schema is not None:
            raise RequestError("grammar: cannot be combined with json_schema; pass one of them")
        if self.has_grammar and (self.banned_tokens or self.first_tokens or self.min_new_tokens):
            raise RequestError(
                "grammar: cannot be combined with banned_tokens, first_tokens or min_new_tokens, which could leave "
                "no token to choose"
            )


class _Limit(NamedTuple):
    kind: type
    holds: Callable[[Any], bool]
    words: str
    optional: bool = False

    def check(self, name: str, value: object) -> None:
        if self.optional and value is None:
            return
        kinds = (int, float) if self.kind is float else self.kind
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            raise RequestError(f"{name}: {_shown(value)} is not a {_KINDS[self.kind]}")
        if not self.holds(value):
            raise RequestError(f"{name}: {_shown(value)} is not {self.words}")


_KINDS = {int: "whole number", float: "number", bool: "yes or no (true, false)"}
_NUMBER = _Limit(
    float, lambda value: abs(value) <= MAX_NUMBER, f"a finite number between {-MAX_NUMBER:g} and {MAX_NUMBER:g}"
)
_TOKEN = _Limit(int, lambda token: 0 <= token < 2**31, "a token id, 0 or more")
_YES_OR_NO = _Limit(bool, lambda value: True, "")
_LIMITS = {
    "max_new_tokens": _Limit(int, lambda number: 0 <= number < 2**31, "0 or more, and less than 2**31"),
    "min_new_tokens": _Limit(int, lambda number: 0 <= number < 2**31, "0 or more, and less than 2**31"),
    "temperature": _Limit(
        float,
        lambda value: value == 0 or _MIN_TEMPERATURE <= value <= MAX_NUMBER,
        f"0 (greedy), or between {_MIN_TEMPERATURE} and {MAX_NUMBER:g}",
    ),
    "top_p": _Limit(float, lambda value: 0 < value <= 1, "above 0 and at most 1, which keeps all tokens"),
    "top_k": _Limit(int, lambda number: 0 <= number < 2**31, "0, which keeps all tokens, or a number below 2**31"),
    "min_p": _Limit(float, lambda value: 0 <= value <= 1, "between 0, which keeps all tokens, and 1"),
    "repetition_penalty": _Limit(
        float, lambda value: 0.001 <= value <= 1000, "between 0.001 and 1000; 1 means no penalty"
    ),
    "frequency_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "vocab_size": _Limit(int, lambda number: 1 <= number < 2**31, "1 or more, and less than 2**31", optional=True),
    "seed": _Limit(int, lambda number: 0 <= number < 2**63, "between 0 and 2**63 - 1", optional=True),
    "num_samples": _Limit(int, lambda number: 1 <= number <= MAX_SAMPLES, f"between 1 and {MAX_SAMPLES:,}"),
    "logprobs": _Limit(
        int, lambda number: 0 <= number <= MAX_TOP_LOGPROBS, f"between 0 and {MAX_TOP_LOGPROBS}", optional=True
    ),
    "prompt_logprobs": _YES_OR_NO,
    "prompt_logprobs_from": _Limit(int, lambda number: 0 <= number < 2**31, "0 or more, and less than 2**31"),
    "experts": _YES_OR_NO,
}


def _check_list(name: str, values: object, kind: type, words: str) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(value, kind) for value in values):
        raise RequestError(f"{name}: {_shown(values)} is not a list of {words}")
    if kind is int:
        _check_number_of_tokens(name, values)
        for value in values:
            _TOKEN.check(name, value)


def _check_number_of_tokens(name: str, tokens: Sized) -> None:
    if len(tokens) > MAX_TOKENS:
        raise RequestError(f"{name}: names {len(tokens):,} tokens; at most {MAX_TOKENS:,} are allowed")


def _shown(value: object) -> str:
    """As errors show it: in one line, however long it is."""
    try:
        return shown(repr(value))
    except ValueError:  # Python does not write out a number of this many digits
        return "a number of thousands of digits"


GREEDY = SamplingParams()
"""The likeliest token each time."""
