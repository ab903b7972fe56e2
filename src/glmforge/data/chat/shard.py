"""Conversations as documents of a token shard, rendered with their control tokens, to be mixed into a text corpus."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from glmforge.data.chat_template.template import Message
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import ShardInfo
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError


def tokenize_conversations(
    conversations: Iterable[Sequence[Message]],
    tokenizer_dir: str | Path,
    prefix: str | Path,
    *,
    source: str = "",
    overwrite: bool = False,
) -> ShardInfo:
    """Encode each conversation, without thinking, into one document ended by `<|endoftext|>`.

    Raises `DataError` if none is found, or for a conversation that the template has no place for.
    """
    tokenizer = Tokenizer.load(tokenizer_dir)
    num_text_bytes = 0
    with ShardWriter(prefix, tokenizer.vocab_size, overwrite=overwrite) as writer:
        for conversation in conversations:
            ids = [*tokenizer.apply_chat_template(conversation, thinking=False), tokenizer.end_of_text_id]
            writer.add(np.array(ids, dtype=np.int32), np.array([len(ids)], dtype=np.int32))
            num_text_bytes += len(tokenizer.decode(ids[:-1]).encode())
        if num_text_bytes == 0:
            raise DataError(f"{prefix}: no conversations to write; the sources contain no docstrings or dialogues")
        return writer.finish(tokenizer.fingerprint, source, num_text_bytes)
