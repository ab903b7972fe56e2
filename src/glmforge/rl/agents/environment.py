"""What a policy acts in: a class that opens a conversation and answers each reply, until it is over.

    class Guess(Environment):
        def reset(self, record):
            self.number = record["number"] ...

One object is made for each sample and lives for one conversation; `docs/post-training.md` has a whole example. Methods
run in threads beside the engine: several conversations at a time, each of them in one thread at a time. They have to
come back by themselves, and to open and answer alike where they are given the same.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from glmforge.config.rl_agent import AgentConfig
from glmforge.errors import ConfigError
from glmforge.rl.agents.conversation import Message
from glmforge.rl.agents.tools import Tool, tools_named
from glmforge.verify.reply import MalformedReply, Reply, ToolCall

MAX_CHARACTERS = 8192
"""Of what a tool returns; the rest is cut off."""


@dataclass(frozen=True)
class Outcome:
    """What follows a reply.

    Attributes:
        messages: the user's or tools', as OpenAI has them; without any, the conversation is over.
        reward: of the whole conversation, with its end; None leaves it to `rl.rewards`, which see the last reply.
    """

    messages: Sequence[Message] = ()
    reward: float | None = None


class Environment:
    """A conversation to act in.

    Attributes:
        tools: JSON schemas of the functions that may be called, as the chat template writes them.
    """

    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(self, **options: Any) -> None:
        """`options` are those of the configuration (`rl.agent.options`)."""

    def reset(self, record: Mapping[str, Any]) -> Sequence[Message]:
        """The messages before the first reply; by default those of the prompt's record."""
        return list(record["messages"])

    def step(self, reply: Reply) -> Outcome:
        """What follows a reply. Raise `MalformedReply` to end with a reward of 0."""
        raise NotImplementedError


class ToolEnvironment(Environment):
    """Functions that the policy may call; the first reply without a call ends it, and `rl.rewards` judge that one."""

    available: ClassVar[Sequence[Tool]] = ()

    def __init__(self, available: Sequence[Tool] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._tools = {tool.name: tool for tool in (self.available if available is None else available)}
        self.tools = [tool.schema for tool in self._tools.values()]

    def step(self, reply: Reply) -> Outcome:
        return Outcome([{"role": "tool", "content": self._result(call)} for call in reply.tool_calls])

    def _result(self, call: ToolCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None or call.arguments.keys() != tool.parameters.keys():
            raise MalformedReply(f"'{call.name}' is not a function with such arguments")
        return tool.function(**call.arguments)[:MAX_CHARACTERS] or "(nothing)"


def environment_of(config: AgentConfig) -> type[Environment] | Any:
    """What makes an environment, called without arguments. Raises `ConfigError` for a class that is not there."""
    if config.environment is None:
        tools = tools_named(config.tools, config.corpus)
        return lambda: ToolEnvironment(tools)
    module, _, name = config.environment.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"rl.agent.environment: cannot import '{config.environment}' ({error})") from None
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ConfigError(f"rl.agent.environment: '{config.environment}' is not a subclass of Environment")
    return lambda: found(**config.options)
