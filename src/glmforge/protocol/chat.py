"""OpenAI's chat completions: https://platform.openai.com/docs/api-reference/chat

Beside OpenAI's fields: `reasoning_content` in messages and answers; `thinking` as Z.ai has it (`{"type": "disabled",
"clear_thinking": false}`), `chat_template_kwargs` as vLLM has it, `thinking_token_budget`; `continue_final_message`;
`stop_reason` in answers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, FailFast, Field

from glmforge.generate.answer import Update
from glmforge.generate.params import MAX_TOP_LOGPROBS, SamplingParams
from glmforge.protocol.body import Body, Count, Positive, TextPart, Whole, joined, refuse, refusing
from glmforge.protocol.openai import NOT_ENDED, ChoicesWriter, Guided, logprob_body
from glmforge.protocol.prompt import MAX_LENGTH, Effort, Talk, Thinking, ask_for
from glmforge.protocol.reply import Message, Piece, ReplyParser
from glmforge.protocol.request import Ask, Context, Event, invalid
from glmforge.protocol.tools import MAX_TOOLS, Choice, Tool


class _Part(TextPart):
    type: Literal["text", "input_text", "output_text", "refusal"] = "text"  # type: ignore[assignment]
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))


Text = Annotated[str, joined(_Part)]


class _PastFunction(Body):
    name: str
    arguments: Any = None


class _PastCall(Body):
    function: _PastFunction


class _Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text = ""
    reasoning_content: str | None = Field(default=None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    tool_calls: Annotated[list[_PastCall], FailFast()] = []

    def written(self) -> dict[str, Any]:
        """With the fields that a conversation knows."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.role == "assistant":
            if self.reasoning_content is not None:
                message["reasoning_content"] = self.reasoning_content
            if self.tool_calls:
                functions = [call.function for call in self.tool_calls]
                message["tool_calls"] = [{"function": {"name": f.name, "arguments": f.arguments}} for f in functions]
        return message


class _Tool(Body):
    type: Literal["function"] = "function"
    function: Tool


class _Thinking(Body):
    type: Literal["enabled", "disabled", "auto"] = "enabled"
    clear_thinking: bool = True


class _TemplateSettings(Body):
    enable_thinking: bool | None = None
    clear_thinking: bool | None = None


class TalkBody(Body):
    """What of a body makes the prompt."""

    messages: Annotated[list[_Message], FailFast(), Field(min_length=1)]
    continue_final_message: bool = False
    tools: Annotated[list[_Tool], FailFast(), Field(max_length=MAX_TOOLS)] = []
    tool_choice: Choice = ("auto", None)
    parallel_tool_calls: bool = True
    thinking: _Thinking = _Thinking()
    chat_template_kwargs: _TemplateSettings = _TemplateSettings()
    reasoning_effort: Effort | None = None
    thinking_token_budget: Count | None = None

    def talk(self) -> Talk:
        """Raises `ApiError`."""
        messages, prefill = [one.written() for one in self.messages], None
        if self.continue_final_message:
            if messages[-1]["role"] != "assistant":
                raise invalid("continue_final_message", "the last message is not the assistant's")
            prefill = messages.pop()["content"]
        said, settings = self.thinking, self.chat_template_kwargs
        enabled = said.type != "disabled" if settings.enable_thinking is None else settings.enable_thinking
        clear = said.clear_thinking if settings.clear_thinking is None else settings.clear_thinking
        thinking = Thinking(enabled, self.reasoning_effort, self.thinking_token_budget, clear)
        tools = [one.function for one in self.tools]
        return Talk(messages, tools, *self.tool_choice, self.parallel_tool_calls, thinking, prefill)


class _Body(TalkBody, Guided):
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    logprobs: bool = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    audio: Annotated[Any, refuse("this model writes text only")] = None
    modalities: Annotated[Any, refuse("this model writes text only", ["text"])] = None
    web_search_options: Annotated[Any, refuse("there is no search")] = None
    functions: Annotated[Any, refuse("use tools", [], "none", "auto")] = None
    function_call: Annotated[Any, refuse("use tool_choice", [], "none", "auto")] = None


