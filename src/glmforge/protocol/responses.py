"""OpenAI's Responses, without a state: https://platform.openai.com/docs/api-reference/responses

Clients hand back the whole conversation as items; what a server would have to remember (`previous_response_id`,
`conversation`, `item_reference`, `background`) is refused. Reasoning comes and goes as plain `reasoning_text`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field

from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams
from glmforge.protocol.blocks import BlockWriter, ReplyBlock
from glmforge.protocol.body import Asked, Body, OneOf, Positive, joined, refuse, refusing, text_or
from glmforge.protocol.chat import Text
from glmforge.protocol.openai import Format
from glmforge.protocol.prompt import MAX_LENGTH, Effort, Talk, Thinking, ask_for
from glmforge.protocol.request import Ask, Context, Event
from glmforge.protocol.tools import MAX_TOOLS, Choice, Tool

_State = Annotated[Any, refuse("this server keeps no state; give the whole conversation as input")]
_ECHOED = (
    "instructions", "metadata", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "user",
)  # fmt: skip


class _Said(Body):
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: Text = ""


class _Thought(Body):
    text: str


class _Reasoning(Body):
    content: Annotated[str, joined(_Thought)] = ""


class _Call(Body):
    name: str
    arguments: str


class _Output(Body):
    output: Text = ""


_Item = OneOf("type", "message", message=_Said, reasoning=_Reasoning, function_call=_Call, function_call_output=_Output)


class _Tool(Tool):
    type: Literal["function"]


class _TextSettings(Body):
    format: Format = Format()


class _Effort(Body):
    effort: Effort | None = None


class _Body(Asked):
    input: Annotated[Any, text_or(Annotated[Any, _Item])]
    instructions: str = ""
    max_output_tokens: Positive | None = None
    tools: Annotated[list[_Tool], FailFast(), Field(max_length=MAX_TOOLS)] = []
    tool_choice: Choice = ("auto", None)
    parallel_tool_calls: bool = True
    text: _TextSettings = _TextSettings()
    reasoning: _Effort = _Effort()
    previous_response_id: _State = None
    conversation: _State = None
    prompt: _State = None
    background: Annotated[Any, refuse("read the answer, or its stream", False)] = None
    top_logprobs: Annotated[Any, refuse("use chat completions", 0)] = None


@refusing()
def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    given = _Body.model_validate(body)
    system = [{"role": "system", "content": given.instructions}] if given.instructions else []
    items = [_Said(content=given.input)] if isinstance(given.input, str) else given.input
    talk = Talk(
        [*system, *_messages(items)],
        given.tools,
        *given.tool_choice,
        parallel=given.parallel_tool_calls,
        thinking=Thinking(effort=given.reasoning.effort),
        hold_calls=not given.stream,
    )
    params = SamplingParams(
        **given.sampling(context) | {"num_samples": 1},
        max_new_tokens=MAX_LENGTH,
        json_schema=given.text.format.schema_for("text.format"),
    )
    echoed = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    return replace(ask_for(talk, params, given.max_output_tokens, context), extra=echoed, **given.shared(context))


def _messages(items: list[Body]) -> Iterator[dict[str, Any]]:
    """Of items. What the assistant has thought, said and called, in this order, is one message."""
    turn: dict[str, Any] = {}
    for item in items:
        is_said = isinstance(item, _Said) and item.role == "assistant"
        begins = not isinstance(item, _Call) and bool(turn.get("tool_calls") or turn.get("content"))
        begins |= isinstance(item, _Reasoning) and "reasoning_content" in turn
        if turn and (begins or isinstance(item, _Output) or (isinstance(item, _Said) and not is_said)):
            yield turn
            turn = {}
        if isinstance(item, _Output):
            yield {"role": "tool", "content": item.output}
            continue
        if isinstance(item, _Said) and not is_said:
            yield {"role": item.role, "content": item.content}
            continue
        turn = {"role": "assistant", "content": ""} | turn
        if isinstance(item, _Call):
            function = {"name": item.name, "arguments": item.arguments}
            turn["tool_calls"] = [*turn.get("tool_calls", ()), {"function": function}]
        elif isinstance(item, _Reasoning):
            turn["reasoning_content"] = item.content
        elif isinstance(item, _Said):
            turn["content"] = item.content
    if turn:
        yield turn


_NAMES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reasoning": ("rs", "reasoning_text", {}),
    "content": ("msg", "output_text", {"logprobs": []}),
    "call": ("fc", "function_call_arguments", {}),
}
"""Of a kind of block: what its ids begin with, what its events are called, and what those of text have besides."""


class ResponsesWriter(BlockWriter):
    """An answer as a response, or as the events that build it item by item."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        super().__init__(ask, context, answer_id)
        self._created, self._num_events, self._status = context.created, 0, "in_progress"

    def begin(self) -> list[Event]:
        """A response without output."""
        return [self._event(f"response.{kind}", response=self.whole()) for kind in ("created", "in_progress")]

    def end(self) -> list[Event]:
        """The whole response."""
        return [self._event(f"response.{self._status}", response=self.whole())]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        counts, is_over = self._counts, self._status != "in_progress"
        said = {"temperature": 1.0, "top_p": 1.0, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        usage = {
            "input_tokens": counts.num_prompt,
            "input_tokens_details": {"cached_tokens": counts.num_cached, "cache_write_tokens": 0},
            "output_tokens": counts.num_tokens,
            "output_tokens_details": {"reasoning_tokens": self._parser.num_reasoning},
            "total_tokens": counts.num_prompt + counts.num_tokens,
        }
        return said | {
            **self._ask.extra,
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._ask.model,
            "status": self._status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "output": [self._item(one, is_over) for one in self._blocks],
            "usage": usage if is_over else None,
            "store": False,
        }

    def _finish(self, update: Update) -> None:
        self._status = "completed" if update.finished == "stop" else "incomplete"

    def _begun(self, block: ReplyBlock) -> Iterator[Event]:
        yield self._event("response.output_item.added", output_index=block.number, item=self._item(block, False))
        if block.kind != "call":
            yield self._event("response.content_part.added", **self._place(block), part=_part(block))

    def _more(self, block: ReplyBlock, text: str) -> Event:
        _, name, more = _NAMES[block.kind]
        return self._event(f"response.{name}.delta", **self._place(block), delta=text, **more)

    def _ended(self, block: ReplyBlock) -> Iterator[Event]:
        _, name, more = _NAMES[block.kind]
        place = self._place(block)
        if block.kind != "call":
            yield self._event(f"response.{name}.done", **place, text=block.text, **more)
            yield self._event("response.content_part.done", **place, part=_part(block))
        elif block.is_whole:
            yield self._event(f"response.{name}.done", **place, arguments=block.text, name=block.name)
        yield self._event("response.output_item.done", output_index=block.number, item=self._item(block, True))

    def _place(self, block: ReplyBlock) -> dict[str, Any]:
        place = {"item_id": self._item_id(block), "output_index": block.number}
        return place | ({} if block.kind == "call" else {"content_index": 0})

    def _item(self, block: ReplyBlock, is_over: bool) -> dict[str, Any]:
        status = "in_progress" if not is_over else "completed" if block.is_whole else "incomplete"
        head = {"id": self._item_id(block), "status": status}
        content = [_part(block)] if block.text else []
        if block.kind == "call":
            call = {"call_id": f"call_{self._id}_{block.number}", "name": block.name, "arguments": block.text}
            return head | {"type": "function_call"} | call
        if block.kind == "reasoning":
            return head | {"type": "reasoning", "summary": [], "content": content}
        return head | {"type": "message", "role": "assistant", "content": content}

    def _item_id(self, block: ReplyBlock) -> str:
        return f"{_NAMES[block.kind][0]}_{self._id}_{block.number}"

    def _event(self, kind: str, **data: Any) -> Event:
        self._num_events += 1
        return super()._event(kind, sequence_number=self._num_events - 1, **data)


def _part(block: ReplyBlock) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
