"""OpenAI's Responses, without a state: https://platform.openai.com/docs/api-reference/responses

Clients hand back the whole conversation as items; what a server would have to remember (`previous_response_id`,
`conversation`, `item_reference`, `background`) is refused. Reasoning comes and goes as plain `reasoning_text`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams
from glmforge.protocol.budget import SHARES, Thinking
from glmforge.protocol.chat import text_of
from glmforge.protocol.openai import BlockReader, common, error, sampling, schema_of
from glmforge.protocol.prompt import MAX_LENGTH, Talk, ask_for
from glmforge.protocol.reply import ReplyBlock, Step
from glmforge.protocol.request import Ask, Context, Event, Fields, invalid, quoted, refusing
from glmforge.protocol.tools import MAX_TOOLS, Tool

__all__ = ["ResponsesWriter", "error", "parse"]


def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        shared = common(fields, context)
        for name in ("previous_response_id", "conversation", "prompt"):
            fields.refuse(name, "this server keeps no state; give the whole conversation as input")
        fields.refuse("background", "read the answer, or its stream", [False])
        fields.refuse("top_logprobs", "use chat completions", [0])
        wanted, said = fields.part("text"), fields.part("reasoning")
        effort = "" if said is None else said.choice("effort", tuple(SHARES), "")
        choice, named = _choice(fields)
        instructions = fields.text("instructions", "")
        talk = Talk(
            [*([{"role": "system", "content": instructions}] if instructions else []), *_messages(fields)],
            [_tool(one) for one in fields.parts("tools", MAX_TOOLS)],
            choice,
            named,
            parallel=fields.flag("parallel_tool_calls", True),
            thinking=Thinking(effort=effort or None),
            hold_calls=not shared["stream"],
        )
        settings = sampling(fields, context) | {"num_samples": 1}
        schema = None if wanted is None else schema_of(wanted, "format")
        params = SamplingParams(**settings, max_new_tokens=MAX_LENGTH, json_schema=schema)
        ask = ask_for(talk, params, fields.integer("max_output_tokens", 1), context)
        return replace(ask, extra={name: fields.get(name) for name in _ECHOED if name in fields}, **shared)


_ECHOED = (
    "instructions", "metadata", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "user",
)  # fmt: skip


def _choice(fields: Fields) -> tuple[str, str | None]:
    if not isinstance(fields.get("tool_choice"), Mapping):
        return fields.choice("tool_choice", ("auto", "none", "required"), "auto"), None
    wanted = Fields(fields.get("tool_choice"), "tool_choice")
    wanted.choice("type", ("function",), "function")
    return "required", wanted.text("name")


def _tool(given: Fields) -> Tool:
    kind = given.text("type")
    if kind != "function":
        raise invalid(given.where("type"), f"{quoted(kind)} is not supported; only functions are")
    return Tool.of(given, "parameters")


def _messages(fields: Fields) -> Iterator[dict[str, Any]]:
    """Of items. What the assistant has thought, said and called in a row is one message."""
    if isinstance(fields.get("input"), str):
        yield {"role": "user", "content": fields.text("input")}
        return
    if "input" not in fields:
        raise invalid("input", "is required")
    turn: dict[str, Any] = {}
    for item in fields.parts("input"):
        kind = item.text("type", "message")
        if kind not in ("message", "reasoning", "function_call", "function_call_output"):
            raise invalid(item.where("type"), f"{quoted(kind)} is not supported")
        role = item.choice("role", ("system", "developer", "user", "assistant"), "user") if kind == "message" else ""
        part = {"reasoning": "reasoning_content", "function_call": "tool_calls"}.get(kind, "content")
        is_assistants = kind in ("reasoning", "function_call") or role == "assistant"
        if turn and (not is_assistants or _is_behind(turn, part)):
            yield turn
            turn = {}
        if kind == "function_call_output":
            yield {"role": "tool", "content": text_of(item, "output")}
        elif not is_assistants:
            yield {"role": role, "content": text_of(item, "content")}
        else:
            turn = {"role": "assistant", "content": ""} | turn
            if kind == "function_call":
                function = {"name": item.text("name"), "arguments": item.text("arguments")}
                turn["tool_calls"] = [*turn.get("tool_calls", ()), {"function": function}]
            elif kind == "reasoning":
                turn["reasoning_content"] = "".join(one.text("text") for one in item.parts("content"))
            else:
                turn["content"] = text_of(item, "content")
    if turn:
        yield turn


def _is_behind(turn: dict[str, Any], part: str) -> bool:
    """Whether a message that has come as far as `turn` cannot have this part any more."""
    if part == "tool_calls":
        return False
    return bool(turn.get("tool_calls") or turn["content"]) or part in turn.keys() - {"content"}


class ResponsesWriter:
    """An answer as a response, or as the events that build it item by item."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._ask, self._id, self._created = ask, answer_id, context.created
        self._read = BlockReader(ask, context)
        self._num_events = 0
        self._status = "in_progress"

    def begin(self) -> list[Event]:
        """A response without output."""
        return [self._event(f"response.{kind}", response=self.whole()) for kind in ("created", "in_progress")]

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        steps = self._read.take(update)
        if update.finished is not None:
            self._status = "completed" if update.finished == "stop" else "incomplete"
        return list(self._events(steps))

    def end(self) -> list[Event]:
        """The whole response."""
        return [self._event(f"response.{self._status}", response=self.whole())]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        is_over = self._status != "in_progress"
        said = {"temperature": 1.0, "top_p": 1.0, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        usage = {
            "input_tokens": self._read.counts.num_prompt,
            "input_tokens_details": {"cached_tokens": self._read.counts.num_cached, "cache_write_tokens": 0},
            "output_tokens": self._read.counts.num_tokens,
            "output_tokens_details": {"reasoning_tokens": self._read.parser.num_reasoning},
            "total_tokens": self._read.counts.num_prompt + self._read.counts.num_tokens,
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
            "output": [self._item(number, one, is_over) for number, one in enumerate(self._read.blocks)],
            "usage": usage if is_over else None,
            "store": False,
        }

    def _events(self, steps: Iterable[Step]) -> Iterator[Event]:
        for kind, number, block, text in steps:
            place = {"item_id": self._item_id(number, block), "output_index": number}
            inner = place | ({} if block.kind == "call" else {"content_index": 0})
            name, more = _NAMES[block.kind]
            if kind == "open":
                item = self._item(number, replace(block, text=""), False)
                yield self._event("response.output_item.added", output_index=number, item=item)
                if block.kind != "call":
                    yield self._event("response.content_part.added", **inner, part=_part(replace(block, text="")))
            elif kind == "text":
                yield self._event(f"response.{name}.delta", **inner, delta=text, **more)
            else:
                if block.kind == "call" and block.is_whole:
                    said = {"arguments": block.text, "name": block.name}
                    yield self._event(f"response.{name}.done", **inner, **said)
                elif block.kind != "call":
                    yield self._event(f"response.{name}.done", **inner, text=block.text, **more)
                    yield self._event("response.content_part.done", **inner, part=_part(block))
                item = self._item(number, block, True)
                yield self._event("response.output_item.done", output_index=number, item=item)

    def _item(self, number: int, block: ReplyBlock, is_over: bool) -> dict[str, Any]:
        status = "in_progress" if not is_over else "completed" if block.is_whole else "incomplete"
        head = {"id": self._item_id(number, block), "status": status}
        content = [_part(block)] if block.text else []
        if block.kind == "call":
            call = {"call_id": f"call_{self._id}_{number}", "name": block.name, "arguments": block.text}
            return head | {"type": "function_call"} | call
        if block.kind == "reasoning":
            return head | {"type": "reasoning", "summary": [], "content": content}
        return head | {"type": "message", "role": "assistant", "content": content}

    def _item_id(self, number: int, block: ReplyBlock) -> str:
        return f"{ {'reasoning': 'rs', 'content': 'msg', 'call': 'fc'}[block.kind] }_{self._id}_{number}"

    def _event(self, kind: str, **data: Any) -> Event:
        self._num_events += 1
        return Event(kind, {"type": kind, "sequence_number": self._num_events - 1, **data})


_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "reasoning": ("reasoning_text", {}),
    "content": ("output_text", {"logprobs": []}),
    "call": ("function_call_arguments", {}),
}
"""Of the events of a kind of block, and what they have besides."""


def _part(block: ReplyBlock) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
