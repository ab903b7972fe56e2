"""A model written by hand that goes on with a text as it went on before: an induction head (Olsson et al., 2022, arXiv
2209.11895).

It has two layers. The heads of the first look one and two tokens back, by their rotation alone, so that every token
knows the two before it. The second layer looks for a place where the two tokens before were the last two here, and the
output is the token that came next there. Nothing is trained, and nothing but copying is known.

The residual stream is four vectors of 64: the token, the one before, the one before that, and the output.
"""

import torch

from glmforge.config.model import ModelConfig
from glmforge.kernels.qk_rope import rotate
from glmforge.model import GlmMoe
from glmforge.model.rope import Rope
from helpers.models import tiny_config

WIDTH = 64
HEAD_DIM, ROTARY_DIM = 4 * WIDTH, 2 * WIDTH
TOKEN, BEFORE, BEFORE_THAT, OUTPUT = (slice(start, start + WIDTH) for start in range(0, 4 * WIDTH, WIDTH))
SHARPNESS = 5.0
"""Of both layers' attention: what is looked for outweighs all else by e^20 and more."""


def copying_config(vocab_size: int, num_positions: int) -> ModelConfig:
    return tiny_config(
        vocab_size=vocab_size,
        max_position_embeddings=num_positions,
        hidden_size=4 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        use_qk_norm=False,
        rope_theta=4.0,  # frequencies from 1 to 1/4: together they are in phase at one distance only
        n_routed_experts=4,
        num_nextn_predict_layers=0,
    )


@torch.no_grad()
def copying_model(config: ModelConfig) -> GlmMoe:
    model = GlmMoe.create(config)
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    signs = torch.randint(0, 2, (config.vocab_size, WIDTH), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    model.model.embed_tokens.weight[:, TOKEN] = signs
    model.lm_head.weight[:, OUTPUT] = signs
    _look_back(model)
    _look_for_what_came_before(model)
    return model.eval()


def _look_back(model: GlmMoe) -> None:
    """Head h of the first layer takes the token at a distance of h + 1."""
    attention, theta = model.model.layers["0"].self_attn, model.config.rope_theta
    key = torch.zeros(HEAD_DIM)
    key[: ROTARY_DIM // 2] = SHARPNESS
    for head, target in enumerate((BEFORE, BEFORE_THAT)):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        rope = Rope.at(torch.tensor([-head - 1.0]), ROTARY_DIM, theta, torch.float32)
        attention.q_proj.bias[rows] = rotate(key[None, None], rope.cos_T1R, rope.sin_T1R)[0, 0]
        attention.k_proj.bias[rows] = key
        columns = slice(head * HEAD_DIM, head * HEAD_DIM + WIDTH)
        attention.v_proj.weight[columns, TOKEN] = torch.eye(WIDTH)
        # The norm before has doubled what is a fourth of the stream.
        attention.o_proj.weight[target, columns] = torch.eye(WIDTH) / 2


def _look_for_what_came_before(model: GlmMoe) -> None:
    """The first head of the second layer compares the dims that do not rotate; the other one adds nothing.

    Those that rotate say a little about distance, so that of two places that are alike one is chosen, and not both.
    """
    attention = model.model.layers["1"].self_attn
    attention.q_proj.bias[: ROTARY_DIM // 2] = attention.k_proj.bias[: ROTARY_DIM // 2] = SHARPNESS / 4
    first, second = slice(ROTARY_DIM, ROTARY_DIM + WIDTH), slice(ROTARY_DIM + WIDTH, HEAD_DIM)
    for projection, (one, other) in (
        (attention.q_proj, (TOKEN, BEFORE)),
        (attention.k_proj, (BEFORE, BEFORE_THAT)),
    ):
        projection.weight[first, one] = projection.weight[second, other] = SHARPNESS * torch.eye(WIDTH)
    attention.v_proj.weight[:WIDTH, TOKEN] = attention.o_proj.weight[OUTPUT, :WIDTH] = torch.eye(WIDTH)
