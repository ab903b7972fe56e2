"""`rl`: reinforcement learning on verified answers: what is sampled, how it is rewarded, and what is minimised.

One step: answers are sampled in groups, one group per prompt; each is rewarded; rewards become advantages; the policy
takes one or more optimizer steps on them. Formulas and names are those of the papers cited at each setting.
"""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse
from glmforge.config.rewards import RewardsConfig
from glmforge.config.rl_agent import AgentConfig
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.config.rl_schedule import ScheduleConfig


class RolloutConfig(Strict):
    """How answers are sampled."""

    group_size: PositiveInt = Field(default=8, description="answers to each prompt")
    max_prompt_tokens: PositiveInt = Field(default=1024, description="longer prompts are not used")
    max_new_tokens: PositiveInt = Field(default=1024, description="longest answer, reasoning included")
    temperature: PositiveFloat = Field(
        default=1.0, description="of sampling; log-probabilities in training are taken under it, too"
    )
    thinking: bool = Field(default=True, description="let the model reason before it answers")
    over_sampling: float = Field(
        default=1.0,
        ge=1,
        description="prompts sampled at once, relative to those needed; groups beyond them wait for the next rollout",
    )
    partial: bool = Field(
        default=False,
        description="stop when enough groups are complete; unfinished answers go on under the next weights",
    )
    drop_equal: bool = Field(
        default=True,
        description="drop groups whose rewards are all equal and sample others (DAPO, arXiv:2503.14476)",
    )
    max_rounds: PositiveInt = Field(
        default=20,
        description="rounds of sampling for one rollout, after which steps are taken on the groups found so far",
    )
    replay: bool = Field(
        default=True, description="route training tokens to the experts that they had when they were sampled"
    )
    cache_bytes: PositiveInt = Field(
        default=1 << 28, description="memory for keys and values on each rank; freed while the model is trained"
    )
    max_sequences: PositiveInt = Field(default=64, description="answers that a rank computes at the same time")
    weight_bytes: PositiveInt | None = Field(
        default=None, description="memory for gathered weights on each rank; None: as much as gathers nothing twice"
    )


class AdvantageConfig(Strict):
    """How rewards become the advantages of tokens."""

    kind: Literal["grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline", "gae"] = Field(
        default="dr_grpo",
        description="grpo: reward less the group's mean, divided by its spread (arXiv:2402.03300); dr_grpo: not "
        "divided (arXiv:2503.20783); rloo: less the mean of the others (arXiv:2402.14740); reinforce++: discounted "
        "returns, normalised over the batch, and _baseline: less the group's mean first (arXiv:2501.03262); gae: with "
        "a critic (arXiv:1506.02438)",
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="discount per token, for reinforce++ and gae")
    lam: float = Field(default=1.0, ge=0, le=1, description="lambda of gae")
    kl_in_reward: NonNegativeFloat = Field(
        default=0.0, description="each token's reward is lowered by this times its log-ratio to the reference"
    )


