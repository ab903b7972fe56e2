"""The token ids in a model's configuration are its tokenizer's.

`config.json` and `generation_config.json` say on which ids generation stops. They are facts about the tokenizer, and a
configuration that names them by itself is right only for one: `model: {preset: tiny, vocab_size: 4096}` keeps the ids
of the preset, which in a tokenizer of 4,096 tokens are ordinary words, and an exported model would never stop, or stop
in the middle of a sentence. So where both are known, at the start of a run and in an export, the tokenizer's count.
"""

from glmforge.config.model import ModelConfig
from glmforge.data.tokens.tokenizer import Tokenizer


def with_ids_of(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """`config` with the tokenizer's end and padding tokens; its vocabulary must have room for the tokenizer's."""
    assert tokenizer.vocab_size <= config.vocab_size, "refused before, with a message for where the two come from"
    ids = {"eos_token_id": list(tokenizer.stop_ids), "pad_token_id": tokenizer.end_of_text_id}
    return config.model_copy(update=ids)


def describe_changes(config: ModelConfig, tokenizer: Tokenizer) -> list[str]:
    """One line for each mismatch between a configuration and its tokenizer."""
    lines = []
    own = with_ids_of(config, tokenizer)
    if own != config:
        lines.append(
            f"model.eos_token_id {config.eos_token_id} and pad_token_id {config.pad_token_id} are not the "
            f"tokenizer's end tokens; using the tokenizer's, {own.eos_token_id} and {own.pad_token_id}"
        )
    if config.vocab_size > max(tokenizer.vocab_size, tokenizer.padded_vocab_size):
        lines.append(
            f"model.vocab_size {config.vocab_size:,} is larger than the tokenizer's {tokenizer.vocab_size:,} tokens: "
            f"{config.vocab_size - tokenizer.vocab_size:,} embedding rows are unused"
        )
    return lines
