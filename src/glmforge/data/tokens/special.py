"""The 36 special tokens of GLM-4.5 and 4.6.

They are the last tokens of a vocabulary, in this order and without a gap: their ids are `vocab_size - 36 + i`
(151,329 + i in the published tokenizer), so a small vocabulary keeps the layout of the large one.
"""

from typing import Final

END_OF_TEXT: Final = "<|endoftext|>"
SYSTEM: Final = "<|system|>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
OBSERVATION: Final = "<|observation|>"

CONTROL_TOKENS: Final = (
    END_OF_TEXT,
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    SYSTEM,
    USER,
    ASSISTANT,
    OBSERVATION,
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
)
"""Tokens that structure the input; a decoder may leave them out of an answer."""

MARKUP_TOKENS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|end_of_box|>",
    "<|image|>",
    "<|video|>",
)
"""Tokens that parsers of an answer look for; a decoder keeps them even when it skips special tokens."""

SPECIAL_TOKENS: Final = CONTROL_TOKENS + MARKUP_TOKENS

MIN_VOCAB_SIZE: Final = 256 + len(SPECIAL_TOKENS)
"""Of a byte-level tokenizer: every byte and the special tokens."""

ROLE_TOKENS: Final = (SYSTEM, USER, ASSISTANT, OBSERVATION)
"""Each opens a turn and thereby ends the one before."""

STOP_TOKENS: Final = (END_OF_TEXT, USER, OBSERVATION)
"""What ends an assistant's turn; generation stops on these."""
