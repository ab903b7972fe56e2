"""What OpenAI's APIs have in common: schemas, log-probabilities, usage, errors, choices.

Fields that nobody knows are ignored, as OpenAI's servers do.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.protocol.body import Asked, Body, refuse
from glmforge.protocol.request import ApiError, Ask, Context, Event, invalid

NOT_ENDED: Mapping[str, Any] = {"finish_reason": None}
_LOWEST = -9999.0
"""What a token gets that cannot be chosen: JSON has no infinity."""
_TYPES = {
    "authentication": "authentication_error", "permission": "permission_error", "not_found": "not_found_error",
    "rate_limit": "rate_limit_error", "timeout": "timeout_error", "overloaded": "server_error",
    "server": "server_error",
}  # fmt: skip
_Guided = Annotated[Any, refuse("use response_format")]


def error(refusal: ApiError) -> dict[str, Any]:
    """A refusal as a body."""
    kind = _TYPES.get(refusal.kind, "invalid_request_error")
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}}


class NamedSchema(Body):
    """A JSON schema and what it is called."""

    body: dict[str, Any] | None = Field(default=None, alias="schema")


class Format(NamedSchema):
    """What an answer must be: any text, any object, or JSON of a schema, which Responses has beside the type."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: NamedSchema | None = None

    def schema_for(self, where: str) -> dict[str, Any] | None:
        """None for text. `where` the body has it. Raises `ApiError`."""
        if self.type != "json_schema":
            return {"type": "object"} if self.type == "json_object" else None
        found = (self.json_schema or self).body
        if found is None:
            raise invalid(f"{where}.json_schema", "needs a schema")
        return found


class Guided(Asked):
    """Chat and completions. vLLM's own fields for schemas and grammars are refused."""

    response_format: Format = Format()
    guided_json: _Guided = None
    guided_regex: _Guided = None
    guided_choice: _Guided = None
    guided_grammar: _Guided = None
    structured_outputs: _Guided = None


class Counts:
    """Tokens of an answer, as updates tell of them."""

    def __init__(self, ask: Ask) -> None:
        self._cached = dict.fromkeys(range(0, num_choices(ask), ask.params.num_samples), 0)
        self.num_prompt, self.num_tokens = sum(map(len, ask.prompts or (ask.prompt,))), 0

    @property
    def num_cached(self) -> int:
        return sum(self._cached.values())

    def add(self, update: Update) -> None:
        """Raises `ApiError` for an answer that the engine could not finish."""
        if update.finished == "error":
            raise ApiError(500, "server", update.error or "the engine could not finish this answer")
        self.num_tokens += update.token is not None
        if update.sample in self._cached:  # the other samples of a prompt begin behind it
            self._cached[update.sample] = max(self._cached[update.sample], update.num_cached)

    def body(self, num_reasoning: int | None = None) -> dict[str, Any]:
        """In the words of chat and completions."""
        details = {} if num_reasoning is None else {"completion_tokens_details": {"reasoning_tokens": num_reasoning}}
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt + self.num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
        } | details


class ChoicesWriter:
    """Answers as a list of choices, or chunks of them."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._ask, self._tokenizer, self._counts = ask, context.tokenizer, Counts(ask)
        self._head = {"id": answer_id, "created": context.created, "model": ask.model}

    def end(self) -> list[Event]:
        """Usage, if it is asked for."""
        return [self._chunk([], self._usage())] if self._ask.include_usage else []

    def _usage(self) -> dict[str, Any]:
        return self._counts.body()

    def _chunk(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None) -> Event:
        told = {"usage": usage} if self._ask.include_usage else {}
        return Event(None, self._head | {"object": self.chunk_kind, "choices": choices} | told)

    def _answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": self.kind, "choices": choices, "usage": self._usage()}

    def _scored(self, update: Update) -> tuple[int, TokenLogprob] | None:
        """A token whose log-probability is told of."""
        if update.token is None or update.logprob is None or update.token in self._tokenizer.stop_ids:
            return None
        return update.token, update.logprob

    def _ends(self, update: Update, with_calls: bool = False) -> dict[str, Any]:
        """Why an answer has ended: one that was cancelled, as at a limit. `stop_reason`, vLLM's field, is the stop
        string or token that the client gave."""
        own = (*self._tokenizer.stop_ids, self._tokenizer.special_id("</tool_call>"))
        finish = "length" if update.finished != "stop" else "tool_calls" if with_calls else "stop"
        return {"finish_reason": finish, "stop_reason": None if update.stop in own else update.stop}


def num_choices(ask: Ask) -> int:
    """Answers to all of its prompts."""
    return max(1, len(ask.prompts)) * ask.params.num_samples


def logprob_body(tokenizer: Tokenizer, token: int, found: TokenLogprob) -> dict[str, Any]:
    """A token, its bytes and its log-probability, with the likeliest ones."""

    def told(one: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(one)
        return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": finite(logprob)}

    return told(token, found.logprob) | {"top_logprobs": [told(*other) for other in found.top]}


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return logprob if logprob > _LOWEST else _LOWEST
