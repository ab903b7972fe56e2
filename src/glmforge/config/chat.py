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
    """What of a conversation is learnt, and what happens to records that are wrong or too long."""

    turns: Literal["all", "last"] = Field(
        default="all",
        description="which turns of the assistant are learnt; a message's own loss_weight overrides it",
    )
    thinking: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="off renders questions with /nothink and leaves reasoning out, on as the model is asked to think; "
        "auto is on for conversations that have reasoning somewhere",
    )
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="longest conversation. None: in a run the shortest seq_len of the phases that draw from the "
        "source, elsewhere no limit",
    )
    overlong: Literal["refuse", "drop", "cut"] = Field(
        default="refuse",
        description="what to do with a longer one: refuse the file, leave it out, or keep the turns that fit",
    )
    max_wrong: NonNegativeInt = Field(
        default=0, description="how many wrong records may be left out; one more refuses the file"
    )
