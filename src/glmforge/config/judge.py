"""`judge` of a reward term: a model on a server that scores replies by a rubric.

The API key is in an environment variable, never in a configuration, which is stored with every run.
"""

import re
from typing import Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from glmforge.config.model import Strict, refuse


class JudgeConfig(Strict):
    """Which server judges, by what, and how long it is waited for."""

    url: str = Field(description="of a server with OpenAI's chat completions, up to /v1")
    model: str = Field(min_length=1, description="the judge, as its server calls it")
    rubric: str = Field(min_length=1, description="what a reply of 0 and one of 10 is like; the judge reads it")
    api_key_env: str | None = Field(
        default=None, description="environment variable with the API key; None: the server needs none"
    )
    options: dict[str, Any] = Field(
        default={}, description="further fields of a request, such as response_format; null removes one of ours"
    )
    timeout_s: PositiveFloat = Field(default=60.0, description="seconds for one reply of the server")
    attempts: PositiveInt = Field(default=4, description="requests for a verdict before it counts as failed")
    connections: PositiveInt = Field(default=16, description="requests at the same time, of each data rank")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", self.url):
            refuse("url", "must be like http://host:8000/v1, without user, password or query (a key: api_key_env)")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.api_key_env):
            refuse("api_key_env", "must be the name of an environment variable, in capitals; not the key itself")
        return self
