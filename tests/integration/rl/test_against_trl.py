"""The policy's loss, its gradient and the advantages of groups on the same tensors as TRL's `GRPOTrainer`.

TRL reaches its loss only through a trainer with a model: here one without, which takes log-probabilities as they are
given and knows the few settings that the loss and the advantages read. `grpo`, `dr_grpo` and `dapo` are our reductions
"samples", "constant" and "tokens"; `bnpo` is "tokens", too, as long as a step is one micro-batch.
"""

from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glmforge.config.rl import RlConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.policy import ADVANTAGE, OLD_LOGPROB, REFERENCE_LOGPROB
from glmforge.rl.advantages import group_advantages
from helpers.policies import batch, loss_of

pytest.importorskip("trl", reason="TRL is installed for this comparison only")
from trl import GRPOTrainer

TOLERANCE = 1e-12  # both in float64
EPSILON = 1e-4
"""What TRL adds to the spread of a group; here it is 1e-6."""


class Given(GRPOTrainer):
    """TRL's loss of given log-probabilities [A answers, C tokens], and its advantages of given rewards.

    Args:
        settings: attributes that differ from TRL's defaults.
        num_micro_batches: of a step.
    """

    def __init__(self, num_micro_batches: int = 1, rewards: Tensor | None = None, **settings: Any) -> None:
        self.model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
        self.accelerator = SimpleNamespace(
            reduce=lambda x, reduction: x,
            gather=lambda x: x,
            num_processes=1,
            process_index=0,
            device=torch.device("cpu"),
        )
        self.args = SimpleNamespace(
            use_bias_correction_kl=False,
            delta=settings.pop("delta", None),
            steps_per_generation=num_micro_batches,
            gradient_accumulation_steps=num_micro_batches,
            gradient_checkpointing_kwargs=None,
            per_device_train_batch_size=1,
        )
        self.current_gradient_accumulation_steps = num_micro_batches
        self.loss_type, self.importance_sampling_level, self.beta = "dapo", "token", 0.0
        self.epsilon_low = self.epsilon_high = 0.2
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.aux_loss_enabled = self.use_vllm = self._entropy_bonus_enabled = False
        self.mask_truncated_completions, self.pad_to_multiple_of, self.num_iterations = False, None, 1
        self.environment_factories = self.environments = self.tools = None
        self.multi_objective_aggregation, self.scale_rewards = "sum_then_normalize", "group"
        self.reward_funcs, self.reward_func_names, self.reward_weights = [None], ["given"], torch.ones(1)
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        self._metrics: Any = {"train": defaultdict(list)}
        self._logs: Any = defaultdict(deque) | {"rewards": defaultdict(deque), "extra": defaultdict(deque)}
        self._pending_extra_logs: Any = {}
        self._pending_metrics: Any = {}
        self.rewards, self.logprobs_AC = rewards, torch.zeros(0)
        for name, value in settings.items():
            setattr(self, name, value)

    def loss(self, logprobs_AC: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        self.logprobs_AC = logprobs_AC
        found: Tensor = self._compute_loss(self.model, inputs)
        return found

    def advantages(self, rewards: Tensor) -> Tensor:
        self.rewards = rewards[:, None]
        found: Tensor = self._generate_and_score_completions([{"prompt": "?"}] * len(rewards))["advantages"]
        return found

    def _get_per_token_logps_and_entropies(self, *args: Any, **names: Any) -> tuple[Tensor, Tensor, None]:
        return self.logprobs_AC, torch.zeros_like(self.logprobs_AC), None

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        ids = [[1]] * len(prompts)
        return ids, ids, None, ["!"] * len(prompts), None, {}, None, []

    def _calculate_rewards(self, *args: Any) -> Tensor | None:
        return self.rewards


def by_answer(given: Batch) -> tuple[Tensor, Tensor]:
    """Where each answer's tokens are in a flattened batch, [A, C] filled with 0, and which of these are tokens."""
    is_label_T, ids_T = given.labels_BS.flatten() == 1, given.documents().ids_T()
    places = [(is_label_T & (ids_T == one)).nonzero()[:, 0] for one in ids_T.unique()]
    places = [one for one in places if len(one)]
    is_token_AC = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in places], batch_first=True)
    return torch.nn.utils.rnn.pad_sequence(places, batch_first=True), is_token_AC


