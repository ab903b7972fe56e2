"""What the models of a run say of sampled answers, before the policy learns from them.

The policy and the reference give log-probabilities, the critic values, the reward model a score of each answer. All of
them take answers as they are trained on: packed into the rows of a data rank, on any layout.

Shapes: N tokens of an answer, K answers of a group.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from glmforge.backend.native import NativeBackend
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.policy import PolicyObjective, TokenLogprobs
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.model import ParallelModel
from glmforge.rl.advantages import (
    discounted_returns,
    generalised_advantages,
    group_advantages,
    normalised,
    token_rewards,
)
from glmforge.rl.exchange import gathered
from glmforge.rl.packing import batch_of, last_values, rows_of, unpacked
from glmforge.rl.samples import Answer
from glmforge.rl.scoring import LinearHeadOnly, score_tokens

OF_TOKENS = ("reinforce++", "gae")
"""Advantages that are made of each token's reward rather than of a group's."""


class Models:
    """The models of a run, in their roles; all ranks call the methods together.

    Args:
        reference: None: the policy without its adapters, if any is needed.
    """

    def __init__(
        self,
        config: RunConfig,
        settings: RlConfig,
        backend: NativeBackend,
        reference: ParallelModel | None = None,
        critic: ParallelModel | None = None,
        reward_model: ParallelModel | None = None,
    ) -> None:
        self.config, self.settings, self.backend, self.world = config, settings, backend, backend.world
        self.reference, self.critic, self.reward_model = reference, critic, reward_model
        self.objective = PolicyObjective(settings)
        self.seq_len = config.phases[0].seq_len
        self.micro_batch_size = config.parallel.micro_batch_size or 1

    def reward_scores(self, answers: Sequence[Answer], alive: Alive = quiet) -> dict[tuple[int, int], float]:
        """What the reward model says of the answers of all data ranks, this one's among them. Collective."""
        assert self.reward_model is not None, "asked for"
        rows, batch = self.batch(answers)
        head, size = LinearHeadOnly("score"), self.micro_batch_size
        values_BS = score_tokens(self.reward_model, head, _as_tensor, batch, size, alive=alive)
        return {key: value for part in gathered(last_values(values_BS, rows)) for key, value in part.items()}

    def score(self, answers: list[Answer], num_steps: int, alive: Alive = quiet) -> list[Answer]:
        """A data rank's answers of one step, with what the models say of their tokens and advantages made of that.

        Args:
            num_steps: steps taken so far, for the critic's warm-up.
        """
        settings, kind = self.settings, self.settings.advantage.kind
        rows, batch = self.batch(answers)
        if settings.needs_reference:
            model = self.reference or self.backend.model
            found = self._logprobs(model, batch, rows, alive, adapters=self.reference is not None)
            answers = [one.changed(reference_N=found[one.key]) for one in answers]
        if settings.needs_old:
            found = self._logprobs(self.backend.model, batch, rows, alive)
            answers = [one.changed(old_N=found[one.key]) for one in answers]
        if kind in OF_TOKENS:
            answers = self._advantages_of_tokens(answers, batch, rows, alive)
        if settings.critic is not None and num_steps < settings.critic.warmup_steps:
            answers = [one.changed(advantages_N=np.zeros_like(one.advantages_N)) for one in answers]
        return answers

    def _logprobs(
        self,
        model: ParallelModel,
        batch: Batch,
        rows: Sequence[Sequence[Answer]],
        alive: Alive,
        *,
        adapters: bool = True,
    ) -> dict[tuple[int, int], np.ndarray]:
        def read(found: object) -> torch.Tensor:
            assert isinstance(found, TokenLogprobs)
            return -found.nll_o

        values_BS = score_tokens(
            model, self.objective, read, batch, self.micro_batch_size, adapters=adapters, alive=alive
        )
        return unpacked(values_BS, rows)

    def _advantages_of_tokens(
        self, answers: list[Answer], batch: Batch, rows: Sequence[Sequence[Answer]], alive: Alive
    ) -> list[Answer]:
        """REINFORCE++ and GAE: of each token's reward. Normalised over the step. Collective."""
        config = self.settings.advantage
        found: list[np.ndarray] = []
        if config.kind == "gae":
            assert self.critic is not None, "the recipe brings a critic"
            head, size = LinearHeadOnly("value"), self.micro_batch_size
            values_BS = score_tokens(self.critic, head, _as_tensor, batch, size, alive=alive)
            values = unpacked(values_BS, rows)
            answers = [one.changed(values_N=values[one.key]) for one in answers]
        for place, one in enumerate(answers):  # of the policy's own tokens, as if there were no others
            own_N = one.own_N
            ratios_N = np.zeros(len(own_N)) if one.reference_N is None else one.logprobs_N - one.reference_N
            rewards_N = token_rewards(one.reward or 0.0, ratios_N[own_N].astype(float), config.kl_in_reward)
            if one.values_N is None:
                found.append(discounted_returns(rewards_N, config.gamma))
            else:
                advantages_N, returns_N = generalised_advantages(
                    rewards_N, one.values_N[own_N].astype(float), config.gamma, config.lam
                )
                answers[place] = one.changed(returns_N=_scattered(returns_N, own_N))
                found.append(advantages_N)
        own = np.concatenate(found) if found else np.zeros(0)
        sums = torch.tensor([len(own), own.sum(), np.square(own).sum()], dtype=torch.float64)
        count, total, squares = self.world.sum(sums.to(self.world.device), "dp_replicate", "dp_shard").tolist()
        normal = normalised(found, count, total, squares)
        return [
            one.changed(advantages_N=_scattered(values_N, one.own_N))
            for one, values_N in zip(answers, normal, strict=True)
        ]

    def batch(self, answers: Sequence[Answer]) -> tuple[list[list[Answer]], Batch]:
        """The rows of this rank's answers, and a batch with as many rows as that of every other rank."""
        rows = rows_of(answers, self.seq_len)
        size = self.micro_batch_size
        num_rows = max(1, *gathered(len(rows)))
        model = self.config.model
        batch = batch_of(
            rows,
            self.seq_len,
            -(-num_rows // size) * size,
            num_layers=model.num_moe_layers,
            num_choices=model.num_experts_per_tok,
        )
        return rows, batch


def with_advantages(group: Sequence[Answer], kind: str) -> list[Answer]:
    """The answers of a group whose reward is known, with the advantages that are made of the group's rewards."""
    if kind in OF_TOKENS:
        return [one for one in group if one.reward is not None]
    samples = [one for one in group if one.episode is None]
    of_sample = dict(zip((one.key for one in samples), group_advantages(rewards_of(samples), kind), strict=True))
    return [
        one.changed(advantages_N=_scattered(np.full(one.own_N.sum(), of_sample[one.owner]), one.own_N))
        for one in group
        if one.reward is not None
    ]


def _scattered(values_n: np.ndarray, own_N: np.ndarray) -> np.ndarray:
    """float32 [N] of the values of the policy's own tokens; 0 at the others."""
    values_N = np.zeros(len(own_N), dtype=np.float32)
    values_N[own_N] = values_n
    return values_N


def rewards_of(group: Sequence[Answer]) -> np.ndarray:
    """[K], NaN where the reward is not known."""
    return np.array([math.nan if one.reward is None else one.reward for one in group])


def _as_tensor(found: object) -> torch.Tensor:
    assert isinstance(found, torch.Tensor)
    return found
