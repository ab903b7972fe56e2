"""Train a byte-level BPE tokenizer that has the published tokenizer's form.

Same split rule, same special tokens in the same order at the end of the vocabulary, same chat template, so
every part of the system that works with a small tokenizer works with the published one. Every byte is a
token, so no text is unknown. Training is deterministic: the library counts words and merges the most frequent
pair, ties by id.

The written directory loads with `glmforge.data.tokens.tokenizer.Tokenizer` and `transformers.AutoTokenizer`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from glmforge.data.chat.template import CHAT_TEMPLATE
from glmforge.data.files import refuse_existing, write_whole
from glmforge.data.tokens.special import CONTROL_TOKENS, END_OF_TEXT, SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import CONFIG_FILE, TOKENIZER_FILE, Tokenizer
from glmforge.errors import DataError

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""No token crosses these borders: contractions, words, up to three digits, punctuation, line ends, spaces."""

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

_SPECIAL_TOKEN = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, out_dir: str | Path, *, overwrite: bool = False
) -> Tokenizer:
    """Learn `vocab_size` tokens, the 36 special ones included, and write them to the directory `out_dir`.

    Raises:
        DataError: `vocab_size` has no room for the bytes, the texts have too few distinct words to fill it,
            or `out_dir` exists.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise DataError(
            f"vocab_size {vocab_size}: 256 bytes and {len(SPECIAL_TOKENS)} special tokens need at least "
            f"{MIN_VOCAB_SIZE}"
        )
    directory = Path(out_dir)
    refuse_existing(directory / TOKENIZER_FILE, overwrite)
    tokenizer = _train(texts, vocab_size - len(SPECIAL_TOKENS))
    _add_special_tokens(tokenizer)
    _check_size(tokenizer, vocab_size)
    config = json.dumps(_transformers_config(), indent=2, ensure_ascii=False) + "\n"
    write_whole(directory / CONFIG_FILE, config.encode())
    write_whole(directory / TOKENIZER_FILE, tokenizer.to_str(pretty=True).encode())  # last: makes it a tokenizer
    return Tokenizer.load(out_dir)


def _train(texts: Iterable[str], num_tokens: int) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=2,  # a pair seen once compresses nothing
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_special_tokens(texts), trainer)
    return tokenizer


def _without_special_tokens(texts: Iterable[str]) -> Iterator[str]:
    """A learnt token spelt like a special one (`/nothink` is one word) would take its place."""
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
            f"vocab_size {vocab_size:,}: the corpus has only {reached:,} tokens to learn: give more text, "
            f"or at most --vocab-size {reached}"
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
