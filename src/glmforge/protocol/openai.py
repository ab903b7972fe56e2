"""What OpenAI's APIs have in common: sampling settings, log-probabilities, usage, errors.

Fields that vLLM adds and that trainers and benchmarks use are known as well: top_k, min_p, repetition_penalty,
min_tokens, stop_token_ids, ignore_eos, priority. Fields that nobody knows are ignored, as OpenAI's servers do.
"""

from collections.abc import Sequence
from typing import Any

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.protocol.reply import ReplyBlock, ReplyBlocks, ReplyParser, Step
from glmforge.protocol.request import ApiError, Ask, Context, Fields, invalid, model_of, quoted

MAX_CHOICES = 128
NOT_ENDED = {"finish_reason": None}
_LOWEST = -9999.0
"""What a token gets that cannot be chosen: JSON has no infinity."""
_TYPES = {
    "authentication": "authentication_error", "permission": "permission_error", "not_found": "not_found_error",
    "rate_limit": "rate_limit_error", "timeout": "timeout_error", "overloaded": "server_error",
    "server": "server_error",
}  # fmt: skip


def error(refusal: ApiError) -> dict[str, Any]:
    """A refusal as a body."""
    kind = _TYPES.get(refusal.kind, "invalid_request_error")
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}}


def sampling(body: Fields, context: Context, *, max_choices: int = MAX_CHOICES) -> dict[str, Any]:
    """Settings of `SamplingParams` but for lengths, log-probabilities and schemas."""
    temperature = body.number("temperature", 0, 2)
    top_p, top_k = body.number("top_p", 0, 1), body.integer("top_k", -1)
    seed = body.integer("seed", -(2**63), 2**64)
    stop = body.get("stop")
    ignore_eos = body.flag("ignore_eos")
    return {
        "temperature": heat(temperature),
        "top_p": 1.0 if top_p is None else max(top_p, 1e-9),  # 0 leaves the likeliest token
        "top_k": max(0, top_k or 0),
        "min_p": body.number("min_p", 0, 1) or 0.0,
        "repetition_penalty": body.number("repetition_penalty", 0.001, 1000) or 1.0,
        "frequency_penalty": body.number("frequency_penalty", -2, 2) or 0.0,
        "presence_penalty": body.number("presence_penalty", -2, 2) or 0.0,
        "logit_bias": _logit_bias(body, context.tokenizer.vocab_size),
        "seed": None if seed is None else seed % 2**63,
        "num_samples": body.integer("n", 1, max_choices) or 1,
        "stop": [stop] if isinstance(stop, str) else body.array("stop"),
        "min_new_tokens": body.integer("min_tokens", 0) or 0,
        "stop_ids": () if ignore_eos else _stop_ids(body, context.tokenizer),
        "banned_tokens": context.tokenizer.stop_ids if ignore_eos else (),
    }


def heat(temperature: float | None) -> float:
    """A temperature as the engine takes it; 1 if none is given."""
    return 1.0 if temperature is None else float(temperature) if temperature >= 1e-4 else 0.0


def schema_of(body: Fields, name: str) -> Any:
    """The JSON schema of `response_format` and its kind; None for text."""
    wanted = body.part(name)
    kind = "text" if wanted is None else wanted.choice("type", ("text", "json_object", "json_schema"), "text")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    holder = wanted.part("json_schema") if "json_schema" in wanted else wanted
    schema = None if holder is None else holder.part("schema")
    if holder is None or schema is None:
        raise invalid(wanted.where("json_schema"), "needs a schema")
    return dict(holder.get("schema"))


def common(body: Fields, context: Context) -> dict[str, Any]:
    """Fields of `Ask` that every API has."""
    options = body.part("stream_options")
    return {
        "model": model_of(body, context),
        "stream": body.flag("stream"),
        "include_usage": options is not None and options.flag("include_usage"),
        "priority": body.integer("priority", -(2**31)) or 0,
        "timeout": body.number("timeout", 0.001, 1e6),
        "id": body.text("request_id", "") or None,
    }


class Counts:
    """Tokens of an answer, as updates tell of them."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._cached = dict.fromkeys(range(0, num_choices(ask), ask.params.num_samples), 0)
        self.num_tokens = 0

    @property
    def num_prompt(self) -> int:
        return sum(map(len, self._ask.prompts or (self._ask.prompt,)))

    @property
    def num_cached(self) -> int:
        return sum(self._cached.values())

    def add(self, update: Update) -> None:
        self.num_tokens += update.token is not None
        if update.sample in self._cached:  # the other samples of a prompt begin behind it
            self._cached[update.sample] = max(self._cached[update.sample], update.num_cached)

    def body(self, num_reasoning: int | None = None) -> dict[str, Any]:
        """In the words of chat and completions."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt + self.num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
        }
        if num_reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
        return usage


class BlockReader:
    """An answer that is read block by block, and its counts."""

    def __init__(self, ask: Ask, context: Context) -> None:
        assert ask.reply is not None, "it is taken apart"
        self.counts, self.parser, self._blocks = Counts(ask), ReplyParser(context.tokenizer, ask.reply), ReplyBlocks()

    @property
    def blocks(self) -> list[ReplyBlock]:
        return self._blocks.blocks

    def take(self, update: Update) -> list[Step]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        refuse_failed(update)
        self.counts.add(update)
        pieces = [] if update.token is None else self.parser.add([update.token])
        if update.finished is None:
            return list(self._blocks.add(pieces))
        return [*self._blocks.add([*pieces, *self.parser.finish()]), *self._blocks.close()]


def num_choices(ask: Ask) -> int:
    """Answers to all of its prompts."""
    return max(1, len(ask.prompts)) * ask.params.num_samples


def logprob_body(tokenizer: Tokenizer, token: int, found: TokenLogprob) -> dict[str, Any]:
    """A token, its bytes and its log-probability, with the likeliest ones."""
    top = [_token_body(tokenizer, other, logprob) for other, logprob in found.top]
    return _token_body(tokenizer, token, found.logprob) | {"top_logprobs": top}


def _token_body(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": finite(logprob)}


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return logprob if logprob > _LOWEST else _LOWEST


def stop_reason(update: Update, tokenizer: Tokenizer) -> str | int | None:
    """The stop string or token that the client gave and that was found; vLLM's field of that name."""
    own = (*tokenizer.stop_ids, tokenizer.special_id("</tool_call>"))
    return None if update.stop in own else update.stop


def refuse_failed(update: Update) -> None:
    """Raise `ApiError` for an answer that the engine could not finish."""
    if update.finished == "error":
        raise ApiError(500, "server", update.error or "the engine could not finish this answer")


def _stop_ids(body: Fields, tokenizer: Tokenizer) -> Sequence[int]:
    ids = body.array("stop_token_ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            raise invalid(body.where("stop_token_ids"), f"{quoted(token)} is not a token id of this model")
    return (*tokenizer.stop_ids, *ids) if ids else ()


def _logit_bias(body: Fields, vocab_size: int) -> dict[int, float]:
    biases = body.part("logit_bias")
    if biases is None:
        return {}
    found: dict[int, float] = {}
    for name in body.get("logit_bias"):
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < vocab_size):
            raise invalid("logit_bias", f"{quoted(name)} is not a token id of this model")
        found[int(name)] = biases.number(name, -100, 100) or 0.0
    return found
