"""`chat`: how conversations become tokens to learn from."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from glmforge.config.model import Strict

CONVERSATION_SUFFIXES = (".jsonl", ".json", ".parquet")


def is_conversation_file(path: Path) -> bool:
    """Whether the name is that of a file of records rather than the prefix of a token shard."""
    return path.name.removesuffix(".gz").removesuffix(".zst").endswith(CONVERSATION_SUFFIXES)


class ChatConfig(Strict):
    """Which parts of a conversation are trained on, and what happens to records that are wrong or too long."""

    turns: Literal["all", "last"] = Field(
        default="all",
        description="which assistant turns are trained on; a message's loss_weight overrides it",
    )
    thinking: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="off: /nothink in the prompts, reasoning dropped; on: thinking prompts; auto: on for "
        "conversations that contain reasoning",
    )
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="longest conversation, in tokens. None: the shortest seq_len of the phases that draw from the "
        "source; outside a run no limit",
    )
    overlong: Literal["refuse", "drop", "cut"] = Field(
        default="refuse",
        description="what to do with longer conversations: refuse the file, drop them, or keep the turns that fit",
    )
    max_wrong: NonNegativeInt = Field(
        default=0, description="how many invalid records may be skipped before the file is refused"
    )
