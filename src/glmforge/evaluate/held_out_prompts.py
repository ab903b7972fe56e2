"""Prompts from held-out conversations: what comes before the last answer of a document, and that answer as reference.

Both are the shard's own token ids, so the prompt is what the model was trained to answer, with any template that
rendered
it: up to `<|assistant|>`, and in a conversation without thinking with the empty thought behind it. The last answer is
the document's last stretch of tokens with a loss weight above 0.

Documents are taken evenly from the whole shard, the same at every evaluation. One whose prompt leaves no room for an
answer is passed over for the next one that does, as far as the documents go that it stands for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glmforge.data.tokens.shards import TokenShard, check_ids


@dataclass(frozen=True)
class HeldOutPrompt:
    """Token ids of a prompt and of the answer that its document has, with the token that ends it."""

    source: str
    ids: list[int]
    reference: list[int]


def held_out_prompts(
    shard: TokenShard, source: str, *, number: int, max_tokens: int, vocab_size: int
) -> Iterator[HeldOutPrompt]:
    """Up to `number` prompts of at most `max_tokens` tokens from a shard with loss weights.

    Raises:
        DataError: a token is not in the vocabulary, or the loss weights are damaged.
    """
    number = min(number, shard.num_documents)
    for index in range(number):
        stretch = range(index * shard.num_documents // number, (index + 1) * shard.num_documents // number)
        prompts = (_prompt(shard, document, source, vocab_size) for document in stretch)
        found = next((prompt for prompt in prompts if prompt is not None and len(prompt.ids) <= max_tokens), None)
        if found is not None:
            yield found


def _prompt(shard: TokenShard, document: int, source: str, vocab_size: int) -> HeldOutPrompt | None:
    """None if nothing in the document is trained on, or nothing stands before it."""
    assert shard.loss is not None, "conversations have loss weights"
    start, stop = shard.document_range(document)
    is_trained = shard.loss.read(start, stop) > 0
    changes = np.flatnonzero(np.diff(is_trained, prepend=False, append=False))
    if not len(changes) or changes[-2] == 0:
        return None
    first, last = changes[-2:].tolist()
    tokens = shard.tokens(start, start + last)
    check_ids(tokens, vocab_size, shard.prefix, start)
    return HeldOutPrompt(source, tokens[:first].tolist(), tokens[first:].tolist())
