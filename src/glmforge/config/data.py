"""`data`: the token shards of a run and how they are read."""

from typing import Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from glmforge.config.chat import ChatConfig, is_conversation_file
from glmforge.config.fields import YamlPath, refuse_duplicates
from glmforge.config.model import Strict, refuse


class SourceConfig(Strict):
    """One token shard, or file of conversations, and how often it is drawn."""

    name: str = Field(min_length=1)
    path: YamlPath = Field(
        description="prefix of the .bin and .idx files; or a file of conversations (.jsonl, .json, .parquet), which is "
        "encoded once and kept"
    )
    weight: PositiveFloat = Field(
        default=1.0, description="share of the tokens, relative to the other sources' weights' weights"
    )
    max_epochs: PositiveFloat | None = Field(
        default=None,
        description="most epochs of this source in the whole run; its share beyond that goes to the other sources in "
        "proportion. None: no limit",
    )
    code: bool = Field(default=False, description="source code: a phase's fim_rate rearranges its documents")
    chat: ChatConfig | None = Field(
        default=None,
        description="how a file of conversations is encoded; None takes the defaults. Not for token shards",
    )

    @property
    def is_conversations(self) -> bool:
        """Whether `path` is a file of conversations rather than a token shard."""
        return is_conversation_file(self.path)

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.chat is not None and not self.is_conversations:
            refuse("chat", f"applies to conversation files, and '{self.path}' is a token shard; remove it")
        if self.code and self.is_conversations:
            refuse("code", f"fill-in-the-middle does not apply to conversations ('{self.path}'); set it to false")
        return self


class DataConfig(Strict):
    """Where the tokens come from."""

    tokenizer: YamlPath = Field(description="directory written by 'glmforge data tokenizer'")
    sources: list[SourceConfig] = Field(min_length=1)
    held_out: list[SourceConfig] = Field(default=[], description="never trained on; weights are not used")
    num_workers: NonNegativeInt = Field(
        default=0, description="worker processes that read data; 0: read in the trainer's process"
    )
    prefetch: PositiveInt = Field(default=2, description="batches that each worker prefetches")
    pin_memory: bool = Field(default=True, description="pin batches in memory if there is a GPU")
    cache_dir: YamlPath | None = Field(
        default=None,
        description="directory on each node's local disk that shards are copied to first; None: read in place",
    )
    packing_dir: YamlPath | None = Field(
        default=None, description="where best-fit packings are stored; None: beside the shard"
    )
    encoded_dir: YamlPath | None = Field(
        default=None, description="where encoded conversations are cached; None: beside the file"
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for field in ("sources", "held_out"):
            refuse_duplicates(field, [source.name for source in getattr(self, field)])
        return self
