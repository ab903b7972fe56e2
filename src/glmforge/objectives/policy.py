"""The policy's loss of reinforcement learning: one surrogate for PPO, GRPO, GSPO, CISPO, IcePop and their relatives.

Per token, with the advantage A and the ratio r of the policy's probability now to that of before:

    clip          max(-r A, -clip(r, 1 - low, 1 + high) A)        PPO (Schulman et al., 2017, arXiv 1707.06347)
    dual_clip     the same, at most -c A where A < 0               (Ye et al., 2019, arXiv 1912.09729)
    cispo         -stop_grad(clip(r)) A log p                      MiniMax-M1 (2025, arXiv 2506.13585)
    mask          -r A where 1 - low <= r <= 1 + high, else 0      IcePop; GLM-5 with the ratio to the rollout
    probability   -r A unless p moved by more than low or high in the direction of A, else 0       DPPO
    none          -r A                                             REINFORCE with an importance weight

At level "sequence" r is the geometric mean over an answer's tokens (GSPO, arXiv 2507.18071). A correction weighs or
masks tokens by how far the trainer's probability, before the update, is from what the engine sampled with; no gradient
flows through it. The terms beside it: a divergence from a reference, and the entropy of the distribution.

Log-probabilities are those of logits divided by the temperature that was sampled with, fp32 or better.

Shapes: T tokens of the rows, o this rank's own, N documents (a sample is one), B rows, S tokens per row.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.backend.objective import MetricSum, Objective
from glmforge.config.rl import RlConfig, SurrogateConfig
from glmforge.data.stream.batch import Batch
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.model.head import Heads
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.observe.metric_table import Metric
from glmforge.parallel.inputs import TokenShare

ADVANTAGE, ROLLOUT_LOGPROB, OLD_LOGPROB, REFERENCE_LOGPROB = "advantage", "rollout_logprob", "old_logprob", "reference"
"""In `Batch.per_token`, float32, at the token before the one that they are about. Without `OLD_LOGPROB` the policy has
not changed since the rollout; without `REFERENCE_LOGPROB` there is no reference."""

GAP_BINS = 64
_SMALLEST_GAP = 1e-8
"""Bins of gaps are half octaves, the first of them up to this."""


_LARGEST_LOG_RATIO = 20.0
"""Beyond it a ratio stays as it is, so that none is infinite."""


class TokenLogprobs(NamedTuple):
    """Of a rank's own tokens: -log p of the label, and the distribution's entropy (None if it is not asked for)."""

    nll_o: Tensor
    entropy_o: Tensor | None


class PolicyObjective(Objective):
    """See above.

    Args:
        config: the stage's settings.
    """

    metric_rows = (
        Metric("policy", "reward", "loss", "surrogate of the policy"),
        Metric("kl", "nats/token", "loss", "divergence from the reference as it is minimised, before its weight"),
        Metric("negative_entropy", "nats/token", "loss", "less the entropy, before its weight"),
        Metric("entropy", "nats/token", "rl", "entropy of the distribution that is sampled from"),
        Metric(
            "clip_share", "share", "rl", "tokens whose ratio is outside the bounds, in the direction of the advantage"
        ),
        Metric("masked_share", "share", "rl", "tokens that the surrogate or its correction does not count"),
        Metric("ratio_kl", "nats/token", "rl", "divergence (k3) from the policy before the rollout's first update"),
        Metric("reference_kl", "nats/token", "rl", "divergence (k3) from the reference"),
        Metric("gap_mean", "nats/token", "rl", "mean absolute difference of log-probabilities, engine and trainer"),
        Metric("gap_p99", "nats/token", "rl", "its 99th percentile, to half an octave"),
        Metric("gap_max", "nats/token", "rl", "its maximum, to half an octave"),
        Metric("gap_kl", "nats/token", "rl", "divergence (k3) of the engine's policy from the trainer's"),
    )

    def __init__(self, config: RlConfig) -> None:
        self.config = config
        terms = {"policy": 1.0}
        if config.kl is not None:
            terms["kl"] = config.kl.weight
        if config.entropy:
            terms["negative_entropy"] = config.entropy
        self.terms, self.weights = tuple(terms), tuple(terms.values())
        names = ("policy_tokens", "entropy_sum", "clipped", "masked", "ratio_kl_sum", "reference_kl_sum", "gap_sum")
        self.metrics = (*map(MetricSum, names), MetricSum("gap_kl_sum"), MetricSum("gap_bins", GAP_BINS))

    def denominators(self, batch: Batch) -> Tensor:
        is_label_T = batch.labels_BS.flatten() != IGNORE_INDEX
        num_tokens = is_label_T.sum().double()
        if self.config.surrogate.reduction == "tokens":
            return torch.stack([num_tokens] * len(self.terms))
        num_samples = (_document_counts(batch, is_label_T) > 0).sum().double()
        return torch.stack([num_samples] * len(self.terms))

    def head(self, batch: Batch, share: TokenShare) -> Head[TokenLogprobs]:
        labels_t = share.take(batch.labels_BS.flatten())
        temperature, with_gradient = self.config.rollout.temperature, self.config.entropy > 0
        is_exact = self.config.fp32_head

        def head(h_tD: Tensor, heads: Heads, depth: int) -> TokenLogprobs:
            h_tD = h_tD.float() if is_exact and h_tD.dtype == torch.bfloat16 else h_tD
            h_tD = h_tD if temperature == 1 else h_tD / temperature
            nll_o, entropy_o = heads.lm.token_nll_and_entropy(h_tD, labels_t)
            return TokenLogprobs(nll_o, heads.lm.entropy(h_tD) if with_gradient else entropy_o)

        return head

    def numerators(self, output: ForwardOutput[TokenLogprobs], batch: Batch, share: TokenShare) -> Tensor:
        if not output.is_last:
            return output.router.aux_loss.new_zeros(len(self.terms))
        tokens = _Tokens.of(output.main, batch, share)
        weight_o = self._weights(batch, share)
        losses = [surrogate(tokens, self.config.surrogate, batch, share).loss_o]
        if self.config.kl is not None:
            assert tokens.reference_o is not None, "the batch brings the reference's log-probabilities"
            losses.append(divergence(tokens.new_o - tokens.reference_o, self.config.kl.estimator))
        if self.config.entropy:
            assert output.main.entropy_o is not None, "the head was asked for it"
            losses.append(-output.main.entropy_o)
        return torch.stack([(loss_o * weight_o.to(loss_o.dtype)).sum() for loss_o in losses])

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[TokenLogprobs], batch: Batch, share: TokenShare
    ) -> None:
        if not output.is_last:
            return
        tokens = _Tokens.of(output.main, batch, share)
        found = surrogate(tokens, self.config.surrogate, batch, share)
        is_label_o, gap_o = tokens.is_label_o, tokens.old_o - tokens.rollout_o
        values = {
            "policy_tokens": is_label_o,
            "entropy_sum": output.main.entropy_o,
            "clipped": found.is_clipped_o,
            "masked": found.is_masked_o,
            "ratio_kl_sum": divergence(tokens.old_o - tokens.new_o, "k3"),
            "gap_sum": gap_o.abs(),
            "gap_kl_sum": divergence(gap_o, "k3"),
        }
        if tokens.reference_o is not None:
            values["reference_kl_sum"] = divergence(tokens.new_o - tokens.reference_o, "k3")
        for name, value_o in values.items():
            if value_o is not None:
                sums[name] += value_o.double().masked_fill(~is_label_o, 0.0).sum()
        octaves_o = (gap_o.abs().double() / _SMALLEST_GAP).clamp(min=1).log2()
        bins_o = (2 * octaves_o).ceil().long().clamp(max=GAP_BINS - 1)
        sums["gap_bins"].index_add_(0, bins_o.masked_fill(~is_label_o, 0), is_label_o.double())

    def metric_values(self, sums: Mapping[str, Tensor]) -> Mapping[str, object]:
        num_tokens = max(1.0, float(sums["policy_tokens"]))
        shares = {"clip_share": "clipped", "masked_share": "masked", "entropy": "entropy_sum", "gap_mean": "gap_sum"}
        shares |= {"ratio_kl": "ratio_kl_sum", "gap_kl": "gap_kl_sum"}
        if self.config.needs_reference:
            shares["reference_kl"] = "reference_kl_sum"
        values: dict[str, object] = {name: float(sums[of]) / num_tokens for name, of in shares.items()}
        below_K = sums["gap_bins"].cumsum(0)
        for name, share in (("gap_p99", 0.99), ("gap_max", 1.0)):
            num_below = int((below_K < share * float(below_K[-1])).sum())
            values[name] = _SMALLEST_GAP * 2 ** (num_below / 2)
        return values

    def _weights(self, batch: Batch, share: TokenShare) -> Tensor:
        """How much each of the rank's own tokens counts in a numerator; 0 without a label. Bool or float64."""
        is_label_T = batch.labels_BS.flatten() != IGNORE_INDEX
        reduction = self.config.surrogate.reduction
        if reduction == "tokens":
            return share.own(is_label_T)
        if reduction == "constant":
            return share.own(is_label_T).double() / self.config.rollout.max_new_tokens
        counts_N = _document_counts(batch, is_label_T).clamp(min=1)
        return share.own(is_label_T / counts_N[batch.documents().ids_T()])


