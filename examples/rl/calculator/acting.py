"""Products with a calculator, as an environment of one's own (`rl.agent.environment: acting:Products`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.rl.agents.environment import Environment, Outcome
from glmforge.rl.agents.tools import calculator
from glmforge.verify.reply import MalformedReply, Reply


class Products(Environment):
    """Asks for a product; a reply may call `calc` first. Its schema is not in the prompt: demonstrations have shown it.

    The reward is that of `rl.rewards` for the last reply, or 0 for a call that is none.
    """

    def reset(self, record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        self.calls_left = 2
        return list(record["messages"])

    def step(self, reply: Reply) -> Outcome:
        if not reply.tool_calls:
            return Outcome()
        self.calls_left -= 1
        call = reply.tool_calls[0]
        if call.name != "calc" or call.arguments.keys() != {"e"} or self.calls_left < 0:
            raise MalformedReply("not a call of calc with the argument e")
        return Outcome([{"role": "tool", "content": calculator(call.arguments["e"])}])
