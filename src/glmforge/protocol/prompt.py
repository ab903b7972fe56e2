"""A conversation as an API has read it, made into the prompt and the settings of an `Ask`.

Calls are forced by beginning them: the prompt ends with `<tool_call>` and, if one function is named, with its name;
what follows keeps to a grammar (`tools.py`), if the extra for it is installed. A prompt that begins a call has closed
the thought, so a forced call comes without one. A schema follows a thought.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from glmforge.data.chat.conversation import Conversation
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.params import SamplingParams
from glmforge.protocol.body import refusing, room_for
from glmforge.protocol.request import Ask, Context, ReplySettings, invalid, quoted
from glmforge.protocol.tools import Tool, grammar_of, grammars_are_there

MAX_LENGTH = 2**31 - 1
"""Of a reply whose prompt is not known yet."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_SHARES: dict[Effort, float | None] = {
    "none": 0.0, "minimal": 0.0, "low": 0.2, "medium": 0.5, "high": None, "xhigh": None, "max": None
}  # fmt: skip
"""Of the tokens of the reply, how many an effort lets the thought have; None leaves it to the model."""


@dataclass(frozen=True)
class Thinking:
    """Whether a model is to think, and for how long.

    GLM is trained on thoughts of every length and has no words for a limit: `</think>` alone ends a thought.

    Attributes:
        budget: tokens, or None; goes before `effort`.
        clear: drop the thoughts of turns before the last question, as GLM's template does.
    """

    enabled: bool = True
    effort: Effort | None = None
    budget: int | None = None
    clear: bool = True

    def budget_of(self, max_new_tokens: int) -> int | None:
        """Tokens of a thought in a reply of so many; None for no limit but theirs, 0 for no thought."""
        if not self.enabled:
            return 0
        share = None if self.effort is None else _SHARES[self.effort]
        if self.budget is None and share is None:
            return None
        return min(max_new_tokens, int(max_new_tokens * (share or 0.0)) if self.budget is None else self.budget)


@dataclass(frozen=True)
class Talk:
    """A conversation whose next turn is asked for.

    Attributes:
        messages: as OpenAI has them; see `Conversation`.
        choice: `auto`, `none`, `required`.
        named: the function that must be called, if one is.
        parallel: whether one reply may have several calls.
        prefill: the beginning of the reply, which goes on behind it.
        hold_calls: as `ReplySettings`.
    """

    messages: Sequence[dict[str, Any]]
    tools: Sequence[Tool] = ()
    choice: str = "auto"
    named: str | None = None
    parallel: bool = True
    thinking: Thinking = field(default_factory=Thinking)
    prefill: str | None = None
    hold_calls: bool = True


def ask_for(talk: Talk, params: SamplingParams, max_tokens: int | None, context: Context) -> Ask:
    """The prompt of a conversation and how its reply is read.

    Raises:
        ApiError: messages or tools that cannot be, or together do not fit into the context.
    """
    tokenizer = context.tokenizer
    _check_tools(talk, params)
    if talk.choice == "required" and len(talk.tools) == 1 and not talk.parallel:
        talk = replace(talk, named=talk.tools[0].name)
    forced = talk.choice == "required"
    enabled = talk.thinking.enabled and not forced and talk.prefill is None
    limit = context.default_max_tokens if max_tokens is None else max_tokens
    budget = replace(talk.thinking, enabled=enabled).budget_of(limit)
    ids = rendered(talk, context, thinking=budget != 0)
    opened: list[int] = []
    in_thought = budget != 0 and (budget is not None or bool(params.stop) or params.has_grammar)
    if in_thought:  # by the prompt, so that it is certain where it ends
        opened = [*tokenizer.encode("\n"), tokenizer.special_id("<think>")]
    elif forced:
        opened = [*tokenizer.encode("\n"), tokenizer.special_id("<tool_call>")]
        opened += tokenizer.encode(f"{talk.named}\n") if talk.named else []
    elif talk.prefill is not None:
        opened = tokenizer.encode("\n" + talk.prefill.rstrip())
    prompt = (*ids, *opened)
    room = room_for(prompt, max_tokens, context)
    params = replace(params, max_new_tokens=room, min_new_tokens=min(params.min_new_tokens, room))
    reply = ReplySettings(
        in_thought=in_thought,
        in_content=talk.prefill is not None,
        prefix=tuple(opened) if forced else (),
        tools={} if talk.choice == "none" else {tool.name: tool.parameters for tool in talk.tools},
        stop=tuple(params.stop),
        min_new_tokens=params.min_new_tokens,
        hold_calls=talk.hold_calls,
    )
    return Ask(
        prompt,
        _with_calls(talk, params, tokenizer),
        reply=reply,
        reasoning_budget=min(room, room if budget is None else budget) if in_thought else None,
        extra={"talk": talk},
    )


def rendered(talk: Talk, context: Context, *, thinking: bool) -> list[int]:
    """Ids of a conversation up to where the reply begins. Raises `ApiError`."""
    tokenizer = context.tokenizer
    if not talk.thinking.clear and "clear_thinking" not in tokenizer.chat_template:
        raise invalid("clear_thinking", "false is not supported by this model's chat template; leave it out")
    # Clients hand back replies that consisted of nothing; they say nothing.
    messages = [one for one in talk.messages if one["role"] != "assistant" or _says_something(one)]
    with refusing("messages"):
        conversation = Conversation.from_messages(messages, [tool.written for tool in talk.tools], is_prompt=True)
        return tokenizer.apply_chat_template(
            conversation.messages,
            conversation.tools,
            add_generation_prompt=True,
            thinking=thinking,
            clear_thinking=talk.thinking.clear,
        )


def _says_something(message: dict[str, Any]) -> bool:
    texts = (message.get("content") or "", message.get("reasoning_content") or "")
    return bool(message.get("tool_calls")) or any(text.strip() for text in texts)


def _check_tools(talk: Talk, params: SamplingParams) -> None:
    names = [tool.name for tool in talk.tools]
    if len(set(names)) < len(names):
        raise invalid("tools", f"function {quoted(next(n for n in names if names.count(n) > 1))} is given twice")
    if talk.choice == "required" and not talk.tools:
        raise invalid("tool_choice", "requires a call, but there are no tools")
    if talk.named is not None and talk.named not in names:
        raise invalid("tool_choice", f"function {quoted(talk.named)} is not among the tools")
    if params.has_grammar and talk.tools and talk.choice != "none":
        raise invalid(
            "response_format", "a schema leaves no room for calls; set tool_choice to 'none', or leave one of them out"
        )


def _with_calls(talk: Talk, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """How calls are chosen: none at all, one at most, or one whose name begins like a function's."""
    if not talk.tools:
        return params
    if talk.choice == "none":
        banned = () if params.has_grammar else (tokenizer.special_id("<tool_call>"),)
        return replace(params, banned_tokens=(*params.banned_tokens, *banned))
    if talk.choice == "required" and grammars_are_there() and not (params.banned_tokens or params.min_new_tokens):
        grammar = grammar_of(talk.tools, talk.named, tokenizer, parallel=talk.parallel)
        return replace(params, grammar=grammar)
    if talk.choice == "required" and talk.named is None:
        params = replace(params, first_tokens=sorted({tokenizer.encode(f"{tool.name}\n")[0] for tool in talk.tools}))
    if talk.parallel and talk.named is None:
        return params
    stop_ids = params.stop_ids or tokenizer.stop_ids
    return replace(params, stop_ids=(*stop_ids, tokenizer.special_id("</tool_call>")))
