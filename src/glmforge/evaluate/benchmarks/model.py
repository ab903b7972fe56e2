"""What answers the requests of benchmarks: the engine (`language_model.py`) or a server (`endpoint_model.py`).

Both are language models of lm-evaluation-harness that keep their replies. This file has what they share: settings of
sampling, token ids of prompts, and which part of a reply is the answer.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore
from glmforge.verify.reply import visible_answer

DEFAULT_MAX_NEW_TOKENS = 1024
Progress = Callable[[int, int], None]
"""Called with the number of requests answered so far, and the number of all."""


@dataclass(frozen=True)
class Generation:
    """How answers are written. None leaves a value to the task; temperature 0 is greedy; with `thinking` the model
    reasons before it answers in a conversation."""

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    num_samples: int = 1
    seed: int = 0
    thinking: bool = True

    def longest(self, settings: Mapping[str, Any]) -> int:
        """The longest answer, in tokens, to a request with these settings."""
        return int(self.max_new_tokens or settings.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS))

    def sampling(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Temperature, top-p and top-k for a request with these settings; greedy if neither sets them."""
        names = ("temperature", "top_p", "top_k")
        is_sampled = settings.get("do_sample", settings.get("temperature", 0.0) > 0)
        given = {name: settings[name] for name in names if is_sampled and name in settings}
        ours = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"temperature": 0.0} | given | ours


class PromptText(str):
    """A rendered conversation, and its token ids, in which control tokens are only where the template writes them."""

    ids: tuple[int, ...]

    @classmethod
    def of(cls, text: str, ids: Iterable[int]) -> Self:
        prompt = cls(text)
        prompt.ids = tuple(ids)
        return prompt


class Model(LM):
    """A language model of the harness that keeps its replies.

    Args:
        replies: those that are known, and where new ones are kept.
        generation: how answers are written.
        tokenizer: None where a server encodes the text.
        on_progress: called when a request is answered on this rank.
    """

    def __init__(
        self, replies: ReplyStore, generation: Generation, tokenizer: Tokenizer | None, on_progress: Progress | None
    ) -> None:
        super().__init__()
        self.replies, self.generation, self.tokenizer = replies, generation, tokenizer
        self.on_progress: Progress = on_progress or (lambda done, number: None)

    @property
    def tokenizer_name(self) -> str:
        return "" if self.tokenizer is None else self.tokenizer.fingerprint

    @abstractmethod
    def score(self, requests: Sequence[Instance]) -> list[Reply]:
        """A reply to each request for the log-likelihood of a continuation, or of a whole text ("rolling")."""

    @abstractmethod
    def write(self, requests: Sequence[Instance]) -> list[list[Reply]]:
        """The samples of each request of the kind "generate_until"."""

    # What the harness calls.

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation after its context, and whether greedy decoding would write it."""
        return [(reply.logprob or 0.0, bool(reply.is_greedy)) for reply in self.score(requests)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihood of whole texts."""
        return [reply.logprob or 0.0 for reply in self.score(requests)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """An answer to each request, as its task reads it: of several samples the first."""
        written = zip(requests, self.write(requests), strict=True)
        return [visible_answer(samples[0].text, stop_strings(request.args[1])) for request, samples in written]


def rendered(
    words: Tokenizer,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    begins_answer: bool,
    thinking: bool,
) -> list[int]:
    """A conversation as token ids; its last message may be the beginning of the answer."""
    history: list[Any] = list(messages)
    begun = history.pop()["content"] if begins_answer and history else ""
    ids = words.apply_chat_template(history, tools, add_generation_prompt=True, thinking=thinking)
    return ids + words.encode(begun)


def encode_pair(words: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Token ids of a context and its continuation, as the harness divides them: spaces at the end of the context
    belong to the continuation, and end-of-text stands for an empty context."""
    if isinstance(context, PromptText):
        return list(context.ids), words.encode(continuation)
    if context == "":
        ids = words.encode(continuation)
        return (ids[:1], ids[1:]) if ids[:1] == [words.end_of_text_id] else ([words.end_of_text_id], ids)
    before = words.encode(context.rstrip())
    return before, words.encode(context + continuation)[len(before) :]


def stop_strings(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of a task's `until` that can end a text."""
    until = settings.get("until") or ()
    return tuple(dict.fromkeys(text for text in ([until] if isinstance(until, str) else until) if text))
