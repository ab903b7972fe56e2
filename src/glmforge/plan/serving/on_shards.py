"""How long the rollouts of a training run take, whose engine reads the trainer's weights where they lie.

All ranks step together, and each data rank (and cp rank) has prompts of its own. Before the first step weights are
gathered over the axes that FSDP shards them on and stay so, as far as `rl.rollout.weight_bytes` allows; the others are
gathered in every step. A step takes the longer of reading and multiplying, and its exchanges on top:

    reads       all dense weights of the rank's tp part, those of its experts that a token of its ep group visits, and
                the keys and values of its answers; pp ranks work one after another, so their layers add up
    multiplies  a token for each of the rank's answers
    exchanges   two all-reduces per layer over tp, two all-to-alls per MoE layer over ep, a message per pp rank, gathers

These are bounds: time between kernels, packing, rewards and groups that are dropped come on top.
"""

from dataclasses import asdict, dataclass

from glmforge.config.layout import Layout
from glmforge.config.parameters import parameter_table
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.counts.flops import forward_flops_per_token
from glmforge.plan.counts.memory import kv_cache_bytes_per_token
from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.collectives import Group, collective_seconds
from glmforge.plan.machine.machine import Machine
from glmforge.plan.machine.measured import CollectiveKind
from glmforge.plan.serving.deployment import Step, visited_share
from glmforge.plan.stages.rollout_batch import RolloutBatch
from glmforge.plan.work.traffic import ranks_per_node, shard_axis
from glmforge.plan.work.update_operations import used_elements

_BF16, _FP32 = 2, 4


@dataclass(frozen=True)
class ShardRollout:
    """The rollouts of a step.

    Attributes:
        step: with as many answers as a rank computes at once, half of a response behind them.
        gather: seconds until the weights are there.
        prefill, generate, tail: for prompts, for responses, and for the longest one after the others.
        kept_bytes, passing_bytes: gathered weights on each rank that stay, and that each step gathers.
    """

    step: Step
    gather: float
    prefill: float
    generate: float
    tail: float
    kept_bytes: float
    passing_bytes: float

    @property
    def seconds(self) -> float:
        return self.gather + self.prefill + self.generate + self.tail


def rollout_on_shards(config: RunConfig, layout: Layout, machine: Machine, batch: RolloutBatch) -> ShardRollout:
    """Raises `ConfigError` if a rank's cache does not hold one answer."""
    engine, rollout = _Engine(config, layout, machine), config.stage_settings(RlConfig).rollout
    prompts = -(-batch.prompts // (layout.data_ranks * layout.cp))
    answers = prompts * batch.samples
    length = batch.prompt_tokens + batch.response_tokens // 2
    most = rollout.cache_bytes // engine.cache_per_token
    longest = batch.prompt_tokens + batch.longest
    if most < longest:
        raise ConfigError(
            f"rl.rollout.cache_bytes: {rollout.cache_bytes:,} hold {int(most):,} tokens on a rank, but an answer may "
            f"have {longest:,} with its prompt; set it to at least {int(longest * engine.cache_per_token):,}"
        )
    at_once = min(answers, rollout.max_sequences, int(most // length))
    step = engine.step(at_once, length)
    alone = engine.step(1, batch.prompt_tokens + (batch.response_tokens + batch.longest) // 2)
    return ShardRollout(
        step,
        engine.gather_seconds(engine.kept_share),
        engine.prefill_seconds(prompts, batch.prompt_tokens),
        generate=-(-answers * batch.response_tokens // at_once) * step.seconds,
        tail=(batch.longest - batch.response_tokens) * alone.seconds,
        kept_bytes=engine.kept_share * sum(engine.gathered.values()),
        passing_bytes=(1 - engine.kept_share) * sum(engine.gathered.values()),
    )


def shard_rollout_as_json(rollout: ShardRollout) -> dict[str, object]:
    """Ready for JSON."""
    return asdict(rollout) | {"seconds": rollout.seconds, "bottleneck": rollout.step.bottleneck}


class _Engine:
    """What a rank reads, gathers and caches."""

    def __init__(self, config: RunConfig, layout: Layout, machine: Machine) -> None:
        self.model, self.layout, self.machine = config.model, layout, machine
        self.read: dict[str, float] = {"dense": 0.0, "experts": 0.0}
        self.gathered: dict[str, float] = {}
        for row in parameter_table(self.model).values():
            if row.mtp or not row.trained:
                continue
            size = (_FP32 if ".mlp.gate." in row.name else _BF16) * used_elements(row, layout)
            if row.family != "embedding" or self.model.tie_word_embeddings:
                self.read["experts" if row.expert else "dense"] += size
            axis = shard_axis(row, layout)
            if layout.size(axis) > 1:
                # A pp rank has its own layers; all of them are read in a step, but gathered at the same time.
                self.gathered[axis] = self.gathered.get(axis, 0.0) + size / layout.pp
        self.cache_per_token = kv_cache_bytes_per_token(self.model) / (layout.tp * layout.pp)
        needed, budget = sum(self.gathered.values()), config.stage_settings(RlConfig).rollout.weight_bytes
        self.kept_share = 1.0 if budget is None or budget >= needed else budget / needed

    def step(self, answers: int, length: int) -> Step:
        """Of so many answers on each rank, with `length` tokens each in its cache."""
        cache = answers * length * self.cache_per_token * self.layout.pp
        # A query sees all of its cache, of which a formula for training counts half.
        flops = answers * forward_flops_per_token(self.model, 2 * length) / self.layout.tp
        exchange = self._exchange_seconds(answers) + self.layout.pp * self.gather_seconds(1 - self.kept_share)
        read = self._read_seconds(answers, cache)
        return Step(answers, read, flops / ceilings(self.machine.accelerator).bf16_flops, exchange, 1.0)

    def prefill_seconds(self, prompts: int, length: int) -> float:
        """Of a rank's prompts, which are computed together."""
        tokens = prompts * length
        flops = tokens * forward_flops_per_token(self.model, length, with_head=False) / self.layout.tp
        multiplying = flops / ceilings(self.machine.accelerator).bf16_flops
        return max(self._read_seconds(tokens, 0.0), multiplying) + self._exchange_seconds(tokens)

    def gather_seconds(self, share: float) -> float:
        """Of this share of what is gathered, a layer at a time."""
        layers = max(1, self.model.num_hidden_layers // self.layout.pp)
        return sum(
            layers * self._seconds("all_gather", axis, share * size / layers) for axis, size in self.gathered.items()
        )

    def _read_seconds(self, tokens: int, cache: float) -> float:
        together = tokens * max(1, self.layout.ep // self.layout.tp)
        read = self.read["dense"] + self.read["experts"] * visited_share(self.model, together) + cache
        return read / ceilings(self.machine.accelerator).bandwidth

    def _exchange_seconds(self, tokens: int) -> float:
        model, layout = self.model, self.layout
        hidden = _BF16 * tokens * model.hidden_size
        rows = hidden * model.num_experts_per_tok / layout.tp
        return (
            2 * model.num_hidden_layers * self._seconds("all_reduce", "tp", hidden)
            + 2 * model.num_moe_layers * self._seconds("all_to_all", "ep", rows)
            + (layout.pp - 1) * self._seconds("send", "pp", hidden)
        )

    def _seconds(self, kind: CollectiveKind, axis: str, size: float) -> float:
        near = ranks_per_node(self.layout, axis, self.machine.ranks_per_node)
        return collective_seconds(kind, size, Group(self.layout.size(axis), near), self.machine)
