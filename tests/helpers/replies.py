"""What an engine would tell of a reply that is given as text, for what writes replies in an API's form."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.sequence import Reason
from glmforge.generate.text import TextStream
from glmforge.protocol.request import Event, Writer


@dataclass(frozen=True)
class Served:
    """A server's context."""

    tokenizer: Tokenizer
    model_names: tuple[str, ...] = ("glm", "other")
    max_positions: int = 2048
    default_max_tokens: int = 256
    created: int = 1_700_000_000


def updates_of(
    tokenizer: Tokenizer,
    reply: str | Sequence[int],
    *,
    finished: Reason = "stop",
    sample: int = 0,
    stop: Sequence[str] = (),
    top: int | None = None,
    num_cached: int = 0,
) -> Iterator[Update]:
    """Token by token; a reply that has stopped ends with the token that opens the user's turn, or a stop string."""
    ids = tokenizer.encode_with_special_tokens(reply) if isinstance(reply, str) else list(reply)
    if finished == "stop":
        ids = [*ids, tokenizer.special_id("<|user|>")]
    stream = TextStream(tokenizer, stop)
    for place, token in enumerate(ids):
        text = stream.add(token)
        is_last = stream.stopped or place == len(ids) - 1
        if is_last:
            text += stream.finish()
        found = stream.stopped_by if stream.stopped else token if finished == "stop" else None
        logprob = TokenLogprob(-0.5, tuple((other, -1.0 - other) for other in range(top))) if top is not None else None
        yield Update(
            0,
            sample,
            token,
            ("stop" if stream.stopped else finished) if is_last else None,
            text,
            logprob,
            stop=found if is_last else None,
            num_cached=num_cached,
        )
        if is_last:
            return


def streamed(writer: Writer, updates: Iterator[Update]) -> list[Event]:
    """All events of a stream."""
    events = writer.begin()
    for update in updates:
        events += writer.update(update)
    return events + writer.end()


def answered(writer: Writer, updates: Iterator[Update]) -> dict:
    """The body of an answer that is not streamed."""
    for update in updates:
        assert not writer.update(update) or True
    return writer.whole()
