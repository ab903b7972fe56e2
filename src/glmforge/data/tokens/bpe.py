"""Train a byte-level BPE tokenizer that has the published tokenizer's form.

Same split rule, same special tokens in the same order at the end of the vocabulary, same chat template, so
every part of the system that works with a small tokenizer works with the published one. Every byte is a
token, so no text is unknown.

The trainer of `tokenizers` learns the merges; that is done once per project. It is deterministic: the most frequent
pair is merged, ties by id. It counts in 32 bits (https://github.com/huggingface/tokenizers/issues/2058), so more text
than `MAX_TEXT_BYTES` is refused, with the advice to sample it.

The written directory loads with `glmforge.data.tokens.tokenizer.Tokenizer` and `transformers.AutoTokenizer`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from glmforge.data.chat_template.template import CHAT_TEMPLATE
from glmforge.data.files import refuse_existing, write_whole
from glmforge.data.tokens.characters import SPLIT_PATTERN
from glmforge.data.tokens.special import CONTROL_TOKENS, END_OF_TEXT, MIN_VOCAB_SIZE, SPECIAL_TOKENS
from glmforge.data.tokens.text_chunks import CHUNK_CHARACTERS, TextChunk, chunk_of_texts
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.data.tokens.tokenizer_file import CONFIG_FILE, PADDED_SIZE_KEY, TOKENIZER_FILE
from glmforge.errors import DataError

MAX_VOCAB_SIZE = (1 << 21) - 2
"""Our encoder's limit; larger vocabularies would be encoded by the library."""

MIN_FREQUENCY = 2
"""A pair seen once compresses nothing."""

MAX_TEXT_BYTES = (1 << 31) - 1
"""Text that the library can count pairs in: no count exceeds it."""

_SPECIAL_TOKEN = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    out_dir: str | Path,
    *,
    overwrite: bool = False,
    padded_vocab_size: int | None = None,
) -> Tokenizer:
    """Learn `vocab_size` tokens, the 36 special ones included, and write them to the directory `out_dir`.

    Args:
        texts: read once.
        vocab_size: of the tokenizer.
        out_dir: directory to write.
        overwrite: replace a tokenizer that is there.
        padded_vocab_size: rows that a model's embedding is to have, noted in tokenizer_config.json.

    Raises:
        DataError: `vocab_size` has no room for the bytes or is beyond `MAX_VOCAB_SIZE`, the texts have too few
            distinct words to fill it or more than `MAX_TEXT_BYTES`, the padded size is smaller, or `out_dir` exists.
    """
    return train_on_chunks(
        _chunks(texts), vocab_size, out_dir, overwrite=overwrite, padded_vocab_size=padded_vocab_size
    )


def train_on_chunks(
    chunks: Iterable[TextChunk],
    vocab_size: int,
    out_dir: str | Path,
    *,
    overwrite: bool = False,
    padded_vocab_size: int | None = None,
) -> Tokenizer:
    """`train_tokenizer` for texts in the form in which corpora hold them."""
    _check_sizes(vocab_size, padded_vocab_size)
    directory = Path(out_dir)
    refuse_existing(directory / TOKENIZER_FILE, overwrite)
    tokenizer = _train(chunks, vocab_size - len(SPECIAL_TOKENS))
    _add_special_tokens(tokenizer)
    _check_size(tokenizer, vocab_size)
    content = _transformers_config() | ({PADDED_SIZE_KEY: padded_vocab_size} if padded_vocab_size else {})
    config = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(directory / CONFIG_FILE, config.encode())
    write_whole(directory / TOKENIZER_FILE, tokenizer.to_str(pretty=True).encode())  # last: makes it a tokenizer
    return Tokenizer.load(out_dir)


def _check_sizes(vocab_size: int, padded_vocab_size: int | None) -> None:
    if vocab_size < MIN_VOCAB_SIZE:
        raise DataError(
            f"vocab_size {vocab_size}: 256 bytes and {len(SPECIAL_TOKENS)} special tokens; must be at least "
            f"{MIN_VOCAB_SIZE}"
        )
    if vocab_size > MAX_VOCAB_SIZE:
        raise DataError(f"vocab_size {vocab_size:,}: at most {MAX_VOCAB_SIZE:,} tokens are supported")
    if padded_vocab_size is not None and padded_vocab_size < vocab_size:
        raise DataError(f"padded_vocab_size {padded_vocab_size}: must be at least the vocab_size of {vocab_size}")


def _chunks(texts: Iterable[str]) -> Iterator[TextChunk]:
    batch: list[str] = []
    num_characters = 0
    for text in texts:
        batch.append(text)
        num_characters += len(text)
        if num_characters >= CHUNK_CHARACTERS:
            yield chunk_of_texts(batch)
            batch, num_characters = [], 0
    if batch:
        yield chunk_of_texts(batch)


def _train(chunks: Iterable[TextChunk], num_tokens: int) -> tokenizers.Tokenizer:
    """A tokenizer without special tokens."""
    tokenizer = _with_split_rule(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=MIN_FREQUENCY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_special_tokens(_bounded(chunks)), trainer)
    return tokenizer


def _bounded(chunks: Iterable[TextChunk]) -> Iterator[str]:
    """The texts of the chunks. Raises `DataError` when they have been more than the trainer can count."""
    num_bytes = 0
    for chunk in chunks:
        num_bytes += chunk.num_bytes
        if num_bytes > MAX_TEXT_BYTES:
            raise DataError(
                f"more than {MAX_TEXT_BYTES:,} bytes of text, too many for the trainer; train on a sample, "
                "--sample-bytes 2e9"
            )
        yield from chunk.texts()


def _with_split_rule(model: models.BPE) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _without_special_tokens(texts: Iterable[str]) -> Iterator[str]:
    """A trained token spelt like a special one (`/nothink` is one word) would take its place."""
    for text in texts:
        yield from _SPECIAL_TOKEN.split(text)


def _add_special_tokens(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.add_tokens(
        [
            AddedToken(token, special=token in CONTROL_TOKENS, normalized=False, lstrip=False, rstrip=False)
            for token in SPECIAL_TOKENS
        ]
    )


def _check_size(tokenizer: tokenizers.Tokenizer, vocab_size: int) -> None:
    reached = tokenizer.get_vocab_size()
    if reached != vocab_size:
        raise DataError(
            f"vocab_size {vocab_size:,}: the corpus supports only {reached:,} tokens; add text, or lower "
            f"--vocab-size to {reached:,}"
        )


def _transformers_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "extra_special_tokens": [token for token in CONTROL_TOKENS if token != END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