class _Tokens(NamedTuple):
    """Log-probabilities of the rank's own tokens under the policy `new` (differentiable), before the update (`old`), as
    the engine sampled (`rollout`), under the reference; 0 without a label."""

    is_label_o: Tensor
    advantage_o: Tensor
    new_o: Tensor
    old_o: Tensor
    rollout_o: Tensor
    reference_o: Tensor | None

    @classmethod
    def of(cls, found: TokenLogprobs, batch: Batch, share: TokenShare) -> "_Tokens":
        def own(name: str) -> Tensor | None:
            return share.own(batch.per_token[name].flatten()) if name in batch.per_token else None

        is_label_o, new_o = share.own(batch.labels_BS.flatten() != IGNORE_INDEX), -found.nll_o
        advantage_o, rollout_o, old_o = own(ADVANTAGE), own(ROLLOUT_LOGPROB), own(OLD_LOGPROB)
        assert advantage_o is not None, "every batch of a policy has advantages"
        assert rollout_o is not None, "every batch of a policy has the engine's log-probabilities"
        old_o = new_o.detach() if old_o is None else old_o
        return cls(is_label_o, advantage_o, new_o, old_o, rollout_o, own(REFERENCE_LOGPROB))


class Surrogate(NamedTuple):
    """`loss_o` of the rank's own tokens, differentiable; which were held at a bound, and which do not count."""

    loss_o: Tensor
    is_clipped_o: Tensor
    is_masked_o: Tensor


