"""Talk to a model: turns through the chat template, or plain continuation for a base model; streamed.

Turns begin alike, so an engine that shares prefixes computes only what is new in each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Update
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.prompts import Prompt
from glmforge.verify.reply import reply_message

OnText = Callable[[str], None]
Stopped = Callable[[], bool]
"""Asked before each step: whether the answer is to end as it is."""
MAX_NEW_TOKENS = 256


def default_max_new_tokens(engine: Engine) -> int:
    """How long an answer may get by default: 256 tokens, but at most half of the model's positions."""
    return max(1, min(MAX_NEW_TOKENS, _num_positions(engine) // 2))


def _never() -> bool:
    return False


def continue_text(
    engine: Engine, text: str, params: SamplingParams, on_text: OnText | None = None, stopped: Stopped = _never
) -> str:
    """What the model writes after `text`, up to end-of-text; `on_text` gets it piece by piece."""
    return _answer(engine, text or [tokenizer_of(engine).end_of_text_id], params, on_text, stopped)


def tokenizer_of(engine: Engine, source: object = "the model") -> Tokenizer:
    """Raises `GlmforgeError` for a model without one, such as a preset; `source` is its name."""
    if engine.tokenizer is None:
        raise GlmforgeError(f"{source}: has no tokenizer; pass a run, a checkpoint or an export, or --tokenizer")
    return engine.tokenizer


@dataclass
class Conversation:
    """Turns so far; `reply` adds the user's message and the model's answer."""

    engine: Engine
    thinking: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)

    def reply(self, text: str, params: SamplingParams, on_text: OnText | None = None, stopped: Stopped = _never) -> str:
        """The model's answer to `text` after the earlier turns; the oldest are forgotten when they no longer fit.

        A question that cannot be answered, or whose answer was stopped before it began, is no turn.
        """
        earlier = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            ids = self._prompt(self._room(params.max_new_tokens))
            answer = _answer(self.engine, ids, params, on_text and _from_first_word(on_text), stopped).strip()
        except GlmforgeError:
            self.messages[:] = earlier
            raise
        if not answer and stopped():
            self.messages[:] = earlier
        else:
            self.messages.append(reply_message(answer))
        return answer

    def _room(self, max_new_tokens: int) -> int:
        """Positions that are left for a prompt."""
        limit = _num_positions(self.engine)
        if max_new_tokens >= limit:
            raise GlmforgeError(
                f"max_new_tokens: {max_new_tokens} leaves no room for a prompt in the model's {limit} positions; "
                "lower it"
            )
        return limit - max_new_tokens

    def _prompt(self, room: int) -> list[int]:
        tokenizer = tokenizer_of(self.engine)
        while True:
            ids = tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, thinking=self.thinking)
            if len(ids) <= room:
                return ids
            if len(self.messages) == 1:
                raise GlmforgeError(
                    f"the message is {len(ids):,} tokens long, but the model has room for {room:,} besides the "
                    "answer; shorten it"
                )
            del self.messages[:2]  # a question and its answer


def _num_positions(engine: Engine) -> int:
    """Of prompt and answer together: what the model and the memory for its cache can take."""
    return min(engine.runner.config.max_position_embeddings, engine.memory.num_tokens)


def _from_first_word(on_text: OnText) -> OnText:
    """Leaves out the white space that an answer begins with: after its empty thought GLM writes a line's end."""
    has_begun = False

    def write(text: str) -> None:
        nonlocal has_begun
        text = text if has_begun else text.lstrip()
        has_begun = has_begun or bool(text)
        if text:
            on_text(text)

    return write


def _answer(engine: Engine, prompt: Prompt, params: SamplingParams, on_text: OnText | None, stopped: Stopped) -> str:
    def show(update: Update) -> None:
        if on_text is not None:
            on_text(update.text)

    ((sample,),) = engine.generate([prompt], replace(params, num_samples=1), on_update=show, stopped=stopped)
    return sample.text