@refusing()
def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    given = _Body.model_validate(body)
    shared = given.shared(context)
    if given.top_logprobs and not given.logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    params = SamplingParams(
        **given.sampling(context),
        max_new_tokens=MAX_LENGTH,
        logprobs=given.top_logprobs if given.logprobs else None,
        json_schema=given.response_format.schema_for("response_format"),
    )
    talk = replace(given.talk(), hold_calls=not given.stream)
    return replace(ask_for(talk, params, given.max_completion_tokens or given.max_tokens, context), **shared)


class _Choice:
    """What has been written of one answer."""

    def __init__(self, parser: ReplyParser) -> None:
        self.parser, self.message = parser, Message()
        self.logprobs: list[dict[str, Any]] = []
        self.ends: dict[str, Any] = {"finish_reason": None}


class ChatWriter(ChoicesWriter):
    """Answers in the form of chat completions, or chunks of them."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        super().__init__(ask, context, answer_id)
        assert ask.reply is not None, "chat has one"
        self._choices = [_Choice(ReplyParser(self._tokenizer, ask.reply)) for _ in range(ask.params.num_samples)]

    def begin(self) -> list[Event]:
        """The role of every choice."""
        return [self._event(number, {"role": "assistant", "content": ""}) for number in range(len(self._choices))]

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        self._counts.add(update)
        choice = self._choices[update.sample]
        pieces = choice.parser.take(update)
        if (scored := self._scored(update)) is not None:
            choice.logprobs.append(logprob_body(self._tokenizer, *scored))
        if update.finished is not None:
            choice.ends = self._ends(update, with_calls=choice.parser.num_calls > 0)
        if not self._ask.stream:
            choice.message.add(pieces)
            return []
        events = [self._event(update.sample, delta) for piece in pieces if (delta := self._delta(update.sample, piece))]
        if update.finished is not None:
            events.append(self._event(update.sample, {}, choice.ends))
        if events and choice.logprobs:
            events[0].data["choices"][0]["logprobs"] = {"content": choice.logprobs, "refusal": None}
            choice.logprobs = []
        return events

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        has_logprobs, choices = self._ask.params.logprobs is not None, []
        for number, one in enumerate(self._choices):
            logprobs = {"content": one.logprobs, "refusal": None} if has_logprobs else None
            message = self._message(number, one.message)
            choices.append({"index": number, "message": message, "logprobs": logprobs, **one.ends})
        return self._answer(choices)

    def _usage(self) -> dict[str, Any]:
        return self._counts.body(sum(one.parser.num_reasoning for one in self._choices))

    def _message(self, sample: int, message: Message) -> dict[str, Any]:
        calls = [
            self._call(sample, number, {"name": name, "arguments": arguments})
            for number, (name, arguments, _) in enumerate(message.calls)
        ]
        said: dict[str, Any] = {"role": "assistant", "content": message.content or (None if calls else "")}
        said["refusal"] = None
        if message.reasoning:
            said["reasoning_content"] = message.reasoning
        return said | ({"tool_calls": calls} if calls else {})

    def _delta(self, sample: int, piece: Piece) -> dict[str, Any]:
        match piece.kind:
            case "reasoning":
                return {"reasoning_content": piece.text}
            case "content":
                return {"content": piece.text}
            case "call":
                call = self._call(sample, piece.call, {"name": piece.text, "arguments": ""})
                return {"tool_calls": [{"index": piece.call} | call]}
            case "arguments":
                return {"tool_calls": [{"index": piece.call, "function": {"arguments": piece.text}}]}
        return {}

    def _call(self, sample: int, number: int, function: dict[str, str]) -> dict[str, Any]:
        return {"id": f"call_{self._head['id']}_{sample}_{number}", "type": "function", "function": function}

    def _event(self, sample: int, delta: dict[str, Any], ends: Mapping[str, Any] = NOT_ENDED) -> Event:
        return self._chunk([{"index": sample, "delta": delta, "logprobs": None, **ends}])
