"""The model against transformers' Glm4MoeForCausalLM at the same weights, in fp32."""

import pytest
import torch
import torch.nn.functional as F

from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.inputs import ModelInputs
from helpers.models import randomize_, tiny_config, transformers_model

VARIANTS = {
    "glm46": {},
    "no_qk_norm": {"use_qk_norm": False},
    "all_moe": {"first_k_dense_replace": 0},
    "grouped": {"n_group": 4, "topk_group": 2, "n_routed_experts": 16, "num_experts_per_tok": 4},
    "unnormalised": {"norm_topk_prob": False},
    "two_shared": {"n_shared_experts": 2},
    "full_rope": {"partial_rotary_factor": 1.0},
    "tied": {"tie_word_embeddings": True},
    "air": {"use_qk_norm": False, "routed_scaling_factor": 1.0, "norm_topk_prob": True},
}


def make_pair(overrides: dict) -> tuple[GlmMoe, torch.nn.Module]:
    config = tiny_config(**overrides, num_nextn_predict_layers=0)
    theirs = transformers_model(config)
    randomize_(theirs)
    ours = GlmMoe(config)
    state = theirs.state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]  # the same tensor as the embedding
    ours.load_state_dict(state)
    return ours, theirs


@pytest.mark.parametrize("shape", [(2, 33), (1, 1), (3, 7)], ids=str)
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_and_every_gradient_equal_transformers(overrides: dict, shape: tuple[int, int]) -> None:
    ours, theirs = make_pair(overrides)
    ids_BS = torch.randint(0, 512, shape, generator=torch.Generator().manual_seed(1))
    labels_T = torch.randint(0, 512, (ids_BS.numel(),), generator=torch.Generator().manual_seed(2))

    our_logits = ours(ids_BS).main
    their_logits = theirs(ids_BS).logits.flatten(0, 1)
    # 1e-4 of the logit scale: fp32 rounding of differently ordered sums comes to about 1e-6.
    assert (our_logits - their_logits).abs().max() < 1e-4 * their_logits.abs().max()

    F.cross_entropy(our_logits, labels_T).backward()
    F.cross_entropy(their_logits, labels_T).backward()
    their_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = their_gradients.pop(name)
        error = (parameter.grad - expected).norm() / expected.norm().clamp_min(1e-12)
        # Where the true gradient is 0 (a single token attends to itself whatever q and k are) both sides are left
        # with rounding noise on the scale of the head's gradient.
        floor = 1e-6 * ours.lm_head.weight.grad.norm()
        assert error < 1e-4 or (parameter.grad - expected).norm() < floor, f"{name}: {error:.2e}"
    assert not their_gradients, f"parameters only in transformers: {sorted(their_gradients)}"


def test_correction_bias_changes_the_choice_but_not_the_weights() -> None:
    ours, _ = make_pair({})
    router = ours.trunk_layers[1].mlp.gate
    x_TD = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    router.e_score_correction_bias.zero_()
    before = router(x_TD)
    router.e_score_correction_bias[3] = 10.0
    after = router(x_TD)
    assert (after.experts_TK == 3).any(dim=-1).all()
    assert not (before.experts_TK == 3).any(dim=-1).all()
    chosen_TK = after.scores_TE.gather(1, after.experts_TK)
    expected_TK = 2.5 * chosen_TK / chosen_TK.sum(-1, keepdim=True)
    torch.testing.assert_close(after.weights_TK, expected_TK)


def test_packed_documents_equal_separate_ones() -> None:
    ours, _ = make_pair({})
    lengths = [5, 1, 11, 7]
    ids_T = torch.randint(0, 512, (sum(lengths),), generator=torch.Generator().manual_seed(3))
    packed = ours(ModelInputs.whole(ids_T[None], Documents.from_lengths(lengths))).main
    separate = torch.cat([ours(document[None]).main for document in ids_T.split(lengths)])
    # The same sums in other tiles: a few units in the last place of logits of scale 1 to 10.
    torch.testing.assert_close(packed, separate, rtol=1e-5, atol=2e-5)