class SurrogateConfig(Strict):
    """The policy's loss: the level of the ratio, what bounds it, and what is averaged."""

    level: Literal["token", "sequence"] = Field(
        default="token", description="of the probability ratio; sequence: GSPO, geometric mean (arXiv:2507.18071)"
    )
    ratio_to: Literal["old", "rollout"] = Field(
        default="old",
        description="old: the policy before the rollout's first update, computed by the trainer; rollout: as the "
        "engine reported it",
    )
    bound: Literal["clip", "dual_clip", "cispo", "mask", "probability", "none"] = Field(
        default="clip",
        description="clip: PPO (arXiv:1707.06347); dual_clip: also bounded for negative advantages (arXiv:1912.09729); "
        "cispo: the clipped ratio weighs log-probabilities (arXiv:2506.13585); mask: tokens outside the bounds do not "
        "count; probability: tokens whose probability moved by more than `low` (`high` upwards) do not count",
    )
    low: PositiveFloat | None = Field(
        default=None, description="ratios may fall to 1 - low; default 0.2, with level: sequence 1e-4"
    )
    high: PositiveFloat | None = Field(
        default=None, description="and rise to 1 + high; default 0.2, with level: sequence 2e-4"
    )
    dual_clip: float = Field(default=3.0, gt=1, description="bound of the ratio for negative advantages")
    correction: Literal["none", "truncate", "mask"] = Field(
        default="none",
        description="for the gap between engine and trainer, by the ratio of their probabilities. truncate: it weighs "
        "tokens, within bounds (TIS); mask: tokens outside the bounds do not count (IcePop)",
    )
    correction_low: NonNegativeFloat = Field(default=0.0, description="lower bound of that ratio")
    correction_high: PositiveFloat = Field(default=2.0, description="upper bound of that ratio")
    reduction: Literal["tokens", "samples", "constant"] = Field(
        default="tokens",
        description="mean over all tokens; over samples of the mean over their tokens; or over samples of the sum over "
        "their tokens divided by max_new_tokens (Dr. GRPO)",
    )

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high) below and above a ratio of 1."""
        low, high = (0.2, 0.2) if self.level == "token" else (1e-4, 2e-4)
        return self.low or low, self.high or high

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.level == "sequence" and self.bound == "probability":
            refuse("bound", "'probability' is about tokens; set level to 'token', or choose another bound")
        if self.correction_low >= self.correction_high:
            refuse("correction_low", f"{self.correction_low:g} is not below correction_high")
        return self


class KlConfig(Strict):
    """A term that keeps the policy near the weights that the run began with."""

    weight: PositiveFloat = 1e-3
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="of the divergence from the log-ratio (http://joschu.net/blog/kl-approx.html)"
    )


class CriticConfig(Strict):
    """The model that says what an answer will be worth, for advantages of kind gae (PPO)."""

    init_from: YamlPath | None = Field(default=None, description="its weights at first; None: the run's init_from")
    lr_scale: PositiveFloat = Field(default=1.0, description="times the learning rate of the policy")
    clip: PositiveFloat | None = Field(default=0.2, description="how far values move from those before; None: no bound")
    warmup_steps: NonNegativeInt = Field(default=0, description="steps in which only the critic learns")


class RlConfig(Strict):
    """What reinforcement learning adds. A phase's batch_size counts answers."""

    rollout: RolloutConfig = RolloutConfig()
    engine: RlEngineConfig | None = Field(default=None, description="servers that sample; None: the run's own engine")
    schedule: ScheduleConfig = ScheduleConfig()
    rewards: RewardsConfig = RewardsConfig()
    agent: AgentConfig | None = Field(default=None, description="conversations of several turns; None: single answers")
    advantage: AdvantageConfig = AdvantageConfig()
    surrogate: SurrogateConfig = SurrogateConfig()
    reward_model: YamlPath | None = Field(
        default=None,
        description="run of stage reward, or its export, for rewards.terms of kind reward_model; it has the policy's "
        "tokenizer",
    )
    critic: CriticConfig | None = Field(default=None, description="for advantage.kind: gae, which needs it")
    kl: KlConfig | None = Field(default=None, description="None: no reference model")
    entropy: NonNegativeFloat = Field(default=0.0, description="weight of the entropy, which is kept high")
    fp32_head: bool = Field(
        default=True, description="logits in fp32 where the model computes in bf16: as the engine's, a smaller gap"
    )
    steps_per_rollout: PositiveInt = Field(default=1, description="optimizer steps on the answers of one rollout")
    max_gap: PositiveFloat | None = Field(
        default=None,
        description="mean absolute difference between the engine's and the trainer's log-probabilities, in nats, "
        "beyond which the run stops",
    )
    held_out_samples: PositiveInt = Field(
        default=1,
        description="samples of each held-out prompt at evaluations, for pass@k; 1: the greedy answer alone",
    )
    keep_samples: PositiveInt = Field(
        default=1 << 30, description="bytes of answers kept in rollouts/ of the run, on each rank, at most"
    )

    @model_validator(mode="after")
    def _check_reward_model(self) -> Self:
        asked = any(term.kind == "reward_model" for term in self.rewards.terms)
        if asked != (self.reward_model is not None):
            refuse("reward_model", "goes with a term of kind reward_model in rewards.terms; set both or neither")
        return self

    @model_validator(mode="after")
    def _check_critic(self) -> Self:
        if (self.advantage.kind == "gae") != (self.critic is not None):
            refuse("critic", "goes with advantage.kind 'gae', and that with a critic; set both or neither")
        return self

    @model_validator(mode="after")
    def _check_agent(self) -> Self:
        if self.agent is not None and (self.rollout.partial or self.reward_model is not None):
            refuse(
                "agent",
                "conversations are sampled whole, without reward models; remove rollout.partial and reward_model",
            )
        if self.agent is not None and self.engine is not None:
            refuse("agent", "conversations are sampled by the run's own engine; remove rl.engine")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine is not None and self.rollout.partial:
            refuse("engine", "cannot be combined with rollout.partial; set that to false")
        if self.engine is not None and self.engine.restart and (self.engine.kind != "vllm" or not self.engine.command):
            refuse("engine", "restart is for kind 'vllm' with a command; set it to false")
        if self.engine is not None and self.engine.kind != "glmforge" and self.max_gap is None:
            refuse(
                "max_gap", f"is what shows that weights arrive at a server of {self.engine.kind}; set it, to 0.1 say"
            )
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        kind = self.schedule.kind
        if kind == "synchronous":
            return self
        if self.engine is None:
            refuse("schedule", f"'{kind}' needs servers that sample while the run trains; set rl.engine")
        if kind == "asynchronous" and self.engine.kind != "glmforge":
            problem = f"servers of {self.engine.kind} do not say which weights each token was sampled with"
            refuse("schedule", f"'asynchronous' needs rl.engine.kind 'glmforge': {problem}; use 'one_step_off'")
        if self.steps_per_rollout > 1 or self.rollout.over_sampling > 1:
            refuse("schedule", f"'{kind}' needs steps_per_rollout and rollout.over_sampling of 1")
        if self.surrogate.ratio_to == "old" and self.surrogate.correction == "none":
            problem = "answers come from earlier weights, which the loss would not notice"
            refuse("schedule", f"'{kind}': {problem}; set surrogate.ratio_to to 'rollout', or a surrogate.correction")
        return self

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None or self.advantage.kl_in_reward > 0

    @property
    def needs_old(self) -> bool:
        """Whether the trainer's log-probabilities before the update are computed: in the first step of a rollout they
        are the present ones."""
        return self.steps_per_rollout > 1
