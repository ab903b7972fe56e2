"""Agents of a model that knows nothing: its replies end at a quarter of all tokens, so that conversations go on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.backend.native import NativeBackend
from glmforge.config.rl_agent import AgentConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.parallel.world import World
from glmforge.rl.agents.environment import Environment, Outcome, environment_of
from glmforge.rl.agents.sampler import AgentSampler
from glmforge.rl.rollout import Asked
from glmforge.rl.source import RolloutSource
from glmforge.verify.reply import MalformedReply, Reply
from helpers.models import run_config
from helpers.rollouts import settings_of

SEQ_LEN = 160
STOP_IDS = range(0, 512, 4)


class Rounds(Environment):
    """Says three times what has been said; the reward is the share of small letters."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.letters = fault, ""

    def reset(self, record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        self.number, self.left = record["number"], 3
        return [{"role": "user", "content": f"Say {record['number']}."}]

    def step(self, reply: Reply) -> Outcome:
        if self.number == 1 and self.fault == "raises":
            raise RuntimeError("what is\nit?")
        if self.number == 1 and self.fault == "malformed":
            raise MalformedReply("no")
        self.left, self.letters = self.left - 1, self.letters + reply.content
        if self.left:
            return Outcome([{"role": "user", "content": "x" * 200 if self.fault == "long" else f"{self.left} more"}])
        return Outcome(reward=sum(one.islower() for one in self.letters) / max(1, len(self.letters)))


class Prompts:
    def __getitem__(self, number: int) -> Asked:
        return Asked(number, [1])


def score(answers: Sequence[Any], scores: Sequence[float] | None = None) -> list[Any]:
    """Environments have rewarded all of them."""
    return list(answers)


def agents_of(
    world: World, tokenizer: Path, parallel: Mapping[str, Any], agent: Mapping[str, Any] | None = None, **changes: Any
) -> RolloutSource:
    """A run of two steps of four groups, four conversations of each."""
    phase = {"name": "rl", "steps": 2, "seq_len": SEQ_LEN, "batch_size": 16}
    phase |= {"router_bias_rate": 0.0, "aux_loss_weight": 0.0, "mtp_loss_weight": 0.0}
    optim = {
        "lr": 3.0,
        "schedule": "constant",
        "schedule_unit": "steps",
        "matrix_optimizer": "sgd",
        "weight_decay": 0.0,
    }
    config = run_config(phases=[phase], parallel={"micro_batch_size": 1, **parallel}, optim=optim)
    rollout = {"group_size": 4, "max_new_tokens": 90, "cache_bytes": 1 << 23, "drop_equal": False} | changes.pop(
        "rollout", {}
    )
    settings = settings_of(rollout=rollout, **changes)
    given = AgentConfig.model_validate(agent or {"environment": "helpers.agents:Rounds"})
    backend = NativeBackend.build(config, world)
    sampler = AgentSampler(
        settings.rollout,
        given,
        backend.model,
        Tokenizer.load(tokenizer),
        lambda number: {
            "number": number,
            "thinking": False,
            "messages": [{"role": "user", "content": f"Say {number}."}],
        },
        SEQ_LEN,
        environment=None if given.program else environment_of(given),
        stop_ids=tuple(STOP_IDS),
        seed=1,
    )
    return RolloutSource(config, settings, backend, Prompts(), score, vocab_size=512, sampler=sampler)
