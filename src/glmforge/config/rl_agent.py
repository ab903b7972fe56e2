"""`rl.agent`: samples are conversations, with an environment or of a program, instead of single answers."""

from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse


class AgentConfig(Strict):
    """What the policy acts in: built-in tools, an environment of your own, or a program that talks to an endpoint.

    `rollout.max_new_tokens` counts all that follows the opening, what the environment says included.
    """

    environment: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="'module:Class', a subclass of glmforge.rl.agents.environment.Environment",
    )
    options: dict[str, Any] = Field(default={}, description="arguments of the environment's class")
    program: list[str] = Field(
        default=[], description="command started for each sample, with the prompt's record on standard input"
    )
    tools: list[Literal["calculator", "python", "search"]] = Field(default=[], description="built-in functions")
    corpus: YamlPath | None = Field(default=None, description="JSON lines with text, for the tool search")
    max_turns: PositiveInt = Field(default=8, description="replies in a conversation")
    timeout_s: PositiveFloat = Field(default=600.0, description="for a program; one that takes longer has failed")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(map(bool, (self.environment, self.program, self.tools))) != 1:
            refuse("environment", "set exactly one of environment, program and tools")
        if ("search" in self.tools) != (self.corpus is not None):
            refuse("corpus", "goes with the tool search; set both or neither")
        return self
