"""What a policy acts in: a class that opens a conversation and answers each reply, until it is over.

One object is made for each sample and lives for one conversation. Methods run in threads beside the engine, several
conversations at a time. They have to come back by themselves, and to open alike for all samples of a prompt;
`examples/rl/calculator/acting.py` is one in full.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.config.rl_agent import AgentConfig
from glmforge.errors import ConfigError
from glmforge.rl.agents.conversation import Message
from glmforge.rl.agents.tools import Tool, schema_of, tools_named
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
    """A conversation to act in. It is made with `rl.agent.options`.

    Attributes:
        tools: JSON schemas of the functions that may be called, as the chat template writes them.
    """

    tools: Sequence[Mapping[str, Any]] = ()

    def reset(self, record: Mapping[str, Any]) -> Sequence[Message]:
        """The messages before the first reply; by default those of the prompt's record."""
        return list(record["messages"])

    def step(self, reply: Reply) -> Outcome:
        """What follows a reply. Raise `MalformedReply` to end with a reward of 0."""
        raise NotImplementedError


class ToolEnvironment(Environment):
    """Functions that the policy may call; the first reply without a call ends it, and `rl.rewards` judge that one."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.__name__: tool for tool in tools}
        self.tools = [schema_of(tool) for tool in tools]

    def step(self, reply: Reply) -> Outcome:
        return Outcome([{"role": "tool", "content": self._result(call)} for call in reply.tool_calls])

    def _result(self, call: ToolCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None or call.arguments.keys() != inspect.signature(tool).parameters.keys():
            raise MalformedReply(f"'{call.name}' is not a function with such arguments")
        return tool(**call.arguments)[:MAX_CHARACTERS] or "(nothing)"


def environment_of(config: AgentConfig) -> Callable[[], Environment]:
    """Makes environments. Raises `ConfigError` for a class that is not there, `GlmforgeError` as `tools_named`."""
    if config.environment is None:
        tools = tools_named(config.tools, config.corpus)
        return lambda: ToolEnvironment(tools)
    module, _, name = config.environment.partition(":")
    try:
        found: type[Environment] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"rl.agent.environment: cannot import '{config.environment}' ({error})") from None
    return lambda: found(**config.options)
