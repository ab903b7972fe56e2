"""Router replay: experts that are given instead of chosen."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from glmforge.kernels.router import RoutingRule, route
from glmforge.model import GlmMoe
from glmforge.model.inputs import ModelInputs, Routing
from glmforge.model.transformer import ForwardOutput
from helpers.models import randomize_, tiny_config

CONFIG = tiny_config()
IDS_BS = torch.randint(0, 512, (2, 16), generator=torch.Generator().manual_seed(0))
INPUTS = ModelInputs.whole(IDS_BS, num_mtp_layers=1)
NUM_ROUTERS = 4  # three of the trunk, one of the MTP layer


def run(routing: Tensor | None) -> tuple[ForwardOutput[Tensor], dict[str, Tensor]]:
    """A forward and backward pass, of all heads and the auxiliary loss."""
    model = GlmMoe.create(CONFIG)
    randomize_(model)
    inputs = INPUTS if routing is None else replace(INPUTS, routing=Routing(routing))
    output = model(inputs, with_aux_loss=True, with_routing=True)
    targets_T = IDS_BS.flatten().roll(-1)
    losses = [torch.nn.functional.cross_entropy(logits, targets_T) for logits in (output.main, *output.mtp)]
    (sum(losses) + output.router.aux_loss).backward()
    return output, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def chosen(output: ForwardOutput[Tensor]) -> Tensor:
    assert output.router.experts_TLK is not None
    return output.router.experts_TLK


def test_routing_that_a_forward_chose_gives_its_bits_again() -> None:
    free, free_gradients = run(None)
    assert chosen(free).shape == (32, NUM_ROUTERS, 2)
    replayed, gradients = run(chosen(free).to(torch.int16))
    assert torch.equal(replayed.main, free.main)
    assert torch.equal(replayed.mtp[0], free.mtp[0])
    assert torch.equal(replayed.router.counts_LE, free.router.counts_LE)
    assert torch.equal(replayed.router.aux_loss, free.router.aux_loss)
    assert gradients.keys() == free_gradients.keys()
    assert all(torch.equal(gradients[name], gradient) for name, gradient in free_gradients.items())


def test_other_routing_is_taken_counted_and_trained_through() -> None:
    free, free_gradients = run(None)
    other = (chosen(free) + 1) % CONFIG.n_routed_experts
    output, gradients = run(other)
    assert torch.equal(chosen(output), other)
    assert not torch.equal(output.main, free.main)
    assert torch.equal(output.router.counts_LE[-1], torch.bincount(other[:, -1].flatten(), minlength=8))
    for name, gradient in gradients.items():
        assert gradient.any() or not free_gradients[name].any(), name
    gates = [name for name in gradients if name.endswith("mlp.gate.weight")]
    assert len(gates) == NUM_ROUTERS
    assert not any(torch.equal(gradients[name], free_gradients[name]) for name in gates)


def test_a_layer_beyond_the_routing_and_a_token_of_minus_one_choose_for_themselves() -> None:
    free, free_gradients = run(None)
    trunk = chosen(free)[:, :3].clone()
    trunk[10:13] = -1
    replayed, gradients = run(trunk)
    assert torch.equal(chosen(replayed), chosen(free))
    assert all(torch.equal(gradients[name], gradient) for name, gradient in free_gradients.items())


def test_weights_are_the_live_scores_of_the_given_experts() -> None:
    rule = RoutingRule(2, 1, 1, normalise=True, scale=2.5)
    generator = torch.Generator().manual_seed(0)
    logits_TE = torch.randn(5, 8, generator=generator).requires_grad_()
    given_TK = torch.tensor([[1, 0], [7, 3], [2, 6], [-1, -1], [5, 4]])
    routes = route(logits_TE, torch.zeros(8), rule, given_TK=given_TK)
    kept = [0, 1, 2, 4]
    assert torch.equal(routes.experts_TK[kept], given_TK[kept])
    scores_TK = logits_TE.sigmoid().gather(1, routes.experts_TK)
    assert torch.equal(routes.weights_TK, scores_TK / (scores_TK.sum(1, keepdim=True) + 1e-20) * 2.5)
    assert set(routes.experts_TK[3].tolist()) == set(logits_TE[3].topk(2).indices.tolist())
    (gradient,) = torch.autograd.grad(routes.weights_TK[0, 0], logits_TE)
    assert gradient[0, [0, 1]].all()
    assert not gradient[0, 2:].any()


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (torch.zeros(32, 2, 2, dtype=torch.int64), r"int64 \[32, 2, 2\]; pass integers \[32, 3, 2\] or \[32"),
        (torch.zeros(32, 4, 2), r"float32 \[32, 4, 2\]; pass integers \[32, 3, 2\] or \[32"),
    ],
)
def test_routing_of_another_model_is_refused(experts: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(experts)