def trl_loss(given: Batch, new_BS: Tensor, rl: RlConfig, num_micro_batches: int, **settings: Any) -> Tensor:
    places_AC, is_token_AC = by_answer(given)
    trainer = Given(num_micro_batches, max_completion_length=rl.rollout.max_new_tokens, **settings)

    def of(name: str) -> Tensor:
        return given.per_token[name].flatten()[places_AC]

    inputs = {
        "prompt_ids": torch.zeros(len(places_AC), 2),
        "prompt_mask": torch.ones(len(places_AC), 2),
        "completion_ids": torch.zeros(places_AC.shape),
        "completion_mask": is_token_AC,
        "advantages": of(ADVANTAGE)[:, 0],
        "old_per_token_logps": of(OLD_LOGPROB),
        "ref_per_token_logps": of(REFERENCE_LOGPROB),
    }
    new_AC, losses = new_BS.flatten()[places_AC], []
    for rows_A in torch.arange(len(places_AC)).chunk(num_micro_batches):
        some = {name: values[rows_A] for name, values in inputs.items()}
        losses.append(trainer.loss(new_AC[rows_A], some | {"num_items_in_batch": is_token_AC.sum()}))
    return torch.stack(losses).sum()


REDUCTIONS = {"grpo": "samples", "dr_grpo": "constant", "dapo": "tokens", "bnpo": "tokens"}
LEVELS = {
    "token": ({}, {}),
    "sequence": ({"level": "sequence", "low": 0.02, "high": 0.05}, {"epsilon_low": 0.02, "epsilon_high": 0.05}),
}


def check(given: Batch, rl: RlConfig, num_micro_batches: int = 1, **settings: Any) -> None:
    new, other = (given.per_token["new"].clone().requires_grad_() for _ in range(2))
    ours, theirs = loss_of(given, rl, new), trl_loss(given, other, rl, num_micro_batches, **settings)
    ours.backward()
    theirs.backward()
    assert new.grad is not None and other.grad is not None  # noqa: PT018
    assert ours.item() == pytest.approx(theirs.item(), abs=TOLERANCE)
    assert torch.allclose(new.grad, other.grad, rtol=0, atol=TOLERANCE)
    assert new.grad.abs().max() > 1e-3


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", REDUCTIONS)
def test_loss_and_gradient(loss_type: str, level: str, weight: float) -> None:
    ours, theirs = LEVELS[level]
    rl = {
        "surrogate": {"reduction": REDUCTIONS[loss_type], **ours},
        "kl": {"weight": weight} if weight else None,
        "rollout": {"max_new_tokens": 10},
    }
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "beta": weight, **theirs}
    check(batch(), RlConfig.model_validate(rl), **settings)


def test_micro_batches_are_one_batch() -> None:
    check(batch(), RlConfig(), 2, loss_type="dapo")
    with pytest.raises(AssertionError):
        check(batch(), RlConfig(), 2, loss_type="bnpo")


def test_bounds_of_other_papers() -> None:
    """CISPO: TRL has no lower bound and counts the upper one from 0. TRL's `delta` is the dual clip."""
    cispo = RlConfig.model_validate({"surrogate": {"bound": "cispo", "low": 1.0, "high": 0.1}})
    check(batch(), cispo, loss_type="cispo", epsilon_high=1.1)
    dual = RlConfig.model_validate({"surrogate": {"bound": "dual_clip", "low": 0.05, "high": 0.05, "dual_clip": 1.1}})
    check(batch(), dual, epsilon_low=0.05, epsilon_high=0.05, delta=1.1)
    plain = RlConfig.model_validate({"surrogate": {"low": 0.05, "high": 0.05}})
    new = batch().per_token["new"]
    assert abs(loss_of(batch(), dual, new) - loss_of(batch(), plain, new)) > 1e-3


@pytest.mark.parametrize(("kind", "scale"), [("grpo", "group"), ("dr_grpo", "none")])
def test_advantages_of_groups(kind: str, scale: str) -> None:
    rewards_GK = np.random.default_rng(0).normal(size=(5, 4))
    rewards_GK[1] = 1.0  # no spread
    rewards_GK[2, 3] = np.nan  # a verifier failed
    ours_GK = np.stack([group_advantages(rewards_K, kind) for rewards_K in rewards_GK])
    if kind == "grpo":
        spread_G = np.nanstd(rewards_GK, axis=1, ddof=1, keepdims=True)
        ours_GK *= (spread_G + 1e-6) / (spread_G + EPSILON)
    theirs = Given(num_generations=4, scale_rewards=scale).advantages(torch.from_numpy(rewards_GK.flatten()))
    assert np.abs(ours_GK).max() > 1
    tolerance = 1e-7 if kind == "grpo" else TOLERANCE  # TRL's n / (n - 1) of the spread is in float32
    np.testing.assert_allclose(ours_GK.flatten(), theirs.numpy(), rtol=0, atol=tolerance)
