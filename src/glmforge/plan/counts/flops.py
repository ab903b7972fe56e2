"""How many floating-point operations training takes per token.

The usual count (Kaplan et al., arXiv 2001.08361; PaLM's appendix B, arXiv 2204.02311): each matrix element
that a token passes through costs a multiplication and an addition forward and twice that backward, 6 in all;
attention adds the score and value products, of which a causal mask leaves half. Only the experts that a token
visits count. Recomputation, norms, softmax and the optimizer do not: this is the work of the model, and the
figure that utilisation is measured against.

    6 (N_trunk + V D [+ N_mtp]) + 6 s H P (L [+ L_mtp])

with N the matrix elements that multiply each token and s the mean attended length.

That is a stage that trains everything. A frozen matrix has no gradient of its own, which is a third of its work: 4
instead of 6, plus 6 for each element of an adapter. Below the lowest parameter that is trained nothing goes backward,
which leaves 2 (`glmforge.plan.stages.gradients`); adapters are taken to need all of it. A forward pass alone is 2 of
the 6, and a model without the vocabulary has no V D.
"""

from collections.abc import Iterable
from fractions import Fraction

from glmforge.config.adapters import adapter_rows
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.parameters import HEAD
from glmforge.config.role import Role
from glmforge.plan.counts.parameters import count_parameters
from glmforge.plan.stages.gradients import Gradients, Part, part_of
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage


def train_flops_per_token(
    config: ModelConfig,
    mean_attended: float,
    with_mtp: bool = True,
    stage: TrainingStage = PRETRAINING,
    optim: OptimConfig | None = None,
) -> float:
    """FLOPs per token of a training step, of all models of the stage: forward and backward of what is trained.

    `mean_attended` is the sequence length, or `mean_attended_length` of packed documents; the causal half of
    it is part of the formula. `with_mtp` adds the multi-token-prediction layers of models that have a vocabulary, to
    the passes that train. What the rules of `optim` freeze is counted as such; nothing if it is None.
    """
    return sum(role_flops_per_token(config, mean_attended, with_mtp, role, optim) for role in stage.roles)


def forward_flops_per_token(config: ModelConfig, mean_attended: float, with_head: bool = True) -> float:
    """FLOPs of a forward pass per token, as in `train_flops_per_token`; the head is skipped for most tokens of a
    prefill.
    """
    counts = count_parameters(config)
    return 2 * (counts.trunk_matmul + counts.head.matrices * with_head + _attended(config, mean_attended, 0))


def role_flops_per_token(
    config: ModelConfig, mean_attended: float, with_mtp: bool, role: Role, optim: OptimConfig | None = None
) -> float:
    """The same of one of a stage's models."""
    config = role.model or config
    counts = count_parameters(config)
    has_mtp = with_mtp and role.has_vocabulary
    matrices = counts.trunk_matmul + counts.head.matrices * role.has_vocabulary
    total = role.forwards * 2 * (matrices + _attended(config, mean_attended, 0))
    if role.is_trained:
        matrices += counts.mtp_matmul * has_mtp
        num_mtp = config.num_nextn_predict_layers * has_mtp
        total += (6 if role.trains_all else 4) * matrices + 6 * _attended(config, mean_attended, num_mtp)
        if optim is not None:
            total -= _not_computed(config, mean_attended, has_mtp, role, optim)
    if role.lora:
        total += (6 * role.is_trained + 2 * role.forwards) * _adapter_matmul(config, role.lora)
    return total


def _not_computed(config: ModelConfig, mean_attended: float, has_mtp: bool, role: Role, optim: OptimConfig) -> float:
    """What a step that trains everything would compute besides, per token: gradients that are not needed."""
    gradients = Gradients.of(config, optim, role)
    if gradients.is_whole:
        return 0
    num_layers, num_mtp = config.num_hidden_layers, config.num_nextn_predict_layers * has_mtp
    rows = [row for row in role.parameters(config).values() if row.family == "matrix" and (num_mtp or not row.mtp)]
    visited = Fraction(config.num_experts_per_tok, config.n_routed_experts)
    used = [(part_of(row.name, config), row.size * (visited if row.expert else 1)) for row in rows]
    if role.has_logits(config):
        depths = (Part(num_layers - 1 + depth, HEAD.removesuffix(".weight")) for depth in range(1 + num_mtp))
        used += [(depth, config.vocab_size * config.hidden_size) for depth in depths]
    missing = sum(size * (2 - gradients.of_weight(part) - gradients.of_input(part)) for part, size in used)
    outputs = (Part(layer, "self_attn.o_proj") for layer in range(num_layers + num_mtp))
    unasked = sum(not gradients.of_input(output) for output in outputs)
    return float(2 * missing) + 4 * unasked * mean_attended * config.num_attention_heads * config.head_dim


def _attended(config: ModelConfig, mean_attended: float, num_mtp: int) -> float:
    """The causal half of attention's two products, in multiplications and additions of one pass and token."""
    return mean_attended * config.num_attention_heads * config.head_dim * (config.num_hidden_layers + num_mtp)


def _adapter_matmul(config: ModelConfig, lora: LoraConfig) -> int:
    """Elements of adapters that multiply each token: of an expert's, those of the experts that it visits; none of what
    is looked up."""
    visited = config.num_experts_per_tok
    rows = [row for row in adapter_rows(config, lora) if ".lora_embedding_A." not in row.name]
    return sum(row.size // config.n_routed_experts * visited if row.expert else row.size for row in rows)


def mean_attended_length(document_lengths: Iterable[int]) -> float:
    """The sequence length that costs the same attention per token as these documents: sum L^2 / sum L."""
    tokens = squares = 0
    for length in document_lengths:
        tokens += length
        squares += length * length
    if tokens == 0:
        raise ValueError("document_lengths: no tokens; the mean over no documents is undefined")
    return squares / tokens
