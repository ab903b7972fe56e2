"""What one step of reinforcement learning samples and trains on: prompts, answers, and how long they are.

Answers are as long as the policy makes them. What a plan takes for their mean length is half of what they may have at
most, and `glmforge plan --rollout` takes another one.
"""

from dataclasses import dataclass, replace

from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError

_SETTINGS = ("prompts", "samples", "prompt", "response", "longest")
_OF_RUN = {"prompts": "phases.0.batch_size", "samples": "rl.rollout.group_size"}
_MOST = 10**9


@dataclass(frozen=True)
class RolloutBatch:
    """What is sampled for one step. Tokens are means; `longest` is the length at which responses are cut, or the
    longest one expected."""

    prompts: int
    samples: int
    prompt_tokens: int
    response_tokens: int
    longest: int

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def mean_tokens(self) -> int:
        """Of a prompt and a response."""
        return self.prompt_tokens + self.response_tokens

    @property
    def tokens(self) -> int:
        """Of prompts and responses, as training sees them."""
        return self.sequences * self.mean_tokens


def batch_of(config: RunConfig) -> RolloutBatch | None:
    """Of a step of the run's first phase; None in stages that sample nothing."""
    if config.stage != "rl":
        return None
    rollout, answers = config.stage_settings(RlConfig).rollout, config.phases[0].batch_size
    prompt, response = -(-rollout.max_prompt_tokens // 2), -(-rollout.max_new_tokens // 2)
    return RolloutBatch(
        max(1, answers // rollout.group_size), rollout.group_size, prompt, response, rollout.max_new_tokens
    )


def parse_rollout(text: str, run: RolloutBatch | None = None) -> RolloutBatch:
    """From "prompts=64,samples=8,prompt=1024,response=8192,longest=65536"; `longest` may be omitted. `run` is the batch
    of a configured run, of which lengths alone can be changed.

    Raises `ConfigError`.
    """
    usage = "write prompts=64,samples=8,prompt=1024,response=8192,longest=65536 (the last three in tokens)"
    settings = dict(part.partition("=")[::2] for part in text.split(","))
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise ConfigError(f"--rollout: unknown setting '{name}'; {usage}")
        if run is not None and name in _OF_RUN:
            raise ConfigError(f"--rollout: {name} is what the configuration says; set {_OF_RUN[name]}")
        if not (value.isascii() and value.isdigit() and 0 < int(value) <= _MOST):
            raise ConfigError(f"--rollout: {name}='{value}' must be a number from 1 to {_MOST:,}; {usage}")
    numbers = {name: int(value) for name, value in settings.items()}
    if run is not None:
        lengths = {"prompt_tokens": "prompt", "response_tokens": "response", "longest": "longest"}
        found = replace(run, **{field: numbers[name] for field, name in lengths.items() if name in numbers})
    else:
        if missing := [name for name in _SETTINGS[:-1] if name not in numbers]:
            raise ConfigError(f"--rollout: {missing[0]} is missing; {usage}")
        found = RolloutBatch(*(numbers.get(name, numbers["response"]) for name in _SETTINGS))
    if found.longest < found.response_tokens:
        raise ConfigError(
            f"--rollout: longest={found.longest} is less than response={found.response_tokens}, the mean; raise it"
        )
    return found


def packed(config: RunConfig, batch: RolloutBatch, multiple: int) -> tuple[RunConfig, str]:
    """The run with the rows that a step's answers are packed into in place of the answers, and a line on it.

    Rows are taken to be full; their number is one that `multiple` divides.
    """
    phase, *others = config.phases
    if others:
        raise ConfigError("phases: stage 'rl' has one phase; remove the others")
    rows = -(-batch.tokens // (phase.seq_len * multiple)) * multiple
    line = (
        f"phase {phase.name}: {batch.sequences:,} answers of {batch.mean_tokens:,} tokens on average, with prompts, "
        f"planned as {rows:,} rows of {phase.seq_len:,}; --rollout prompt=...,response=... changes the means"
    )
    return config.model_copy(update={"phases": [phase.model_copy(update={"batch_size": rows})]}), line
