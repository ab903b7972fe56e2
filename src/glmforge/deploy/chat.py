"""Talk to a model: turns through the chat template, or plain continuation for a base model; streamed.

Bytes of one character may come in several tokens, so text is handed out only up to the last whole character.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.checkpoint.pretrained import load_pretrained, load_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.model import GlmMoe, Sampling

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class ChatModel:
    """A model with its tokenizer."""

    model: GlmMoe
    tokenizer: Tokenizer

    @classmethod
    def load(cls, source: Path, *, tokenizer_dir: Path | None = None) -> "ChatModel":
        """From an export (which holds its tokenizer), a run or a checkpoint (whose configuration names it)."""
        tokenizer = load_tokenizer(source) if tokenizer_dir is None else Tokenizer.load(tokenizer_dir)
        model = load_pretrained(source)
        if tokenizer.vocab_size > model.config.vocab_size:
            raise GlmforgeError(
                f"{tokenizer_dir or source}: the tokenizer has {tokenizer.vocab_size:,} tokens, but the model embeds "
                f"{model.config.vocab_size:,}; "
                "give the tokenizer it was trained with (--tokenizer)"
            )
        return cls(model, tokenizer)

    def continue_text(
        self,
        text: str,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.8,
        top_p: float = 0.95,
        seed: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> str:
        """What the model writes after `text`, up to end-of-text or `max_new_tokens`."""
        end = self.tokenizer.end_of_text_id
        # Of the control tokens, which come last, plain text can hold the first alone: end-of-text.
        sampling = Sampling(temperature, top_p, vocab_size=end + 1)
        ids = self.tokenizer.encode(text) or [end]
        return self.generate(ids[-self.room(max_new_tokens) :], max_new_tokens, sampling, seed, on_text)

    def room(self, max_new_tokens: int) -> int:
        """Positions that are left for a prompt."""
        limit = self.model.config.max_position_embeddings
        if max_new_tokens >= limit:
            raise GlmforgeError(
                f"max_new_tokens: {max_new_tokens} leaves no room for a prompt in the model's {limit} positions; "
                "ask for fewer"
            )
        return limit - max_new_tokens

    def generate(
        self,
        ids: list[int],
        max_new_tokens: int,
        sampling: Sampling,
        seed: int | None,
        on_text: Callable[[str], None] | None,
    ) -> str:
        """The text after the prompt `ids`, which must fit (see `room`); `on_text` gets it piece by piece."""
        stream = _TextStream(self.tokenizer, on_text)
        self.model.generate(
            [ids],
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop_ids=self.tokenizer.stop_ids,
            seed=seed,
            on_token=lambda tokens: stream.add(tokens[0]),
        )
        return stream.finish()


@dataclass
class Conversation:
    """Turns so far; `reply` adds the user's message and the model's answer."""

    chat: ChatModel
    thinking: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)

    def reply(
        self,
        text: str,
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.8,
        top_p: float = 0.95,
        seed: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> str:
        """The model's answer to `text` after the earlier turns; the oldest are forgotten when they no longer fit."""
        self.messages.append({"role": "user", "content": text})
        ids = self._prompt(self.chat.room(max_new_tokens))
        sampling = Sampling(temperature, top_p, self.chat.tokenizer.vocab_size)
        answer = self.chat.generate(ids, max_new_tokens, sampling, seed, on_text).strip()
        self.messages.append({"role": "assistant", "content": answer})
        return answer

    def _prompt(self, room: int) -> list[int]:
        while True:
            ids = self.chat.tokenizer.apply_chat_template(
                self.messages, add_generation_prompt=True, thinking=self.thinking
            )
            if len(ids) <= room:
                return ids
            if len(self.messages) == 1:
                raise GlmforgeError(
                    f"the message is {len(ids):,} tokens long and the model has room for {room:,} beside the answer; "
                    "shorten it"
                )
            del self.messages[:2]  # a question and its answer


class _TextStream:
    """Token ids in, whole characters out."""

    def __init__(self, tokenizer: Tokenizer, on_text: Callable[[str], None] | None) -> None:
        self._tokenizer = tokenizer
        self._on_text = on_text
        self._ids: list[int] = []
        self._given = 0

    def add(self, token: int | None) -> None:
        if token is None or token in self._tokenizer.stop_ids:
            return
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if not text.endswith(_REPLACEMENT):
            self._give(text)

    def finish(self) -> str:
        text = self._tokenizer.decode(self._ids)
        self._give(text)
        return text

    def _give(self, text: str) -> None:
        if self._on_text is not None and len(text) > self._given:
            self._on_text(text[self._given :])
        self._given = len(text)