def surrogate(tokens: _Tokens, config: SurrogateConfig, batch: Batch, share: TokenShare) -> Surrogate:
    """The loss of each token. Collective where ranks share rows."""
    advantage_o = tokens.advantage_o
    base_o = tokens.old_o if config.ratio_to == "old" else tokens.rollout_o
    log_ratio_o = (tokens.new_o - base_o) * tokens.is_label_o
    if config.level == "sequence":
        documents, is_label_T = batch.documents(), batch.labels_BS.flatten() != IGNORE_INDEX
        sums_N = share.document_sums(log_ratio_o, documents)
        means_N = sums_N / _document_counts(batch, is_label_T).clamp(min=1)
        log_ratio_o = means_N[share.own(documents.ids_T())] * tokens.is_label_o
    ratio_o = log_ratio_o.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    low, high = config.bounds
    held_o = ratio_o.clamp(1 - low, 1 + high)
    is_up_o, is_down_o = advantage_o > 0, advantage_o < 0
    is_outside_o = (is_up_o & (ratio_o > 1 + high)) | (is_down_o & (ratio_o < 1 - low))
    is_masked_o = torch.zeros_like(is_outside_o)
    match config.bound:
        case "cispo":
            loss_o = -held_o.detach() * advantage_o * tokens.new_o
        case "mask":
            is_masked_o = (ratio_o < 1 - low) | (ratio_o > 1 + high)
            loss_o = -ratio_o * advantage_o
        case "probability":
            moved_o = (tokens.new_o.exp() - base_o.exp()) * tokens.is_label_o
            is_masked_o = (is_up_o & (moved_o > high)) | (is_down_o & (moved_o < -low))
            loss_o = -ratio_o * advantage_o
        case "none":
            loss_o = -ratio_o * advantage_o
        case _:
            loss_o = torch.maximum(-ratio_o * advantage_o, -held_o * advantage_o)
            if config.bound == "dual_clip":
                loss_o = torch.where(is_down_o, torch.minimum(loss_o, -config.dual_clip * advantage_o), loss_o)
    if config.correction != "none":
        gap_ratio_o = ((tokens.old_o - tokens.rollout_o) * tokens.is_label_o).exp()
        within = (config.correction_low, config.correction_high)
        if config.correction == "truncate":
            loss_o = loss_o * gap_ratio_o.clamp(*within)
        else:
            is_masked_o = is_masked_o | (gap_ratio_o < within[0]) | (gap_ratio_o > within[1])
    loss_o = loss_o.masked_fill(is_masked_o.detach(), 0.0)
    return Surrogate(loss_o, is_outside_o.detach(), is_masked_o.detach())


def divergence(log_ratio: Tensor, estimator: str) -> Tensor:
    """Schulman's estimators of KL(p || q) at tokens sampled from p; `log_ratio` is log p - log q."""
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return torch.expm1(-log_ratio) + log_ratio


def _document_counts(batch: Batch, is_label_T: Tensor) -> Tensor:
    """Labels of each document [N], float64."""
    documents = batch.documents()
    counts_N = torch.zeros(len(documents.lengths), dtype=torch.float64, device=is_label_T.device)
    return counts_N.index_add_(0, documents.ids_T(), is_label_T.double())
